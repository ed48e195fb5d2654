"""Checks, before a model is loaded, that the rewards of a run can score its tasks.

Their functions can be called with the columns of the rows; they know each task's source; and each task has an answer
of the kind that they compare with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from strop.config.schema import Run
from strop.config.schema.data import EvalTasksetConfig, TasksetConfig
from strop.config.schema.reward import RewardConfig
from strop.config.schema.rollout import WorkflowConfig
from strop.config.schema.run import effective_reward
from strop.errors import ConfigError, RewardError
from strop.python_rewards import PythonRewards, list_rewards
from strop.rewards.execution.function_spec import RewardFunctionSpec
from strop.rewards.execution.signature import BoundReward, RewardInput
from strop.rewards.registry import REWARD_BY_SOURCE, owner_of
from strop.rewards.scorer import reject_duplicate_names

_WITH_CHECKED_ANSWERS = ("gsm8k", "math", "math_in_text", "code")
"""Rewards whose answers are tried before the run: numbers, expressions, and tests of programs."""
_ENTRY_POINT = "entry_point"
"""Column with the function that the tests of `code` take."""
_WITHOUT_INFO = ("single_turn", "math")
"""Workflows that add no values to the columns that reward functions get."""
_NOTHING = RewardInput("", ({"role": "user", "content": ""},))
"""A response to a task without columns."""


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
    from strop.rewards.builtin.code import code_tests
    from strop.rewards.builtin.gsm8k import expected_number
    from strop.rewards.builtin.math_text import mathematical_answer_text

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


@dataclass(frozen=True, slots=True)
class ScoredTaskset:
    """A taskset whose responses functions score, with what the functions get."""

    field: str
    """Key of the taskset in the run file."""
    taskset: TasksetConfig
    reward_key: str
    """Key of the section of its reward."""
    workflow: WorkflowConfig

    @property
    def has_own_columns(self) -> bool:
        """Whether the columns that functions get are those of the rows: no other class reads them, and the workflow
        adds no values."""
        return self.taskset.dataset is None and self.workflow.name in _WITHOUT_INFO


def scored_tasksets(run: Run) -> list[ScoredTaskset]:
    """The tasksets that are sampled from, without tables that other processes fill, streams, and rows that a pipeline
    prepares."""
    data = run.data
    is_offline = run.algorithm.is_offline
    is_read = not is_offline and data.queue is None and data.stream is None and data.pipeline is None
    found = [
        ScoredTaskset(field, taskset, "reward", run.rollout.workflow)
        for field, taskset in (data.training_tasksets().items() if is_read else ())
    ]
    for index, taskset in enumerate(data.eval):
        if not taskset.is_offline:
            field = f"data.eval.{index}"
            key = "reward" if taskset.reward is None else f"{field}.reward"
            found.append(ScoredTaskset(field, taskset, key, taskset.workflow or run.rollout.workflow))
    return found


def reward_sections(
    run: Run, extra: PythonRewards | None = None
) -> dict[str, tuple[RewardConfig, PythonRewards | None]]:
    """The sections with rewards that score responses, by key, each with its functions from Python."""
    tasksets = scored_tasksets(run)
    is_offline = run.algorithm.is_offline
    found: dict[str, tuple[RewardConfig, PythonRewards | None]] = {}
    if tasksets or not is_offline:
        found["reward"] = (effective_reward(run), extra)
    own = {f"data.eval.{index}.reward": each.reward for index, each in enumerate(run.data.eval)}
    return found | {key: (reward, None) for key, reward in own.items() if reward is not None}


def function_faults(run: Run, extra: PythonRewards | None = None) -> Iterator[str]:
    """Yield a paragraph for each function that cannot be loaded or called, for two components of one name, and for each
    column that a function requires and rows lack. `extra` are functions from Python.

    Functions of the user are imported. Datasets of a user's class are not read, nor what `scored_tasksets` leaves out.
    Raises DataError for a taskset that cannot be read.
    """
    bound: dict[str, list[BoundReward]] = {}
    for key, (section, function) in reward_sections(run, extra).items():
        faults = list(_load(key, section, function, bound))
        if faults:
            yield from faults
            return
    for scored in scored_tasksets(run):
        if scored.has_own_columns:
            for function in bound[scored.reward_key]:
                yield from _missing_columns(scored.field, scored.taskset, function)


def _load(
    key: str,
    section: RewardConfig,
    extra: PythonRewards | None,
    bound: dict[str, list[BoundReward]],
) -> Iterator[str]:
    """Load the functions of a section into `bound`, and yield what is wrong with them."""
    bound[key] = []
    for index, part in enumerate(section.functions):
        try:
            bound[key].append(RewardFunctionSpec.of(part.function, name=part.name, args=part.args).load())
        except RewardError as error:
            yield f"{key}.functions.{index}: {error}"
    try:
        for given in list_rewards(extra):
            bound[key].append(RewardFunctionSpec.of(given.function, name=given.name).load())
        others = [*(model.name for model in section.models), *(judge.name for judge in section.judges)]
        reject_duplicate_names([*(function.name for function in bound[key]), *others])
    except RewardError as error:
        yield f"{key}: {str(error).removeprefix('reward: ')}"


def _missing_columns(field: str, taskset: TasksetConfig, function: BoundReward) -> Iterator[str]:
    """Yield the arguments that a function requires and that a taskset or some of its rows do not have."""
    columns = {"answer": taskset.answer, "source": taskset.source}
    provided = {
        name for name in function.available_arguments(_NOTHING) if columns.get(name, name) is not None
    }
    if not function.required - provided:
        return
    from strop.data.sources.reader import read_rows

    rows = read_rows(taskset)
    unread = {taskset.prompt, taskset.tools}
    known = [name for name in rows[0] if name not in unread]
    for name in sorted(function.required - provided):
        advice = f"Add the column to the rows, or set {name} in the function's args"
        if name in known:
            lacking = [number for number, row in enumerate(rows.scan([name])) if name not in row]
            if not lacking:
                continue
            found = (
                f"which {len(lacking)} of {len(rows)} rows lack, the first of them {rows.where(lacking[0])}"
            )
        elif name in columns:
            found = f"and {field}.{name} is null"
            advice = f"Write the column of the {name} as {field}.{name}"
        else:
            found = f"and {rows.where(0)} has {', '.join(map(repr, known)) or 'no columns but the prompt'}"
        yield (
            f"{field}: the reward {function.name!r} requires the column {name!r}, {found}. {advice}, or give the "
            "parameter a default."
        )
