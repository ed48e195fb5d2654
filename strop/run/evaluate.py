"""Measuring eval tasksets."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from strop.config.schema import Run
from strop.run.explorer import Explorer, check_errors
from strop.run.rollout_metrics import evaluation_metrics
from strop.run.sampling import sampling_of
from strop.run.tasks import EvalTasks
from strop.types import Group


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What an evaluation of all eval tasksets gave."""

    metrics: dict[str, float]
    groups: Mapping[str, list[Group]]
    """By taskset."""


def evaluate(run: Run, explorer: Explorer, tasksets: EvalTasks, *, step: int) -> Evaluation:
    """Sample and score every eval task with the current weights. Raises `RolloutError` like a step does."""
    started = time.perf_counter()
    metrics: dict[str, float] = {}
    groups: dict[str, list[Group]] = {}
    for section, taskset in tasksets:
        explored = explorer.run(
            taskset.all_tasks(),
            section.rollouts_per_task,
            sampling_of(section.sampling, run.data.max_response_tokens),
            purpose=f"eval-{section.name}",
            step=step,
        )
        check_errors(explored.groups, run.rollout.max_error_share)
        groups[section.name] = explored.groups
        metrics |= evaluation_metrics(section.name, explored.groups)
    metrics["time/evaluate_seconds"] = time.perf_counter() - started
    return Evaluation(metrics, groups)
