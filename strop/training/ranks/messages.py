"""What the first rank tells the others, and what they answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import torch
from torch import distributed

from strop.errors import StropError

COLLECTIVE_SECONDS = 1800.0
"""So long one rank waits for the others in the middle of a collective."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A rank's place among the others."""

    rank: int
    ranks: int
    device: Literal["cpu", "cuda"]
    """`cuda` is a GPU for each rank, by its number."""
    store: str
    """A file that is not there yet, by which they find each other."""

    def join(self) -> torch.device:
        """Become one of them; returns as soon as all are there."""
        backend = "gloo" if self.device == "cpu" else "cpu:gloo,cuda:nccl"
        device = torch.device(self.device, *([self.rank] if self.device == "cuda" else []))
        if self.device == "cuda":
            torch.cuda.set_device(device)
        distributed.init_process_group(
            backend,
            init_method=f"file://{self.store}",
            rank=self.rank,
            world_size=self.ranks,
            timeout=timedelta(seconds=COLLECTIVE_SECONDS),
        )
        return device


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
class Done:
    """It was done, with this result; of a `Make`, None."""

    result: Any


@dataclass(frozen=True, slots=True)
class Failed:
    """It failed, and this rank has ended."""

    message: str
    kind: type[StropError] | None
    """The error's class, where it is one of Strop's, which are told without a traceback."""
