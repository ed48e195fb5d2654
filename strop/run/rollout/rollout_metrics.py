"""Metrics of the rollouts of a step or an evaluation; `strop/runs/metrics.py` defines each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from strop.algorithms.groups import has_reward_variance
from strop.protocols import InferenceEngine
from strop.reward_comparison import reaches
from strop.run.rollout.source_metrics import source_metrics
from strop.types import FailureCause, Rollout, RolloutGroup


def training_metrics(groups: Sequence[RolloutGroup]) -> dict[str, float]:
    """Metrics of a training step's rollouts."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    scored = _scored(rollouts)
    metrics = {
        "rollouts/count": float(len(rollouts)),
        "rollouts/error_fraction": _failed_fraction(rollouts),
        "rollouts/unscored_fraction": _cause_fraction(rollouts, "unscored"),
        "rollouts/workflow_error_fraction": _cause_fraction(rollouts, "failed"),
        "rollouts/timeout_fraction": _cause_fraction(rollouts, "timeout"),
        "rollouts/reward_limit_fraction": _limit_fraction(rollouts),
        "rollouts/retries": float(sum(rollout.attempts - 1 for rollout in rollouts)),
    }
    if not scored:
        return metrics
    rewards = _rewards(scored)
    lengths = np.array([_response_tokens(rollout) for rollout in scored], dtype=np.float64)
    metrics |= {
        "reward/mean": float(rewards.mean()),
        "reward/std": float(rewards.std()),
        "reward/min": float(rewards.min()),
        "reward/max": float(rewards.max()),
        "rollouts/truncated_fraction": _status_fraction(scored, "truncated"),
        "rollouts/turns": float(np.mean([len(rollout.turns) for rollout in scored])),
        "groups/zero_variance_fraction": float(np.mean([_has_zero_variance(group) for group in groups])),
        "prompt_tokens/mean": float(np.mean([len(group.task.prompt_ids) for group in groups])),
        "response_tokens/mean": float(lengths.mean()),
        "response_tokens/max": float(lengths.max()),
        "sampled_tokens": float(lengths.sum()),
    }
    metrics |= {f"reward/part/{part}": mean for part, mean in _part_means(scored)}
    for source, own in _by_source(groups).items():
        metrics[f"reward/source/{source}/mean"] = float(_rewards(own).mean())
        metrics |= {f"reward/source/{source}/part/{part}": mean for part, mean in _part_means(own)}
    return metrics


def evaluation_metrics(
    name: str, groups: Sequence[RolloutGroup], correct_at: float = 1.0
) -> dict[str, float]:
    """Metrics of one eval taskset; a response with a reward of `correct_at` or more is correct."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    scored = _scored(rollouts)
    metrics = {
        f"eval/{name}/error_fraction": _failed_fraction(rollouts),
        f"eval/{name}/unscored_fraction": _cause_fraction(rollouts, "unscored"),
        f"eval/{name}/timeout_fraction": _cause_fraction(rollouts, "timeout"),
        f"eval/{name}/reward_limit_fraction": _limit_fraction(rollouts),
    }
    if not scored:
        return metrics
    metrics |= {
        f"eval/{name}/reward": float(_rewards(scored).mean()),
        f"eval/{name}/response_tokens": float(np.mean([_response_tokens(rollout) for rollout in scored])),
        f"eval/{name}/truncated_fraction": _status_fraction(scored, "truncated"),
    }
    metrics |= {f"eval/{name}/part/{part}/mean": mean for part, mean in _part_means(scored)}
    per_task = max(len(group.rollouts) for group in groups)
    if per_task > 1:
        solved = [
            any(reaches(r.reward, correct_at) for r in group.rollouts if r.reward is not None)
            for group in groups
            if any(r.failure_cause != "unscored" for r in group.rollouts)
        ]
        metrics[f"eval/{name}/pass@{per_task}"] = float(np.mean(solved))
    by_source = source_metrics(groups, per_task)
    return metrics | {f"eval/{name}/source/{key}": value for key, value in by_source.items()}


def _scored(rollouts: Sequence[Rollout]) -> list[Rollout]:
    return [rollout for rollout in rollouts if rollout.reward is not None]


def _part_means(scored: Sequence[Rollout]) -> Iterator[tuple[str, float]]:
    """Each part of the rewards, and its mean over the rollouts that have it."""
    values: dict[str, list[float]] = defaultdict(list)
    for rollout in scored:
        for part, value in rollout.reward_parts.items():
            values[part].append(value)
    return ((part, float(np.mean(found))) for part, found in values.items())


def _by_source(groups: Sequence[RolloutGroup]) -> Mapping[str, list[Rollout]]:
    """Scored rollouts of each task source; nothing for tasks without a source."""
    found: dict[str, list[Rollout]] = defaultdict(list)
    for group in groups:
        if group.task.source and (scored := _scored(group.rollouts)):
            found[group.task.source] += scored
    return found


def _rewards(rollouts: Sequence[Rollout]) -> npt.NDArray[np.float64]:
    return np.array([rollout.reward for rollout in rollouts], dtype=np.float64)


def _response_tokens(rollout: Rollout) -> int:
    return sum(len(turn.completion_ids) for turn in rollout.turns)


def _status_fraction(rollouts: Sequence[Rollout], status: str) -> float:
    return sum(rollout.status == status for rollout in rollouts) / len(rollouts)


def _cause_fraction(rollouts: Sequence[Rollout], cause: FailureCause) -> float:
    return sum(rollout.failure_cause == cause for rollout in rollouts) / len(rollouts)


def _failed_fraction(rollouts: Sequence[Rollout]) -> float:
    """Fraction of rollouts without a reward, except for those that all reward functions leave out."""
    return 1 - len(_scored(rollouts)) / len(rollouts) - _cause_fraction(rollouts, "unscored")


def _limit_fraction(rollouts: Sequence[Rollout]) -> float:
    return sum(rollout.reward_limit_exceeded for rollout in rollouts) / len(rollouts)


def _has_zero_variance(group: RolloutGroup) -> bool:
    return not has_reward_variance(
        [rollout.reward for rollout in group.rollouts if rollout.reward is not None]
    )


def engine_metrics(engine: InferenceEngine) -> dict[str, float]:
    """Load of the inference engine since the last call; nothing for an engine that does not record it."""
    statistics = engine.take_statistics()
    if statistics is None:
        return {}
    speed = {}
    if statistics.busy_seconds > 0:
        speed["engine/tokens_per_second"] = statistics.sampled_tokens / statistics.busy_seconds
    return speed | {
        "engine/max_running": float(statistics.max_running),
        "engine/max_waiting": float(statistics.max_waiting),
        "engine/max_kv_usage": statistics.max_kv_usage,
        "engine/cached_prompt_fraction": statistics.cached_prompt_tokens / max(1, statistics.prompt_tokens),
        "engine/preemptions": float(statistics.preemptions),
    }
