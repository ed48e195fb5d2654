"""What a step's or an evaluation's rollouts say, as numbers. `metrics.py` defines each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from strop.types import Cause, Group, Rollout


def training_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Metrics of a step's rollouts."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    scored = _scored(rollouts)
    metrics = {
        "rollouts/count": float(len(rollouts)),
        "rollouts/error_share": 1 - len(scored) / len(rollouts),
        "rollouts/failed_share": _caused(rollouts, "failed"),
        "rollouts/late_share": _caused(rollouts, "late"),
        "rollouts/retries": float(sum(rollout.attempts - 1 for rollout in rollouts)),
    }
    if not scored:
        return metrics
    rewards = _rewards(scored)
    answers = np.array([_response_tokens(rollout) for rollout in scored], dtype=np.float64)
    metrics |= {
        "reward/mean": float(rewards.mean()),
        "reward/std": float(rewards.std()),
        "reward/min": float(rewards.min()),
        "reward/max": float(rewards.max()),
        "rollouts/truncated_share": _share(scored, "truncated"),
        "rollouts/turns": float(np.mean([len(rollout.turns) for rollout in scored])),
        "groups/no_signal_share": float(np.mean([_no_signal(group) for group in groups])),
        "prompt_tokens/mean": float(np.mean([len(group.task.prompt_ids) for group in groups])),
        "response_tokens/mean": float(answers.mean()),
        "response_tokens/max": float(answers.max()),
        "sampled_tokens": float(answers.sum()),
    }
    for part in scored[0].reward_parts:
        values = [rollout.reward_parts[part] for rollout in scored if part in rollout.reward_parts]
        metrics[f"reward/part/{part}"] = float(np.mean(values))
    return metrics


def evaluation_metrics(name: str, groups: Sequence[Group]) -> dict[str, float]:
    """Metrics of one eval taskset."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    scored = _scored(rollouts)
    metrics = {
        f"eval/{name}/error_share": 1 - len(scored) / len(rollouts),
        f"eval/{name}/late_share": _caused(rollouts, "late"),
    }
    if not scored:
        return metrics
    metrics |= {
        f"eval/{name}/reward": float(_rewards(scored).mean()),
        f"eval/{name}/response_tokens": float(np.mean([_response_tokens(rollout) for rollout in scored])),
        f"eval/{name}/truncated_share": _share(scored, "truncated"),
    }
    per_task = max(len(group.rollouts) for group in groups)
    if per_task > 1:
        solved = [any(r.reward >= 1 for r in group.rollouts if r.reward is not None) for group in groups]
        metrics[f"eval/{name}/pass@{per_task}"] = float(np.mean(solved))
    return metrics


def _scored(rollouts: Sequence[Rollout]) -> list[Rollout]:
    return [rollout for rollout in rollouts if rollout.reward is not None]


def _rewards(rollouts: Sequence[Rollout]) -> np.ndarray:
    return np.array([rollout.reward for rollout in rollouts], dtype=np.float64)


def _response_tokens(rollout: Rollout) -> int:
    return sum(len(turn.completion_ids) for turn in rollout.turns)


def _share(rollouts: Sequence[Rollout], status: str) -> float:
    return sum(rollout.status == status for rollout in rollouts) / len(rollouts)


def _caused(rollouts: Sequence[Rollout], cause: Cause) -> float:
    return sum(rollout.cause == cause for rollout in rollouts) / len(rollouts)


def _no_signal(group: Group) -> bool:
    return len({rollout.reward for rollout in _scored(group.rollouts)}) <= 1
