"""Checks of the learning rate schedule, the best checkpoint and the optimizer against the other sections."""

from __future__ import annotations

from collections.abc import Iterator

from strop.config.schema.optimizer import ReduceOnPlateauScheduleConfig
from strop.config.schema.run import Run


def optimization_faults(run: Run) -> Iterator[str]:
    """Faults in what optimizer, schedule, `checkpoint.best` and `evaluate.stop_when` require of other sections."""
    yield from _plateau_faults(run)
    yield from _best_faults(run)
    yield from _stop_faults(run)
    yield from _fused_backward_faults(run)


def _plateau_faults(run: Run) -> Iterator[str]:
    schedule = run.trainer.schedule
    if not isinstance(schedule, ReduceOnPlateauScheduleConfig):
        return
    if not run.data.eval or run.evaluate.every is None:
        yield (
            "trainer.schedule: reduce_lr_on_plateau requires evaluations during the run, and there are none; "
            "write tasksets under `data.eval` and `evaluate: {every: 5 steps}`, or another schedule"
        )
        return
    yield from _metric_faults(run, "trainer.schedule.metric", schedule.metric)


def _best_faults(run: Run) -> Iterator[str]:
    best = run.checkpoint.best
    if best is None:
        return
    if not run.data.eval:
        yield (
            "checkpoint.best requires an evaluation, and there is none; write tasksets under `data.eval`, or "
            "remove it to keep the model of the last step"
        )
        return
    yield from _metric_faults(run, "checkpoint.best.metric", best.metric)


def _stop_faults(run: Run) -> Iterator[str]:
    stop = run.evaluate.stop_when
    if stop is None:
        return
    if not run.data.eval or run.evaluate.every is None:
        yield (
            "evaluate.stop_when requires evaluations during the run, and there are none; write tasksets under "
            "`data.eval` and `evaluate: {every: 5 steps}`, or remove it"
        )
        return
    yield from _metric_faults(run, "evaluate.stop_when.metric", stop.metric)


def _metric_faults(run: Run, key: str, metric: str | None) -> Iterator[str]:
    """Faults in the evaluation metric that `key` names."""
    names = [taskset.name for taskset in run.data.eval]
    if metric is None and run.algorithm.is_offline:
        yield (
            f"{key}: missing. Algorithm {run.algorithm.type} has no default metric; write one, such as "
            f"`metric: eval/{names[0]}/loss` with `mode: min`"
        )
    if metric is not None and not any(metric.startswith(f"eval/{name}/") for name in names):
        yield (
            f"{key} ({metric}) is not an evaluation metric of this run; write one that starts with "
            f"{' or '.join(f'eval/{name}/' for name in names)}"
        )


def _fused_backward_faults(run: Run) -> Iterator[str]:
    trainer = run.trainer
    if not trainer.optimizer.fused_backward or trainer.microbatch.unit != "sequences":
        return
    tasks = trainer.tasks_per_update or trainer.tasks_per_step
    sequences = tasks * run.algorithm.rollouts_per_task
    if sequences > trainer.microbatch.count:
        yield (
            f"trainer.microbatch ({trainer.microbatch}) is smaller than an update ({sequences} sequences), "
            "and "
            f"{trainer.optimizer.type} updates the weights during the backward pass, so an update must be "
            "one "
            f"micro-batch; write `microbatch: {sequences} sequences`, or another optimizer"
        )
