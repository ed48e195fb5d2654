"""Ledger rows of Trinity's `buffer.explorer_input`: training and evaluation tasksets, their workflows and
rewards."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from strop.config.effective_reward import workflow_rewards
from strop.config.schema.workflow import WorkflowConfig
from strop.dialects.ledger.key_mapping import (
    ForeignValues,
    KeyMapping,
    also_inactive,
    always,
    mapped,
    not_on_page,
    placement,
    written_by,
)
from strop.dialects.ledger.value_types import (
    ANY,
    INTEGER,
    MAPPING,
    MAPPING_LIST,
    NUMBER,
    STRING,
    nullable,
    one_of,
)
from strop.dialects.trinity import formats, workflows
from strop.dialects.trinity.buffer_writer import EVAL, TASKSET, write_tasks
from strop.dialects.trinity.presets import is_offline, only_sampled, repeat_times

REWARDS = {
    "math_reward": "math",
    "math_boxed_reward": "math",
    "countdown_reward": "countdown",
    "format_reward": "format",
    "accuracy_reward": "math",
}
_STORAGE = one_of("file", "sql", "queue")


@written_by(write_tasks)
def tasks(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the training and evaluation tasksets with their workflows and rewards."""
    settings: dict[str, Any] = {}
    evaluated = foreign[EVAL] or {}
    places = [*([] if is_offline(foreign) else [TASKSET]), *(f"{EVAL}.{index}" for index in evaluated)]
    if not is_offline(foreign):
        _check_repeats(foreign)
        settings |= {f"data.train.{name}": v for name, v in _taskset(foreign, TASKSET).items()}
        settings |= _queue(foreign)
        settings |= {f"rollout.sampling.{name}": v for name, v in _sampling(foreign, TASKSET).items()}
    if places:
        settings["rollout.workflow"] = _workflow(foreign, places[0])
        settings["reward.functions"] = _written(foreign, places[0])
    settings["data.eval"] = [_measured(foreign, index, places[0]) for index in evaluated]
    return settings


def _is_queue(foreign: ForeignValues) -> bool:
    return bool(foreign[f"{TASKSET}.storage_type"] == "queue")


def _queue(foreign: ForeignValues) -> dict[str, Any]:
    """The run-file fields of a task queue: a table that other processes fill during the run."""
    if not _is_queue(foreign):
        return {}
    if foreign["trainer.total_steps"] is None and foreign["buffer.total_steps"] is None:
        raise foreign.error_for(
            "buffer.total_steps",
            "a queue of tasks has no epochs; write buffer.total_steps or trainer.total_steps.",
        )
    return {"data.queue": {}, "data.shuffle": False}


def _measured(foreign: ForeignValues, index: str, first: str) -> dict[str, Any]:
    """The fields of one evaluation taskset. `first` is the taskset whose workflow and reward are the
    run's."""
    at = f"{EVAL}.{index}"
    workflow, reward = _workflow(foreign, at), _reward(foreign, at)
    return {
        **_taskset(foreign, at),
        "name": foreign[f"{at}.name"] or f"eval{index}",
        "rollouts_per_task": _repeats(foreign, at) or 1,
        "sampling": _sampling(foreign, at),
        "workflow": None if workflow == _workflow(foreign, first) else workflow,
        "reward": None if reward == _reward(foreign, first) else {"functions": reward},
    }


def _workflow(foreign: ForeignValues, at: str) -> dict[str, Any]:
    return workflows.workflow_of(foreign, at, _function(foreign, at))


def _taskset(foreign: ForeignValues, at: str) -> dict[str, Any]:
    place = formats.table if at == TASKSET and _is_queue(foreign) else formats.row_source
    return {**place(foreign, at), **formats.task_columns(foreign, at)}


def _sampling(foreign: ForeignValues, at: str) -> dict[str, Any]:
    written = {name: foreign[f"{at}.rollout_args.{name}"] for name in ("temperature", "top_p", "top_k")}
    defaults = {"temperature": 1.0, "top_p": 1.0, "top_k": -1}
    options = {name: defaults[name] if value is None else value for name, value in written.items()}
    return {
        **options,
        "top_k": max(options["top_k"], 0),
        "min_response_tokens": foreign["model.min_response_tokens"],
    }


def _repeats(foreign: ForeignValues, at: str) -> int | None:
    """The number of rollouts per task: `repeat_times`, or its older name `rollout_args.n`."""
    repeats, count = foreign[f"{at}.repeat_times"], foreign[f"{at}.rollout_args.n"]
    if None not in (repeats, count) and repeats != count:
        raise foreign.error_for(
            f"{at}.rollout_args.n",
            f"{at}.rollout_args.n ({count}) differs from {at}.repeat_times ({repeats}); write one of them.",
        )
    return count if repeats is None else repeats


