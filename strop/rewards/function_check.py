"""Check, before a model is loaded, that the reward functions of a run can be called with the columns of its rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from strop.config.schema import Run
from strop.config.schema.data import TasksetConfig
from strop.config.schema.reward import RewardConfig
from strop.config.schema.rollout import WorkflowConfig
from strop.config.schema.run import effective_reward
from strop.errors import RewardError
from strop.python_rewards import PythonRewards, list_rewards
from strop.rewards.execution.function_spec import RewardFunctionSpec
from strop.rewards.execution.signature import BoundReward, RewardInput
from strop.rewards.scorer import reject_duplicate_names

_WITHOUT_INFO = ("single_turn", "math")
"""Workflows that add no values to the columns that reward functions get."""


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


_NOTHING = RewardInput("", ({"role": "user", "content": ""},))
"""A response to a task without columns."""
