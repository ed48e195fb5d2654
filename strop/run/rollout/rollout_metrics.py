"""Metrics of the rollouts of a step or an evaluation, also by source; `strop/runs/metrics.py` defines each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

from strop.algorithms.algorithm import has_reward_variance
from strop.protocols import InferenceEngine
from strop.reward_comparison import reaches
from strop.types import FailureCause, Rollout, RolloutGroup

IndexArray = npt.NDArray[np.int64]

_DRAWS = 1000
_SEED = 42
"""verl's number of bootstrap draws, and their seed."""


def source_metrics(groups: Sequence[RolloutGroup], k: int) -> dict[str, float]:
    """Metrics `<source>/<variable>/<metric>` of the scored rollouts of each source, of `k` rollouts for each task:

        mean@k        mean of the tasks' means
        best@k/mean   mean of the highest value among k draws from a task's rollouts with replacement
        maj@k/mean    mean of the value of the most frequent prediction among k such draws

    The variables are verl's: `acc`, where a reward function returns a part of this name, or else `reward`; the other
    parts have `mean@k` alone. The draws of `best` and `maj`, which one rollout does not have, are those of verl's
    bootstrap, so equal values give equal metrics. `maj` needs a prediction of each of a task's rollouts.
    """
    values: dict[str, list[float]] = defaultdict(list)
    tables = [(group.task.source, [r for r in group.rollouts if r.reward is not None]) for group in groups]
    for source, rollouts in tables:
        if source and rollouts:
            for name, value in _task_metrics(rollouts, k):
                values[f"{source}/{name}"].append(value)
    return {name: float(np.mean(found)) for name, found in values.items()}


def _task_metrics(rollouts: Sequence[Rollout], k: int) -> Iterator[tuple[str, float]]:
    """The metrics of one task; a part that only some rollouts have is averaged over these."""
    parts: dict[str, list[float]] = defaultdict(list)
    for rollout in rollouts:
        for name, value in rollout.reward_parts.items():
            parts[name].append(value)
    accuracy = next((name for name in parts if name.rpartition("/")[2] == "acc"), None)
    core, values = "reward", [rollout.reward for rollout in rollouts if rollout.reward is not None]
    yield f"reward/mean@{k}", float(np.mean(values))
    for name, found in parts.items():
        yield f"{'acc' if name == accuracy else name}/mean@{k}", float(np.mean(found))
    if accuracy is not None and len(parts[accuracy]) == len(rollouts):
        core, values = "acc", parts[accuracy]
    if k == 1:
        return
    numbers, draws = np.array(values, dtype=np.float64), _bootstrap(len(values), k)
    yield f"{core}/best@{k}/mean", float(numbers[draws].max(axis=1).mean())
    predictions = [rollout.prediction for rollout in rollouts]
    if None not in predictions:
        yield f"{core}/maj@{k}/mean", float(numbers[_majority(predictions, draws)].mean())


@cache
def _bootstrap(values: int, k: int) -> IndexArray:
    """[draws, k] Indices of `values` values, those of `np.random.choice` after `np.random.seed(42)`."""
    draws: IndexArray = np.random.RandomState(_SEED).choice(values, size=(_DRAWS, k), replace=True)
    return draws


def _majority(predictions: Sequence[Hashable], draws: IndexArray) -> IndexArray:
    """[draws] Index of the first drawn value whose prediction is the most frequent of its draw; of equally frequent
    ones, the one that was drawn first."""
    codes = np.unique(np.array(predictions, dtype=str), return_inverse=True)[1]
    drawn = codes[draws]
    votes = (drawn[:, :, None] == drawn[:, None, :]).sum(axis=2)
    first = votes.argmax(axis=1)
    winners: IndexArray = draws[np.arange(len(draws)), first]
    return winners


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
