"""Trinity's `buffer.explorer_input`: what is sampled from, what is measured, and what scores it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from strop.config.dialects.row import (
    ANY,
    LISTED,
    MAPPING,
    NUMBER,
    TEXT,
    WHOLE,
    Row,
    also_off,
    always,
    beyond_the_page,
    mapped,
    one_of,
    or_null,
    placement,
    written_by,
)
from strop.config.dialects.theirs import Theirs
from strop.config.dialects.trinity import formats, workflows
from strop.config.dialects.trinity.presets import is_offline, only_sampled, repeat_times
from strop.config.dialects.trinity.write_buffer import EVAL, TASKSET, write_tasks
from strop.config.schema.scoring import brought_by
from strop.config.schema.workflow import Workflow

REWARDS = {
    "math_reward": "math",
    "math_boxed_reward": "math",
    "countdown_reward": "countdown",
    "format_reward": "format",
    "accuracy_reward": "math",
}
_STORAGE = one_of("file", "sql", "queue")


@written_by(write_tasks)
def tasks(theirs: Theirs) -> Mapping[str, Any]:
    """What is sampled from, what is measured, and what scores each."""
    settings: dict[str, Any] = {}
    measured = theirs[EVAL] or {}
    places = [*([] if is_offline(theirs) else [TASKSET]), *(f"{EVAL}.{index}" for index in measured)]
    if not is_offline(theirs):
        _check_repeats(theirs)
        settings |= {f"data.train.{name}": v for name, v in _taskset(theirs, TASKSET).items()}
        settings |= _queue(theirs)
        settings |= {f"rollout.sampling.{name}": v for name, v in _sampling(theirs, TASKSET).items()}
    if places:
        settings["rollout.workflow"] = _workflow(theirs, places[0])
        settings["reward.functions"] = _written(theirs, places[0])
    settings["data.eval"] = [_measured(theirs, index, places[0]) for index in measured]
    return settings


def _is_queue(theirs: Theirs) -> bool:
    return bool(theirs[f"{TASKSET}.storage_type"] == "queue")


def _queue(theirs: Theirs) -> dict[str, Any]:
    """What it is to sample from a table that others fill."""
    if not _is_queue(theirs):
        return {}
    if theirs["trainer.total_steps"] is None and theirs["buffer.total_steps"] is None:
        raise theirs.fault(
            "buffer.total_steps", "a queue of tasks has no epochs; write buffer.total_steps, or total_steps."
        )
    return {"data.queue": {}, "data.shuffle": False}


def _measured(theirs: Theirs, index: str, first: str) -> dict[str, Any]:
    """`first` is the taskset whose workflow and reward are the run's."""
    at = f"{EVAL}.{index}"
    workflow, reward = _workflow(theirs, at), _reward(theirs, at)
    return {
        **_taskset(theirs, at),
        "name": theirs[f"{at}.name"] or f"eval{index}",
        "rollouts_per_task": _repeats(theirs, at) or 1,
        "sampling": _sampling(theirs, at),
        "workflow": None if workflow == _workflow(theirs, first) else workflow,
        "reward": None if reward == _reward(theirs, first) else {"functions": reward},
    }


def _workflow(theirs: Theirs, at: str) -> dict[str, Any]:
    return workflows.workflow_of(theirs, at, _function(theirs, at))


def _taskset(theirs: Theirs, at: str) -> dict[str, Any]:
    place = formats.table if at == TASKSET and _is_queue(theirs) else formats.place
    return {**place(theirs, at), **formats.task_columns(theirs, at)}


def _sampling(theirs: Theirs, at: str) -> dict[str, Any]:
    given = {name: theirs[f"{at}.rollout_args.{name}"] for name in ("temperature", "top_p", "top_k")}
    defaults = {"temperature": 1.0, "top_p": 1.0, "top_k": -1}
    said = {name: defaults[name] if value is None else value for name, value in given.items()}
    return {
        **said,
        "top_k": max(said["top_k"], 0),
        "min_response_tokens": theirs["model.min_response_tokens"],
    }


def _repeats(theirs: Theirs, at: str) -> int | None:
    """`repeat_times`, or `rollout_args.n`, which says the same."""
    repeats, count = theirs[f"{at}.repeat_times"], theirs[f"{at}.rollout_args.n"]
    if None not in (repeats, count) and repeats != count:
        raise theirs.fault(
            f"{at}.rollout_args.n",
            f"{at}.rollout_args.n ({count}) differs from {at}.repeat_times ({repeats}); write one of them.",
        )
    return count if repeats is None else repeats


