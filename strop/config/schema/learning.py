"""What the optimizer and the schedule need of the rest of the run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from strop.config.schema.algorithm import Dpo, Sft
from strop.config.schema.schedule import ReduceOnPlateauSchedule

if TYPE_CHECKING:
    from strop.config.schema.run import Run


def check_learning(run: Run) -> None:
    """Raises ValueError, which names the key, for the first thing that does not fit."""
    for fault in (*_plateau(run), *_best(run), *_fused(run)):
        raise ValueError(fault)


def _plateau(run: Run) -> Iterator[str]:
    schedule = run.trainer.schedule
    if not isinstance(schedule, ReduceOnPlateauSchedule):
        return
    if not run.data.eval or run.evaluate.every is None:
        yield (
            "trainer.schedule: reduce_lr_on_plateau follows evaluations during the run, and there are none: "
            "write tasksets under `data.eval` and `evaluate: {every: 5 steps}`, or another schedule"
        )
        return
    yield from _followed(run, "trainer.schedule.metric", schedule.metric)


def _best(run: Run) -> Iterator[str]:
    best = run.checkpoint.best
    if best is None:
        return
    if not run.data.eval:
        yield (
            "checkpoint.best is that of an evaluation, and there is none: write tasksets under `data.eval`, "
            "or leave it out, and the last step's model is the run's"
        )
        return
    yield from _followed(run, "checkpoint.best.metric", best.metric)


def _followed(run: Run, key: str, metric: str | None) -> Iterator[str]:
    """What is wrong with the metric of an evaluation that `key` names."""
    names = [taskset.name for taskset in run.data.eval]
    if metric is None and isinstance(run.algorithm, Sft | Dpo):
        yield (
            f"{key}: missing. Under {run.algorithm.type} write what is to be followed, "
            f"such as `metric: eval/{names[0]}/loss` with `mode: min`"
        )
    if metric is not None and not any(metric.startswith(f"eval/{name}/") for name in names):
        yield (
            f"{key} ({metric}) is no metric of an evaluation; they begin with "
            f"{' or '.join(f'eval/{name}/' for name in names)}"
        )


def _fused(run: Run) -> Iterator[str]:
    trainer = run.trainer
    if not trainer.optimizer.fused_backward or trainer.microbatch.unit != "sequences":
        return
    tasks = trainer.tasks_per_update or trainer.tasks_per_step
    sequences = tasks * getattr(run.algorithm, "rollouts_per_task", 1)
    if sequences > trainer.microbatch.count:
        yield (
            f"trainer.microbatch ({trainer.microbatch}) is less than an update of {sequences} sequences, and "
            f"{trainer.optimizer.type}, which moves the weights during backward, needs an update whole: "
            f"write `microbatch: {sequences} sequences`, or another optimizer"
        )
