"""Metrics of an evaluation by task source, as verl's `process_validation_metrics` counts them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

from strop.types import Rollout, RolloutGroup

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
