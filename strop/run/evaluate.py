"""Measuring eval tasksets."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from strop.run.explorer import Explorer
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


def evaluate(
    explorer: Explorer,
    tasksets: EvalTasks,
    *,
    max_response_tokens: int,
    step: int,
) -> Evaluation:
    """Sample and score every eval task with the current weights."""
    started = time.perf_counter()
    metrics: dict[str, float] = {}
    groups: dict[str, list[Group]] = {}
    for section, taskset in tasksets:
        explored = explorer.run(
            taskset.all_tasks(),
            section.rollouts_per_task,
            sampling_of(section.sampling, max_response_tokens),
            purpose=f"eval-{section.name}",
            step=step,
        )
        groups[section.name] = explored.groups
        metrics |= evaluation_metrics(section.name, explored.groups)
    metrics["time/evaluate_seconds"] = time.perf_counter() - started
    return Evaluation(metrics, groups)
