"""`bench`: checkpoints that mode `bench` evaluates."""

from __future__ import annotations

from strop.config.schema.base import Section


class BenchConfig(Section):
    """Weights that mode `bench` evaluates on the eval tasksets."""

    checkpoints: tuple[str, ...] = ()
    """Checkpoint folders, or run folders for all checkpoints in them; empty for all checkpoints of this
    run."""
    initial_model: bool = True
    """Evaluate the initial model too, before the checkpoints."""
