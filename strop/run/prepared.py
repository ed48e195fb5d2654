"""A run that is ready for its first step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from strop.protocols import TrainingEngine
from strop.run.length import Length
from strop.run.loop import Loop
from strop.run.records.record import Recorder


@dataclass(frozen=True, slots=True)
class Prepared:
    """What `train` needs to know of it, whatever it learns by."""

    engine: TrainingEngine
    length: Length
    notes: tuple[str, ...]
    """What it learns from and how, in words."""
    driver: Callable[[Recorder], Loop]
    """Makes the driver, which runs the steps and keeps their record."""
