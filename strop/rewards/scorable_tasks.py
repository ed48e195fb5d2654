"""Check, before a model is loaded, that the rewards can score all tasks: that they know each task's source, and that
each task has an answer of the kind that they compare with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from strop.config.schema import Run
from strop.config.schema.data import EvalTasksetConfig, TasksetConfig
from strop.config.schema.run import effective_reward
from strop.errors import ConfigError
from strop.python_rewards import PythonRewards
from strop.rewards.function_check import function_faults
from strop.rewards.registry import REWARD_BY_SOURCE, owner_of

_WITH_CHECKED_ANSWERS = ("gsm8k", "math", "math_in_text", "code")
"""Rewards whose answers are tried before the run: numbers, expressions, and tests of programs."""
_ENTRY_POINT = "entry_point"
"""Column with the function that the tests of `code` take."""


def require_scorable_tasks(run: Run, extra: PythonRewards | None = None) -> None:
    """Raise ConfigError for `scoring_faults`; DataError if a taskset cannot be read."""
    faults = list(scoring_faults(run, extra))
    if faults:
        raise ConfigError("\n".join(faults))


def scoring_faults(run: Run, extra: PythonRewards | None = None) -> Iterator[str]:
    """Yield what is wrong with the reward functions, `extra` from Python included, or else with the tasks that they
    score."""
    faults = list(function_faults(run, extra))
    yield from faults or unscorable_tasks(run)


def unscorable_tasks(run: Run) -> Iterator[str]:
    """Yield a paragraph for each taskset and each of its sources that its reward does not know, and for each reward
    that cannot use an answer of the taskset.

    Tables that other processes fill, streams, rows that a pipeline prepares, and datasets of a user's class are not
    read. Raises DataError for a taskset that cannot be read.
    """
    if run.algorithm.is_offline:
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
        functions = [part.function for part in own.functions]
        source_rewards = [
            name for name in functions if name in owner_of(name).sources and taskset.source is not None
        ]
        answer_rewards = [
            name for name in functions if name in _WITH_CHECKED_ANSWERS and taskset.answer is not None
        ]
        if (source_rewards or answer_rewards) and taskset.dataset is None:
            yield from _faults(field, taskset, source_rewards, answer_rewards)


@dataclass(slots=True)
class _BadAnswers:
    """Answers that a reward cannot use: their number, and where the first is and what is wrong with it."""

    count: int
    where: str
    message: str


def _faults(
    field: str, taskset: TasksetConfig, source_rewards: Sequence[str], answer_rewards: Sequence[str]
) -> Iterator[str]:
    from strop.data.sources.columns import value_at
    from strop.data.sources.reader import read_rows

    rows = read_rows(taskset)
    by_source = "by_source" in source_rewards and taskset.answer is not None
    source = taskset.source if source_rewards else None
    answer = taskset.answer if answer_rewards or by_source else None
    counts: Counter[str] = Counter()
    first: dict[str, str] = {}
    bad: dict[str, _BadAnswers] = {}
    columns = [column for column in (source, answer) if column is not None]
    # A scan for a column that is not there reads all columns of all rows.
    has_entry_point = ("code" in answer_rewards or by_source) and _ENTRY_POINT in rows[0]
    if has_entry_point:
        columns.append(_ENTRY_POINT)
    for where, row in zip(rows.locations(), rows.scan(columns), strict=True):
        names = list(answer_rewards)
        if source is not None:
            value = str(value_at(row, source, where))
            counts[value] += 1
            first.setdefault(value, where)
            if by_source and (name := _reward_of(value, REWARD_BY_SOURCE)) in _WITH_CHECKED_ANSWERS:
                names.append(name)
        if answer is not None:
            entry_point = row.get(_ENTRY_POINT) if has_entry_point else None
            _check_answer(value_at(row, answer, where), entry_point, names, where, bad)
    for name, found in bad.items():
        yield (
            f"{field}.answer: {found.count} of {len(rows)} rows have an answer in the column {answer!r} that the "
            f"reward {name} cannot use. The first is {found.where}: {found.message}. Correct or remove these rows."
        )
    for name in source_rewards:
        yield from _unknown(f"{field}.source", str(source), name, counts, first)


def _check_answer(
    answer: Any, entry_point: str | None, rewards: Sequence[str], where: str, bad: dict[str, _BadAnswers]
) -> None:
    """Add an answer that a reward cannot use to `bad`."""
    for name in rewards:
        try:
            _required_answer(name, entry_point)(answer)
        except ValueError as error:
            bad.setdefault(name, _BadAnswers(0, where, str(error))).count += 1


def _required_answer(reward: str, entry_point: str | None) -> Callable[[Any], object]:
    """Function that raises ValueError for a task's answer that a reward cannot use."""
    from strop.rewards.builtin.answer_values import mathematical_answer_text
    from strop.rewards.builtin.gsm8k import expected_number
    from strop.rewards.code.cases import code_tests

    match reward:
        case "gsm8k":
            return expected_number
        case "code":
            return lambda answer: code_tests("", answer, entry_point=entry_point, separate=False)
        case _:
            return mathematical_answer_text


def _reward_of(source: str, table: Mapping[str, str]) -> str | None:
    return next((name for pattern, name in table.items() if fnmatchcase(source, pattern)), None)


def _unknown(
    field: str, column: str, name: str, counts: Counter[str], first: Mapping[str, str]
) -> Iterator[str]:
    owner = owner_of(name)
    known = owner.sources[name]
    for source, found in counts.items():
        if _reward_of(source, known) is None:
            yield (
                f"{field}: {name} has no scorer for the value {source!r} of the column {column!r}, which "
                f"{found} of {counts.total()} rows have, the first of them {first[source]}. It has one for "
                f"{', '.join(known)}. Write a reward function of your own ({owner.own_reward}), or one of these names "
                "in the data."
            )
