"""Ledger rows of Trinity's `buffer.explorer_input`: training and evaluation tasksets, their workflows and
rewards."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from strop.config.schema.reward import RewardFunctionConfig
from strop.dialects.ledger.key_mapping import (
    UNSET,
    ForeignValues,
    KeyMapping,
    also_inactive,
    always,
    mapped,
    no_effect,
    not_on_page,
    only,
    placement,
    refused,
    written_by,
)
from strop.dialects.ledger.value_types import (
    ANY,
    BOOLEAN,
    INTEGER,
    MAPPING,
    MAPPING_LIST,
    NUMBER,
    STRING,
    nullable,
    one_of,
)
from strop.dialects.trinity import formats, rewards, workflows
from strop.dialects.trinity.buffer_writer import EVAL, TASKSET, write_tasks
from strop.dialects.trinity.presets import is_later, is_offline, only_sampled, repeat_times
from strop.dialects.trinity.workflows import INPUT

_STORAGE = one_of("file", "sql", "queue")


@written_by(write_tasks)
def tasks(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the training and evaluation tasksets with their workflows and rewards."""
    settings: dict[str, Any] = {"data.shuffle": _is_shuffled(foreign)}
    evaluated = foreign[EVAL] or {}
    places = [f"{EVAL}.{index}" for index in evaluated]
    if not is_offline(foreign):
        if not (places and _trains_on_nothing(foreign)):
            places = [TASKSET, *places]
        _check_repeats(foreign)
        settings |= {f"data.train.{name}": v for name, v in _taskset(foreign, places[0]).items()}
        settings |= _queue(foreign)
        settings |= {"data.images.unmarked": "start"} if foreign[f"{TASKSET}.format.image_key"] else {}
        settings |= {f"rollout.sampling.{name}": v for name, v in _sampling(foreign, TASKSET).items()}
        settings |= rewards.overlong_penalty(
            foreign, _function(foreign, TASKSET), foreign[f"{TASKSET}.reward_fn_args"] or {}
        )
        if foreign.is_set("model.enable_prompt_truncation"):
            settings["data.overlong"] = "left" if foreign["model.enable_prompt_truncation"] else "error"
    if places:
        settings["rollout.workflow"] = _workflow(foreign, places[0])
        settings["reward.functions"] = _written(foreign, places[0])
    settings["data.eval"] = [_measured(foreign, index, places[0]) for index in evaluated]
    return settings


def _trains_on_nothing(foreign: ForeignValues) -> bool:
    """Mode bench without a taskset to train on: the first evaluation taskset is written in its place."""
    return foreign["mode"] == "bench" and not foreign[f"{TASKSET}.path"]


def _is_shuffled(foreign: ForeignValues) -> bool:
    """Trinity reads the rows in their order, unless a taskset's selector says otherwise."""
    kind = (
        foreign[f"{TASKSET}.task_selector.selector_type"] or foreign[f"{TASKSET}.data_selector.selector_type"]
    )
    return not is_offline(foreign) and not _is_queue(foreign) and kind in ("shuffle", "random")


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
    return {"data.queue": {}}


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
    columns = formats.task_columns(foreign, at)
    if _workflow(foreign, at)["name"] == "trinity" and foreign[f"{at}.format.response_key"] is None:
        columns["answer"] = None
    return {**place(foreign, at), **columns}


