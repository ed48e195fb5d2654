"""Conversion of amounts in updates to steps."""

from __future__ import annotations

from strop.config.schema import Run
from strop.config.units import Amount


def updates_per_step(run: Run) -> int | None:
    """Return the number of updates of every step; None if steps differ in it."""
    trainer = run.trainer
    if run.algorithm.critic_warmup_steps > 0 or run.data.incomplete_batch == "keep":
        return None
    return (
        trainer.tasks_per_step
        // (trainer.tasks_per_update or trainer.tasks_per_step)
        * trainer.epochs_per_step
    )


def to_steps(run: Run, amount: Amount | None) -> Amount | None:
    """Convert updates to steps if they make whole steps; return any other amount unchanged."""
    each = updates_per_step(run)
    if amount is None or amount.unit != "updates" or each is None or amount.count % each:
        return amount
    return Amount(amount.count // each, "steps")
