"""What the first rank tells the others, and what they answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import torch
from torch import distributed
from torch.distributed.distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

from strop.errors import StropError
from strop.training.ranks.address import speak_towards

COLLECTIVE_SECONDS = 1800.0
"""So long one rank waits for the others in the middle of a collective."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A rank's place among the others."""

    rank: int
    ranks: int
    device: Literal["cpu", "cuda"]
    """`cuda` is a GPU for each rank."""
    gpu: int
    """Its number in this process, where it is on one."""
    meeting: str
    """Where they find each other: a file that is not there yet, or an address of the first one's node."""

    def join(self) -> tuple[torch.device, Store]:
        """Become one of them, as soon as all are there; this one's device, and where any thread may leave
        word for the others."""
        backend = "gloo" if self.device == "cpu" else "cpu:gloo,cuda:nccl"
        device = torch.device(self.device, *([self.gpu] if self.device == "cuda" else []))
        if self.device == "cuda":
            torch.cuda.set_device(device)
        speak_towards(self.meeting)
        store, _, _ = next(rendezvous(self.meeting, self.rank, self.ranks))
        distributed.init_process_group(
            backend,
            store=store,
            rank=self.rank,
            world_size=self.ranks,
            timeout=timedelta(seconds=COLLECTIVE_SECONDS),
        )
        return device, store


@dataclass(frozen=True, slots=True)
class Make:
    """Build an object, from then on called by its name."""

    name: str
    build: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Call:
    """Call the object of that name."""

    name: str
    call: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Save:
    """Take a snapshot of an engine, and go on while this rank's part of it is written."""

    key: str
    """Under which word is left, of this save alone."""
    folder: Path
    """Where it goes."""
    engine: str
    """The name of what is saved."""
    copied: bool
    """Whether training goes on meanwhile."""
    together: bool
    """Whether a rank's files are written side by side."""
    turns: tuple[frozenset[int], ...]
    """The ranks that may write at once, in the order of their turns."""


@dataclass(frozen=True, slots=True)
class Done:
    """It was done, with this result; of a `Make`, None."""

    result: Any


@dataclass(frozen=True, slots=True)
class Failed:
    """It failed, and this rank has ended."""

    message: str
    kind: type[StropError] | None
    """The error's class, where it is one of Strop's, which are told without a traceback."""
