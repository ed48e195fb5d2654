"""What is said on one line, from the trainer's side.

The explorer's request: `said`, its numbers; `version`, one that it wants now, or null; `gpu`, which it has.
The answer: `said`, the trainer's numbers; `versions`, those that are there; and with one that was wanted,
`meeting` and `buckets`. Then the two broadcast the buckets, and the trainer ends with `null`.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from strop.config.schema.synchronizer import CollectiveSync
from strop.errors import PlacementError
from strop.sync.collective.pair import Backend, Meeting, Pair, PairBroken, gpu_of, open_store
from strop.sync.collective.parcel import Bucket
from strop.sync.collective.shelf import Shelf
from strop.sync.versions import TRAINERS
from strop.workers.line import ANSWER_SECONDS, HungUp, Line, LineBroken

log = logging.getLogger("strop.sync")


class Sessions:
    """Serves lines from a shelf."""

    def __init__(self, shelf: Shelf, section: CollectiveSync, host: str, device: torch.device) -> None:
        """`device` is the trainer's."""
        self._shelf = shelf
        self._section = section
        self._host = host
        self._device = device
        self._store = open_store(host)
        self._numbers = itertools.count()
        self.home = device if section.backend == "nccl" else torch.device("cpu")
        """Where versions are best kept: where the explorer was last given one from."""

    def serve(self, line: Line) -> None:
        """Until the line breaks. Raises PlacementError where they lack the GPUs that `backend` wants."""
        pair, name = None, str(next(self._numbers))
        while True:
            request = line.receive()
            self._shelf.say(request["said"])
            versions = self._shelf.all()
            wanted = versions.get(request["version"])
            answer: dict[str, Any] = {
                "said": self._shelf.spoken(TRAINERS),
                "versions": list(versions),
            }
            if wanted is None:
                line.send(answer, limit_seconds=ANSWER_SECONDS)
                continue
            backend = self._backend(request["gpu"])
            self.home = self._device if backend == "nccl" else torch.device("cpu")
            meeting = Meeting(self._host, self._store.port, name, backend)
            answer |= {"meeting": asdict(meeting), "buckets": [bucket.to_json() for bucket in wanted]}
            try:
                line.send(answer, limit_seconds=ANSWER_SECONDS)
                pair = pair or Pair(meeting, 0, self._host, self.home)
                _give(wanted, pair, line)
            except HungUp:
                raise
            except (LineBroken, PairBroken) as error:
                log.warning(
                    "The explorer was lost while version %d of the weights went to it; it gets them again "
                    "when it is back.",
                    request["version"],
                )
                raise LineBroken from error

    def _backend(self, explorers: str | None) -> Backend:
        own = gpu_of(self._device)
        both = own is not None and explorers is not None and own != explorers
        match self._section.backend:
            case "auto":
                return "nccl" if both else "gloo"
            case "nccl" if not both:
                raise PlacementError(
                    "synchronizer.backend: nccl wants a GPU for the trainer and another for the explorer, "
                    f"and they have {own or 'none'} and {explorers or 'none'}; write gloo, or auto."
                )
            case backend:
                return backend


def _give(buckets: Sequence[Bucket], pair: Pair, line: Line) -> None:
    for bucket in buckets:
        pair.broadcast(bucket.content.to(pair.device), line.check)
    line.send(None, limit_seconds=ANSWER_SECONDS)
