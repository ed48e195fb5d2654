"""`synchronizer`: how new weights come from the trainer to the explorer, and who waits for whom."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from strop.config.schema.base import Section, kind_or
from strop.config.units import Amount, Steps, StepsOrNone


class StyleBase(Section):
    """What every style has."""

    every: Steps = Amount(1, "steps")
    """The trainer publishes its weights after every so many of its steps, and after the last."""


class Fixed(StyleBase):
    """A step's number says which version it is sampled with: the same run every time, whatever the timing."""

    type: Literal["fixed"] = "fixed"
    ahead: StepsOrNone = Amount(0, "steps")
    """So many steps the explorer samples before those weights are there; with 0 the two take turns."""


class ByTrainer(StyleBase):
    """The trainer decides: at each step the explorer takes the newest weights there are, without a wait."""

    type: Literal["trainer"] = "trainer"


class ByExplorer(Section):
    """The explorer decides: it asks for new weights, and waits until the trainer's step under way is done."""

    type: Literal["explorer"] = "explorer"
    every: Steps = Amount(1, "steps")
    """The explorer asks after every so many of its own steps."""


class Free(StyleBase):
    """Each goes on as it can: the explorer takes the newest weights, and waits where they are too old."""

    type: Literal["free"] = "free"
    max_staleness: StepsOrNone = Amount(2, "steps")
    """Weights are at most so many steps old when what they have sampled is trained on."""


Style = Annotated[Fixed | ByTrainer | ByExplorer | Free, Field(discriminator="type"), kind_or("fixed")]


class MemorySync(Section):
    """Explorer and trainer take turns in one process, on the same weights."""

    type: Literal["memory"] = "memory"


class ApartSync(Section):
    """What every way has on which weights go from one process to another."""

    style: Style = Fixed()
    """Which weights a step is sampled with, and who waits for whom."""
    timeout_seconds: float = Field(1200.0, gt=0)
    """Longest wait of the explorer for weights; after it the run stops and says so."""
    max_restarts: int = Field(3, ge=0)
    """In mode both: how often a process that was killed is started again, each of them."""


class CheckpointSync(ApartSync):
    """Explorer and trainer are processes of their own; weights go through a folder that both can reach."""

    type: Literal["checkpoint"] = "checkpoint"
    folder: str = "sync"
    """Where the weights stand, in the run's folder unless the path is absolute."""


class CollectiveSync(ApartSync):
    """Explorer and trainer are processes of their own, in mode both; weights go from memory to memory."""

    type: Literal["collective"] = "collective"
    backend: Literal["auto", "gloo", "nccl"] = "auto"
    """What carries them: `gloo` from host memory, `nccl` from GPU to GPU, which wants one for each of the
    two; `auto` is nccl where there are two, else gloo."""


Synchronizer = Annotated[
    MemorySync | CheckpointSync | CollectiveSync, Field(discriminator="type"), kind_or("checkpoint")
]
