"""The explorer's end of a collective: asks the trainer, wherever that is and whichever of its lives it is in.

While it is not there, there are no versions, and its words still count; what was said to it is said again to
its next life. Once its run is through, it has left the last versions in the run's folder.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from strop.buffer.wait import Check
from strop.sync.collective.outbox import ADDRESS
from strop.sync.collective.pair import Meeting, Pair, PairBroken, gpu_of
from strop.sync.collective.parcel import Bucket
from strop.sync.folder import FolderVersions
from strop.sync.versions import VersionGone, Word
from strop.workers.address import Address
from strop.workers.line import ANSWER_SECONDS, SLICE_SECONDS, Line, LineBroken, reach

log = logging.getLogger("strop.sync")
T = TypeVar("T")


class CollectiveInbox:
    """An `Inbox`."""

    where = "in the trainer's memory"

    def __init__(self, folder: Path, host: str, device: torch.device, check: Check) -> None:
        """`folder` is where the trainer's address is; `host` an address of this machine that it can reach;
        `device` the sampler's. `check` is called in each wait."""
        self._folder = folder
        self._left = FolderVersions(folder)
        self._host = host
        self._device = device
        self._check = check
        self._numbers: dict[Word, int] = {}
        self._heard: dict[Word, int] = {}
        self._line: Line | None = None
        self._pair: Pair | None = None

    def all(self) -> list[int]:
        """Those that are there, oldest first; none while the trainer is not there."""
        answer = self._ask()
        return sorted({*self._left.all(), *(answer["versions"] if answer else ())})

    def read(self, version: int) -> Iterator[tuple[str, Tensor]]:
        """Its weights, one after the other. Raises `VersionGone`."""
        if version in self._left.all():
            yield from self._left.read(version)
            return
        answer = self._ask(version)
        if answer is None or "buckets" not in answer:
            raise VersionGone
        through = False
        try:
            yield from self._receive(answer)
            through = True
        except (LineBroken, PairBroken) as error:
            log.warning(
                "The trainer was lost while version %d of the weights came from it; the explorer waits until "
                "it is back.",
                version,
            )
            raise VersionGone from error
        finally:
            if not through:
                self.close()

    def say(self, word: Word, number: int) -> None:
        """Leave a number for the trainer, and for each that comes after it."""
        self._numbers[word] = number
        self._ask()

    def said(self, word: Word) -> int:
        """What the trainer has left under this word; 0 where that is nothing."""
        self._ask()
        return self._heard.get(word, 0)

    def ended(self) -> int:
        """What stands in the folder."""
        return self._left.ended()

    def close(self) -> None:
        """Hang up."""
        if self._line is not None:
            self._line.close()
        self._line = self._pair = None

    def _ask(self, version: int | None = None) -> dict[str, Any] | None:
        """What the trainer answers; None where it is not there."""
        if self._line is None:
            self._line = reach(Address.load(self._folder / ADDRESS), self._check)
        if self._line is None:
            return None
        request = {"said": self._numbers, "version": version, "gpu": gpu_of(self._device)}
        try:
            self._line.send(request, limit_seconds=ANSWER_SECONDS)
            answer: dict[str, Any] = self._line.receive(limit_seconds=ANSWER_SECONDS)
        except LineBroken:
            self.close()
            return None
        self._heard |= answer["said"]
        return answer

    def _receive(self, answer: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
        assert self._line is not None
        if self._pair is None:
            meeting = Meeting(**answer["meeting"])
            device = self._device if meeting.backend == "nccl" else torch.device("cpu")
            self._pair = _patiently(lambda: Pair(meeting, 1, self._host, device), self._check)
        for values in answer["buckets"]:
            bucket = Bucket.empty(values, self._pair.device)
            self._pair.broadcast(bucket.content, self._check)
            yield from bucket.weights()
        self._line.receive(limit_seconds=ANSWER_SECONDS)


def _patiently(make: Callable[[], T], check: Check) -> T:
    """Make it in a thread, with checks meanwhile."""
    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(make())
        except BaseException as error:  # noqa: BLE001  (it is raised below)
            future.set_exception(error)

    threading.Thread(target=work, name="strop-sync", daemon=True).start()
    while not wait([future], timeout=SLICE_SECONDS).done:
        check()
    return future.result()