def _sampling(foreign: ForeignValues, at: str) -> dict[str, Any]:
    written = {name: foreign[f"{at}.rollout_args.{name}"] for name in ("temperature", "top_p", "top_k")}
    options = {name: foreign[f"model.{name}"] if value is None else value for name, value in written.items()}
    return {
        **options,
        "top_k": max(options["top_k"] or 0, 0),
        "repetition_penalty": foreign["model.repetition_penalty"],
        "min_response_tokens": foreign["model.min_response_tokens"],
        **workflows.evaluation_sampling(foreign, at),
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
    """The reward functions of a taskset, complete, for comparison with those of another."""
    return [RewardFunctionConfig(**function).model_dump() for function in _written(foreign, at)]


def _written(foreign: ForeignValues, at: str) -> list[dict[str, Any]]:
    """The configured reward function; empty where the workflow provides the reward."""
    name, args = _function(foreign, at), foreign[f"{at}.reward_fn_args"] or {}
    workflow = _workflow(foreign, at)
    if workflows.is_unscored(foreign, at) or workflows.brings_reward(workflow, name):
        return []
    with_think = bool((foreign[f"{at}.workflow_args"] or {}).get("with_think"))
    name = workflows.default_reward(foreign, at, name)
    if name is None:
        raise foreign.error_for(
            "buffer.default_reward_fn_type",
            f"write default_reward_fn_type: one of {', '.join(rewards.REWARDS)}, or file.py:function.",
        )
    return rewards.reward_functions(name, args, boxed_with_think=with_think, later=is_later(foreign))


def _function(foreign: ForeignValues, at: str) -> str | None:
    """The taskset's own reward function, or the default of all tasksets."""
    keys = (at, INPUT, "buffer")
    return next(filter(None, (foreign[f"{key}.default_reward_fn_type"] for key in keys)), None)


def _random(foreign: ForeignValues) -> str | None:
    if "random" in (
        foreign[f"{TASKSET}.{name}.selector_type"] for name in ("task_selector", "data_selector")
    ):
        return "Strop draws each task once in an epoch, in a random order"
    return None


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
            no_effect(
                f"{at}.enable_progress_bar",
                False,
                "tasks are read without a progress bar",
                value_type=nullable(BOOLEAN),
            ),
            mapped(
                f"{at}.default_eval_workflow_type",
                None,
                f"{workflow}",
                read=tasks,
                value_type=nullable(STRING),
                inactive=(lambda foreign: "the taskset is trained on") if is_trained else None,
            ),
            text(
                f"{at}.format.image_key",
                None,
                f"{field}.images",
                *(("data.images.unmarked",) if is_trained else ()),
                note="images without a marker <image> stand at the start of the prompt",
            ),
            *(
                refused(f"{at}.format.{name}", default, why, supported=only(None, ""))
                for name, default, why in (
                    ("video_key", None, "Strop trains on text and images"),
                    ("workflow_key", "", "a taskset has one workflow; write one taskset for each"),
                    ("reward_fn_key", "", "a taskset has one reward; write one that chooses by the row"),
                )
            ),
            *(
                mapped(
                    f"{at}.{section}.selector_type",
                    None,
                    "data.shuffle",
                    read=tasks,
                    value_type=nullable(one_of("sequential", "shuffle", "random")),
                    warn=_random,
                    inactive=None
                    if is_trained
                    else (lambda foreign: "evaluations read all tasks in their order"),
                    note="sequential; shuffle and random give each epoch an order of its own",
                )
                for section in ("task_selector", "data_selector")
            ),
            *(
                no_effect(
                    f"{at}.{section}.{name}",
                    UNSET,
                    "a shuffled order is drawn from the run's seed",
                    value_type=ANY,
                )
                for section in ("task_selector", "data_selector")
                for name in ("seed", "feature_keys", "kwargs")
            ),
            *(
                no_effect(
                    f"{at}.{name}", default, "a database is read with Strop's own retries", value_type=ANY
                )
                for name, default in (("max_retry_times", 3), ("max_retry_interval", 1))
            ),
            *(
                no_effect(f"{at}.{name}", UNSET, "Trinity sets it itself", value_type=ANY)
                for name in (
                    "index",
                    "is_eval",
                    "batch_size",
                    "total_epochs",
                    "total_steps",
                    "ray_namespace",
                    "capacity",
                )
            ),
            refused(
                f"{at}.rollout_args.max_tokens",
                None,
                "write model.max_response_tokens, with the same value",
                supported=lambda foreign, value: value in (None, foreign["model.max_response_tokens"]),
            ),
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
    note=f"{', '.join(rewards.REWARDS)}, or file.py:function",
)
WORKFLOW = workflows.type_row("buffer", "rollout.workflow", tasks)
DEFAULTS = not_on_page(
    workflows.type_row(INPUT, "rollout.workflow", tasks),
    mapped(
        f"{INPUT}.default_eval_workflow_type",
        None,
        "data.eval.0.workflow",
        read=tasks,
        value_type=nullable(STRING),
        note="of evaluation tasksets without their own",
    ),
    mapped(
        f"{INPUT}.default_reward_fn_type",
        None,
        "reward.functions.0.function",
        read=tasks,
        value_type=nullable(STRING),
    ),
    mapped(f"{INPUT}.system_prompt", None, "data.train.system", read=tasks, value_type=nullable(STRING)),
    mapped(f"{INPUT}.reply_prefix", None, "data.train.reply_prefix", read=tasks, value_type=nullable(STRING)),
    refused(
        f"{INPUT}.tasksets",
        [],
        "a run trains on one taskset; join the files and write taskset",
        supported=lambda foreign, value: not value,
    ),
)
