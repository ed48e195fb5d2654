"""Check, before a model is loaded, that each task source has a scorer under a reward that chooses by the source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from strop.config.effective_reward import effective_reward
from strop.config.schema import Run
from strop.config.schema.algorithm import DpoConfig, SftConfig
from strop.config.schema.data import EvalTasksetConfig, TasksetConfig
from strop.errors import ConfigError
from strop.rewards.registry import SOURCE_REWARDS

_OWN = {"by_source": "reward: file.py:name", "verl_by_source": "custom_reward_function.path and .name"}
"""Keys of a reward function of the user, for each of these rewards."""


def require_known_sources(run: Run) -> None:
    """Raise ConfigError if a taskset has sources without a scorer; DataError if it cannot be read."""
    faults = list(unknown_sources(run))
    if faults:
        raise ConfigError("\n".join(faults))


def unknown_sources(run: Run) -> Iterator[str]:
    """Yield a paragraph for each taskset and each of its sources that its reward does not know.

    Tables that other processes fill, streams, rows that a pipeline prepares, and datasets of a user's class are not
    read. Raises DataError for a taskset that cannot be read.
    """
    if isinstance(run.algorithm, SftConfig | DpoConfig):
        return
    reward = effective_reward(run)
    data = run.data
    is_read = data.queue is None and data.stream is None and data.pipeline is None
    tasksets: list[tuple[str, TasksetConfig]] = [*data.training_tasksets().items()] if is_read else []
    tasksets += [(f"data.eval.{index}", taskset) for index, taskset in enumerate(run.data.eval)]
    for field, taskset in tasksets:
        own = (
            taskset.reward
            if isinstance(taskset, EvalTasksetConfig) and taskset.reward is not None
            else reward
        )
        names = [part.function for part in own.functions if part.function in SOURCE_REWARDS]
        if names and taskset.source is not None and taskset.dataset is None:
            yield from _unknown(f"{field}.source", taskset, taskset.source, names)


def _unknown(field: str, taskset: TasksetConfig, column: str, names: Sequence[str]) -> Iterator[str]:
    from strop.data.sources.columns import value_at
    from strop.data.sources.reader import read_rows

    rows = read_rows(taskset)
    counts: Counter[str] = Counter()
    first: dict[str, str] = {}
    for where, row in zip(rows.locations(), rows.scan([column]), strict=True):
        value = str(value_at(row, column, where))
        counts[value] += 1
        first.setdefault(value, where)
    for name in names:
        known = SOURCE_REWARDS[name]
        for source, found in counts.items():
            if not any(fnmatchcase(source, pattern) for pattern in known):
                yield (
                    f"{field}: {name} has no scorer for the value {source!r} of the column {column!r}, which "
                    f"{found} of {len(rows)} rows have, the first of them {first[source]}. It has one for "
                    f"{', '.join(known)}. Write a reward function of your own ({_OWN[name]}), or one of these names in "
                    "the data."
                )