def _check_repeats(foreign: ForeignValues) -> None:
    repeats = _repeats(foreign, TASKSET)
    if repeats is not None and repeats != repeat_times(foreign):
        name = "repeat_times" if foreign[f"{TASKSET}.repeat_times"] is not None else "rollout_args.n"
        raise foreign.error_for(
            f"{TASKSET}.{name}",
            f"{TASKSET}.{name} ({repeats}) differs from algorithm.repeat_times ({repeat_times(foreign)}); "
            "write one of them, or the same number.",
        )


def _reward(foreign: ForeignValues, at: str) -> list[dict[str, Any]]:
    """The reward functions of a taskset: configured, or provided by its workflow."""
    provided = workflow_rewards(WorkflowConfig.model_validate(_workflow(foreign, at)))
    return _written(foreign, at) or [function.model_dump() for function in provided]


def _written(foreign: ForeignValues, at: str) -> list[dict[str, Any]]:
    """The configured reward function; empty where the workflow provides the reward."""
    name, args = _function(foreign, at), foreign[f"{at}.reward_fn_args"] or {}
    if not args and workflows.brings_reward(_workflow(foreign, at), name):
        return []
    if name is None:
        raise foreign.error_for(
            "buffer.default_reward_fn_type",
            f"write default_reward_fn_type: one of {', '.join(REWARDS)}, or file.py:function.",
        )
    return [{"function": REWARDS.get(name, name), "args": args}]


def _function(foreign: ForeignValues, at: str) -> str | None:
    """The taskset's own reward function, or the default of all tasksets."""
    return foreign[f"{at}.default_reward_fn_type"] or foreign["buffer.default_reward_fn_type"]


def _rows(at: str, field: str, sampling: str, repeat: str) -> tuple[KeyMapping, ...]:
    text = partial(mapped, read=tasks, value_type=nullable(STRING))
    is_trained = field == "data.train"
    workflow = "rollout.workflow" if is_trained else f"{field}.workflow"
    function = "reward.functions.0" if is_trained else f"{field}.reward.functions.0"
    return (
        text(f"{at}.name", None, f"{field}.table", note="the table name for tasks in a database")
        if is_trained
        else text(
            f"{at}.name",
            None,
            f"{field}.name",
            f"{field}.table",
            note="also the table name for tasks in a database",
        ),
        mapped(
            f"{at}.storage_type",
            None,
            f"{field}.path",
            *(("data.queue",) if at == TASKSET else ()),
            read=tasks,
            value_type=nullable(_STORAGE),
            note="sql is a table of a SQLite or PostgreSQL database; queue is a table that other processes fill during "
            "the run",
        ),
        text(f"{at}.path", None, f"{field}.path"),
        text(f"{at}.subset_name", None, f"{field}.subset"),
        text(f"{at}.split", None, f"{field}.split", note="ignored for a single file"),
        mapped(f"{at}.repeat_times", None, repeat, read=tasks, value_type=nullable(INTEGER)),
        *formats.rows(at, tasks, field, answer="answer"),
        mapped(
            f"{at}.rollout_args.temperature",
            None,
            f"{sampling}.temperature",
            read=tasks,
            value_type=nullable(NUMBER),
            note="null means 1.0",
        ),
        workflows.type_row(at, workflow, tasks),
        text(f"{at}.default_reward_fn_type", None, f"{function}.function"),
        workflows.args_row(at, workflow, tasks),
        *formats.prefix_row(at, tasks, field),
        *not_on_page(
            mapped(
                f"{at}.rollout_args.top_p", None, f"{sampling}.top_p", read=tasks, value_type=nullable(NUMBER)
            ),
            mapped(
                f"{at}.rollout_args.top_k",
                None,
                f"{sampling}.top_k",
                read=tasks,
                value_type=nullable(INTEGER),
            ),
            placement(
                f"{at}.rollout_args.logprobs",
                None,
                "log-probs are always recorded",
                supported=always,
                value_type=ANY,
            ),
            mapped(
                f"{at}.rollout_args.n",
                None,
                repeat,
                read=tasks,
                value_type=nullable(INTEGER),
                note="older name of repeat_times",
            ),
            mapped(
                f"{at}.reward_fn_args",
                None,
                f"{function}.args",
                read=tasks,
                value_type=nullable(MAPPING),
                note="keyword arguments of the reward function",
            ),
        ),
    )


ROWS: tuple[KeyMapping, ...] = (
    *(
        also_inactive(row, only_sampled)
        for row in _rows(TASKSET, "data.train", "rollout.sampling", "algorithm.rollouts_per_task")
    ),
    mapped(EVAL, None, "data.eval", read=tasks, value_type=nullable(MAPPING_LIST)),
    *_rows(f"{EVAL}.0", "data.eval.0", "data.eval.0.sampling", "data.eval.0.rollouts_per_task"),
)
REWARD = mapped(
    "buffer.default_reward_fn_type",
    None,
    "reward.functions.0.function",
    read=tasks,
    value_type=nullable(STRING),
    note=", ".join(f"{foreign_name}: {name}" for foreign_name, name in REWARDS.items())
    + ", or file.py:function",
)
WORKFLOW = workflows.type_row("buffer", "rollout.workflow", tasks)
