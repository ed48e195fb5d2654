"""Reading of Trinity's `buffer.explorer_input`: training and evaluation tasksets, their workflows and rewards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.compat.ledger.key_mapping import ForeignValues, written_by
from strop.compat.trinity import formats, rewards, workflows
from strop.compat.trinity.buffer_writer import EVAL, TASKSET, write_tasks
from strop.compat.trinity.presets import is_later, is_offline
from strop.compat.trinity.selectors import read_selector
from strop.compat.trinity.workflows import INPUT
from strop.config.schema.reward import RewardFunctionConfig


@written_by(write_tasks)
def tasks(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the training and evaluation tasksets with their workflows and rewards."""
    settings: dict[str, Any] = _order(foreign)
    evaluated = foreign[EVAL] or {}
    places = [f"{EVAL}.{index}" for index in evaluated]
    if not is_offline(foreign):
        if not (places and _trains_on_nothing(foreign)):
            places = [TASKSET, *places]
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


def _order(foreign: ForeignValues) -> dict[str, Any]:
    if is_offline(foreign) or _is_queue(foreign):
        return {"data.shuffle": False}
    return read_selector(foreign, TASKSET)


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
        "rollouts_per_task": 1 if (repeats := _repeats(foreign, at)) is None else repeats,
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
