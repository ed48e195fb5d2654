"""Metrics of the rollouts of a step or an evaluation; `strop/runs/metrics.py` defines each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from strop.protocols import InferenceEngine
from strop.types import FailureCause, Rollout, RolloutGroup


def training_metrics(groups: Sequence[RolloutGroup]) -> dict[str, float]:
    """Metrics of a training step's rollouts."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    scored = _scored(rollouts)
    metrics = {
        "rollouts/count": float(len(rollouts)),
        "rollouts/error_fraction": 1 - len(scored) / len(rollouts),
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
    for part in scored[0].reward_parts:
        values = [rollout.reward_parts[part] for rollout in scored if part in rollout.reward_parts]
        metrics[f"reward/part/{part}"] = float(np.mean(values))
    return metrics


def evaluation_metrics(name: str, groups: Sequence[RolloutGroup]) -> dict[str, float]:
    """Metrics of one eval taskset."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    scored = _scored(rollouts)
    metrics = {
        f"eval/{name}/error_fraction": 1 - len(scored) / len(rollouts),
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
    per_task = max(len(group.rollouts) for group in groups)
    if per_task > 1:
        solved = [any(r.reward >= 1 for r in group.rollouts if r.reward is not None) for group in groups]
        metrics[f"eval/{name}/pass@{per_task}"] = float(np.mean(solved))
    return metrics


def _scored(rollouts: Sequence[Rollout]) -> list[Rollout]:
    return [rollout for rollout in rollouts if rollout.reward is not None]


def _rewards(rollouts: Sequence[Rollout]) -> npt.NDArray[np.float64]:
    return np.array([rollout.reward for rollout in rollouts], dtype=np.float64)


def _response_tokens(rollout: Rollout) -> int:
    return sum(len(turn.completion_ids) for turn in rollout.turns)


def _status_fraction(rollouts: Sequence[Rollout], status: str) -> float:
    return sum(rollout.status == status for rollout in rollouts) / len(rollouts)


def _cause_fraction(rollouts: Sequence[Rollout], cause: FailureCause) -> float:
    return sum(rollout.failure_cause == cause for rollout in rollouts) / len(rollouts)


def _limit_fraction(rollouts: Sequence[Rollout]) -> float:
    return sum(rollout.reward_limit_exceeded for rollout in rollouts) / len(rollouts)


def _has_zero_variance(group: RolloutGroup) -> bool:
    return len({rollout.reward for rollout in _scored(group.rollouts)}) <= 1


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
