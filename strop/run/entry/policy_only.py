"""The part of a run that samples: its policy, without the models that only training needs."""

from __future__ import annotations

from strop.config.schema import Run
from strop.config.schema.algorithm import ReinforceConfig


def policy_only(run: Run) -> Run:
    """The run with an algorithm that has no reference model and no teachers, for evaluation and export."""
    if run.algorithm.is_offline:
        return run
    return run.model_copy(update={"algorithm": ReinforceConfig()})
