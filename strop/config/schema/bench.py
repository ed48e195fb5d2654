"""`bench`: what mode bench measures."""

from __future__ import annotations

from strop.config.schema.base import Section


class Bench(Section):
    """Which weights mode bench measures the eval tasksets with."""

    checkpoints: tuple[str, ...] = ()
    """Checkpoint folders, or run folders, which stand for all of theirs; none for all of this run's own."""
    model: bool = True
    """Measure the model as it is too, before the checkpoints."""
