"""Evaluation of the eval tasksets by the reward of sampled responses."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from strop.config.schema import Run
from strop.config.schema.run import effective_reward
from strop.run.rollout.explorer import Explorer, check_error_fraction
from strop.run.rollout.rollout_metrics import evaluation_metrics
from strop.run.rollout.rollout_services import sampling_params
from strop.run.rollout.tasks import EvalTasksets
from strop.types import RolloutGroup


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Metrics and rollouts of an evaluation of all eval tasksets."""

    metrics: dict[str, float]
    groups: Mapping[str, list[RolloutGroup]]
    """Groups by name of the taskset."""


def evaluate(run: Run, explorer: Explorer, tasksets: EvalTasksets, *, step: int) -> Evaluation:
    """Sample and score every eval task with the current weights.

    Raises `RolloutError` if too many rollouts of a taskset fail.
    """
    started = time.perf_counter()
    metrics: dict[str, float] = {}
    groups: dict[str, list[RolloutGroup]] = {}
    for section, taskset in tasksets:
        explored = explorer.run(
            taskset.all_tasks(),
            section.rollouts_per_task,
            sampling_params(section.sampling, run.data.max_response_tokens),
            purpose=f"eval-{section.name}",
            step=step,
        )
        check_error_fraction(explored.groups, run.rollout.max_error_fraction)
        groups[section.name] = explored.groups
        reward = section.reward or effective_reward(run)
        metrics |= evaluation_metrics(section.name, explored.groups, reward.correct_at)
    metrics["time/evaluate_seconds"] = time.perf_counter() - started
    return Evaluation(metrics, groups)