def _check_repeats(theirs: Theirs) -> None:
    said = _repeats(theirs, TASKSET)
    if said is not None and said != repeat_times(theirs):
        name = "repeat_times" if theirs[f"{TASKSET}.repeat_times"] is not None else "rollout_args.n"
        raise theirs.fault(
            f"{TASKSET}.{name}",
            f"{TASKSET}.{name} ({said}) differs from algorithm.repeat_times ({repeat_times(theirs)}); "
            "write one of them, or the same number.",
        )


def _reward(theirs: Theirs, at: str) -> list[dict[str, Any]]:
    """What scores a taskset, whether it is written or its workflow brings it."""
    brought = brought_by(Workflow.model_validate(_workflow(theirs, at)))
    return _written(theirs, at) or [function.model_dump() for function in brought]


def _written(theirs: Theirs, at: str) -> list[dict[str, Any]]:
    """The one function; none where the workflow brings a reward."""
    name, args = _function(theirs, at), theirs[f"{at}.reward_fn_args"] or {}
    if not args and workflows.brings_reward(_workflow(theirs, at), name):
        return []
    if name is None:
        raise theirs.fault(
            "buffer.default_reward_fn_type",
            f"write default_reward_fn_type: one of {', '.join(REWARDS)}, or file.py:function.",
        )
    return [{"function": REWARDS.get(name, name), "args": args}]


def _function(theirs: Theirs, at: str) -> str | None:
    """The taskset's own reward, or else that of all."""
    return theirs[f"{at}.default_reward_fn_type"] or theirs["buffer.default_reward_fn_type"]


def _rows(at: str, ours: str, sampling: str, repeat: str) -> tuple[Row, ...]:
    text = partial(mapped, read=tasks, kind=or_null(TEXT))
    is_trained = ours == "data.train"
    workflow = "rollout.workflow" if is_trained else f"{ours}.workflow"
    function = "reward.functions.0" if is_trained else f"{ours}.reward.functions.0"
    return (
        text(f"{at}.name", None, f"{ours}.table", note="of tasks in a database, the table")
        if is_trained
        else text(f"{at}.name", None, f"{ours}.name", f"{ours}.table", note="of a database, the table too"),
        mapped(
            f"{at}.storage_type",
            None,
            f"{ours}.path",
            *(("data.queue",) if at == TASKSET else ()),
            read=tasks,
            kind=or_null(_STORAGE),
            note="sql is a table of a SQLite or PostgreSQL database, and queue one that is being filled",
        ),
        text(f"{at}.path", None, f"{ours}.path"),
        text(f"{at}.subset_name", None, f"{ours}.subset"),
        text(f"{at}.split", None, f"{ours}.split", note="of a single file there is none"),
        mapped(f"{at}.repeat_times", None, repeat, read=tasks, kind=or_null(WHOLE)),
        *formats.rows(at, tasks, ours, answer="answer"),
        mapped(
            f"{at}.rollout_args.temperature",
            None,
            f"{sampling}.temperature",
            read=tasks,
            kind=or_null(NUMBER),
            note="1.0 where it is left out",
        ),
        workflows.type_row(at, workflow, tasks),
        text(f"{at}.default_reward_fn_type", None, f"{function}.function"),
        workflows.args_row(at, workflow, tasks),
        *formats.prefix_row(at, tasks, ours),
        *beyond_the_page(
            mapped(f"{at}.rollout_args.top_p", None, f"{sampling}.top_p", read=tasks, kind=or_null(NUMBER)),
            mapped(f"{at}.rollout_args.top_k", None, f"{sampling}.top_k", read=tasks, kind=or_null(WHOLE)),
            placement(f"{at}.rollout_args.logprobs", None, "log-probs are always kept", can=always, kind=ANY),
            mapped(
                f"{at}.rollout_args.n",
                None,
                repeat,
                read=tasks,
                kind=or_null(WHOLE),
                note="an older name of repeat_times",
            ),
            mapped(
                f"{at}.reward_fn_args",
                None,
                f"{function}.args",
                read=tasks,
                kind=or_null(MAPPING),
                note="further keyword arguments of the reward",
            ),
        ),
    )


ROWS: tuple[Row, ...] = (
    *(
        also_off(row, only_sampled)
        for row in _rows(TASKSET, "data.train", "rollout.sampling", "algorithm.rollouts_per_task")
    ),
    mapped(EVAL, None, "data.eval", read=tasks, kind=or_null(LISTED)),
    *_rows(f"{EVAL}.0", "data.eval.0", "data.eval.0.sampling", "data.eval.0.rollouts_per_task"),
)
REWARD = mapped(
    "buffer.default_reward_fn_type",
    None,
    "reward.functions.0.function",
    read=tasks,
    kind=or_null(TEXT),
    note=f"{', '.join(f'{theirs}: {ours}' for theirs, ours in REWARDS.items())}, or file.py:function",
)
WORKFLOW = workflows.type_row("buffer", "rollout.workflow", tasks)
