"""Trinity's `buffer`: tasks, given answers, and how many of them make a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from strop.config.dialects.row import (
    ANY,
    NUMBER,
    TEXT,
    WHOLE,
    Row,
    always,
    beyond_the_page,
    mapped,
    no_effect,
    one_of,
    only,
    or_null,
    placement,
    refused,
    unless,
    written_by,
)
from strop.config.dialects.theirs import Theirs
from strop.config.dialects.trinity.algorithm import is_offline, repeat_times
from strop.config.dialects.verl.model import whole_or_not
from strop.config.same import in_steps
from strop.config.schema import Run
from strop.config.schema.algorithm import Dpo, Sft
from strop.config.schema.data import Taskset
from strop.config.schema.rollout import Sampling

_TASKSET = "buffer.explorer_input.taskset"
_EVAL = "buffer.explorer_input.eval_tasksets"
_EXPERIENCE = "buffer.trainer_input.experience_buffer"
_WORKFLOWS = ("simple_workflow", "math_workflow")
_REWARDS = {
    "math_reward": "math",
    "math_boxed_reward": "math",
    "countdown_reward": "countdown",
    "format_reward": "format",
    "accuracy_reward": "math",
}
_TOOLS = "tools are not read yet"


def _sampled(theirs: Theirs) -> str | None:
    return f"algorithm_type is {theirs['algorithm.algorithm_type']}" if is_offline(theirs) else None


def _given(theirs: Theirs) -> str | None:
    kind = theirs["algorithm.algorithm_type"]
    return None if is_offline(theirs) else f"algorithm_type is {kind}, whose experiences are its own rollouts"


def write_batches(run: Run) -> Mapping[str, Any]:
    """Tasks of a step; under sft and dpo, rows."""
    offline = isinstance(run.algorithm, Sft | Dpo)
    key = "buffer.train_batch_size" if offline else "buffer.batch_size"
    return {key: run.trainer.tasks_per_step}


@written_by(write_batches)
def batches(theirs: Theirs) -> Mapping[str, Any]:
    """Tasks of a step; under sft and dpo, `train_batch_size` counts the rows of one."""
    tasks, experiences = theirs["buffer.batch_size"], theirs["buffer.train_batch_size"]
    if is_offline(theirs):
        return {"trainer.tasks_per_step": tasks if experiences is None else experiences}
    repeat = repeat_times(theirs)
    if experiences is not None and experiences != tasks * repeat:
        raise theirs.fault(
            "buffer.train_batch_size",
            f"buffer.train_batch_size ({experiences}) is not batch_size x repeat_times ({tasks} x {repeat} = "
            f"{tasks * repeat}): every step trains on what it sampled. Write {tasks * repeat}, or leave it "
            "out.",
        )
    return {"trainer.tasks_per_step": tasks}


def write_duration(run: Run) -> Mapping[str, Any]:
    """In steps or in epochs; updates only where whole steps make them."""
    length = in_steps(run, run.trainer.duration)
    keys = {"steps": "buffer.total_steps", "epochs": "buffer.total_epochs"}
    if length is None or length.unit not in keys:
        return {}
    return {keys[length.unit]: whole_or_not(length.count)}


@written_by(write_duration)
def duration(theirs: Theirs) -> Mapping[str, Any]:
    """`trainer.total_steps` comes before `buffer.total_steps`, and both before the epochs."""
    steps = theirs["trainer.total_steps"]
    steps = theirs["buffer.total_steps"] if steps is None else steps
    return {
        "trainer.duration": f"{theirs['buffer.total_epochs']} epochs" if steps is None else f"{steps} steps"
    }


def _epochs(theirs: Theirs) -> str | None:
    for key in ("trainer.total_steps", "buffer.total_steps"):
        if theirs[key] is not None:
            return f"{key} is {theirs[key]}, and steps beat epochs"
    return None


def _buffer_steps(theirs: Theirs) -> str | None:
    steps = theirs["trainer.total_steps"]
    return None if steps is None else f"trainer.total_steps is {steps} and comes first"


def write_tasks(run: Run) -> Mapping[str, Any]:
    """What is sampled from, what is measured, and the one reward that scores all of it."""
    values: dict[str, Any] = {}
    if not isinstance(run.algorithm, Sft | Dpo):
        values |= _write_taskset(_TASKSET, run.data.train)
        values |= _write_sampling(_TASKSET, run.rollout.sampling)
    for index, taskset in enumerate(run.data.eval):
        at = f"{_EVAL}.{index}"
        values |= {f"{at}.name": taskset.name, f"{at}.repeat_times": taskset.rollouts_per_task}
        values |= _write_taskset(at, taskset) | _write_sampling(at, taskset.sampling)
    if run.reward.functions:
        names = {"math": "math_reward", "countdown": "countdown_reward", "format": "format_reward"}
        function = run.reward.functions[0].function
        values["buffer.default_reward_fn_type"] = names.get(function, function)
    return values


def _write_taskset(at: str, taskset: Taskset) -> dict[str, Any]:
    """A column of messages and one of text are one thing here; it is written as text's."""
    return {
        f"{at}.path": taskset.path,
        f"{at}.split": taskset.split,
        f"{at}.subset_name": taskset.subset,
        f"{at}.format.prompt_key": taskset.prompt,
        f"{at}.format.response_key": taskset.answer,
        f"{at}.format.system_prompt": taskset.system,
    }


def _write_sampling(at: str, sampling: Sampling) -> dict[str, Any]:
    return {
        f"{at}.rollout_args.temperature": sampling.temperature,
        f"{at}.rollout_args.top_p": None if sampling.top_p == 1 else sampling.top_p,
        f"{at}.rollout_args.top_k": sampling.top_k or None,
    }


@written_by(write_tasks)
def tasks(theirs: Theirs) -> Mapping[str, Any]:
    """What is sampled from, and what is measured. One reward scores all of it."""
    settings: dict[str, Any] = {}
    measured = theirs[_EVAL] or {}
    if not is_offline(theirs):
        _check_repeats(theirs)
        settings |= {f"data.train.{name}": v for name, v in _taskset(theirs, _TASKSET).items()}
        settings |= {f"rollout.sampling.{name}": v for name, v in _sampling(theirs, _TASKSET).items()}
    if not is_offline(theirs) or measured:
        settings["reward.functions"] = [{"function": _reward(theirs, [*measured])}]
    settings["data.eval"] = [
        {
            **_taskset(theirs, f"{_EVAL}.{index}"),
            "name": theirs[f"{_EVAL}.{index}.name"] or f"eval{index}",
            "rollouts_per_task": theirs[f"{_EVAL}.{index}.repeat_times"] or 1,
            "sampling": _sampling(theirs, f"{_EVAL}.{index}"),
        }
        for index in measured
    ]
    return settings


def _taskset(theirs: Theirs, at: str) -> dict[str, Any]:
    path = theirs[f"{at}.path"]
    if path is None:
        raise theirs.fault(f"{at}.path", f"write {at}.path: a file or directory of JSON Lines or Parquet.")
    return {
        "path": path,
        "split": None if _is_file(path) else theirs[f"{at}.split"] or "train",
        "subset": theirs[f"{at}.subset_name"],
        **_columns(theirs, at),
    }


def _is_file(path: str) -> bool:
    return path.endswith((".jsonl", ".json", ".parquet"))


def _columns(theirs: Theirs, at: str) -> dict[str, Any]:
    form = f"{at}.format"
    plain = (theirs[f"{form}.prompt_type"] or "plaintext") == "plaintext"
    prompt = theirs[f"{form}.prompt_key"] or "prompt"
    return {
        "prompt": prompt if plain else theirs[f"{form}.messages_key"] or "message",
        "answer": theirs[f"{form}.response_key"] or "response",
        "system": theirs[f"{form}.system_prompt"],
    }


def _sampling(theirs: Theirs, at: str) -> dict[str, Any]:
    given = {name: theirs[f"{at}.rollout_args.{name}"] for name in ("temperature", "top_p", "top_k")}
    defaults = {"temperature": 1.0, "top_p": 1.0, "top_k": -1}
    said = {name: defaults[name] if value is None else value for name, value in given.items()}
    return {**said, "top_k": max(said["top_k"], 0)}


def _check_repeats(theirs: Theirs) -> None:
    said = theirs[f"{_TASKSET}.repeat_times"]
    if said is not None and said != repeat_times(theirs):
        raise theirs.fault(
            f"{_TASKSET}.repeat_times",
            f"{_TASKSET}.repeat_times ({said}) differs from algorithm.repeat_times ({repeat_times(theirs)}); "
            "write one of them, or the same number.",
        )


def _reward(theirs: Theirs, measured: list[str]) -> str:
    default = theirs["buffer.default_reward_fn_type"]
    places = [*([] if is_offline(theirs) else [_TASKSET]), *(f"{_EVAL}.{index}" for index in measured)]
    names = {at: theirs[f"{at}.default_reward_fn_type"] or default for at in places}
    different = [at for at in places if names[at] != names[places[0]]]
    if different:
        raise theirs.fault(
            f"{different[0]}.default_reward_fn_type",
            f"{different[0]} is scored by {names[different[0]]}, and {places[0]} by {names[places[0]]}; one "
            "reward scores all tasks of a run. Write the same for both.",
        )
    name = names[places[0]]
    if name is None:
        raise theirs.fault(
            "buffer.default_reward_fn_type",
            f"write default_reward_fn_type: one of {', '.join(_REWARDS)}, or file.py:function.",
        )
    return _REWARDS.get(name, name)


def write_answers(run: Run) -> Mapping[str, Any]:
    """Under sft and dpo the experience buffer is the data."""
    if not isinstance(run.algorithm, Sft | Dpo):
        return {}
    train, form = run.data.train, f"{_EXPERIENCE}.format"
    given = _write_taskset(_EXPERIENCE, train)
    values = {
        key: value
        for key, value in given.items()
        if not key.endswith((".split", ".subset_name", "response_key"))
    }
    values[f"{_EXPERIENCE}.storage_type"] = "file"
    if isinstance(run.algorithm, Dpo):
        return {**values, f"{form}.chosen_key": train.chosen, f"{form}.rejected_key": train.rejected}
    if train.prompt == "prompt" and train.response == "messages":
        return {**values, f"{form}.prompt_type": "messages", f"{form}.messages_key": train.response}
    return {**values, f"{form}.response_key": train.response}


@written_by(write_answers)
def answers(theirs: Theirs) -> Mapping[str, Any]:
    """Under sft and dpo the experience buffer is the data."""
    if not is_offline(theirs):
        return {}
    form = f"{_EXPERIENCE}.format"
    if theirs[f"{_EXPERIENCE}.storage_type"] != "file":
        raise theirs.fault(
            f"{_EXPERIENCE}.storage_type",
            f"{_EXPERIENCE}.storage_type is {theirs[f'{_EXPERIENCE}.storage_type']}; given answers are in "
            "files. Write storage_type: file.",
        )
    settings = {f"data.train.{name}": v for name, v in _taskset(theirs, _EXPERIENCE).items()}
    settings["data.train.answer"] = None
    if theirs["algorithm.algorithm_type"] == "dpo":
        settings["data.train.chosen"] = theirs[f"{form}.chosen_key"] or "chosen"
        settings["data.train.rejected"] = theirs[f"{form}.rejected_key"] or "rejected"
    elif theirs[f"{form}.prompt_type"] == "messages":
        settings["data.train.response"] = settings.pop("data.train.prompt")
    else:
        settings["data.train.response"] = theirs[f"{form}.response_key"] or "response"
    return settings


def _format(at: str, read: Any, ours: str) -> tuple[Row, ...]:
    form = f"{at}.format"
    text = partial(mapped, read=read, kind=or_null(TEXT))
    return (
        mapped(
            f"{form}.prompt_type",
            None,
            f"{ours}.prompt",
            read=read,
            kind=or_null(one_of("plaintext", "messages")),
        ),
        text(f"{form}.prompt_key", None, f"{ours}.prompt"),
        text(f"{form}.response_key", None, f"{ours}.answer"),
        refused(f"{form}.system_prompt_key", None, "write system_prompt, one text for all rows"),
        text(f"{form}.system_prompt", None, f"{ours}.system"),
        text(f"{form}.messages_key", None, f"{ours}.prompt"),
        refused(f"{form}.tools_key", None, _TOOLS),
    )


def _task_rows(at: str, ours: str, sampling: str, repeat: str) -> tuple[Row, ...]:
    text = partial(mapped, read=tasks, kind=or_null(TEXT))
    return (
        text(f"{at}.name", None, f"{ours}.name")
        if ours == "data.eval.0"
        else placement(f"{at}.name", None, "one process, which has no actors to name", can=always, kind=ANY),
        refused(
            f"{at}.storage_type",
            None,
            "tasks are read from files; write storage_type: file",
            can=only(None, "file"),
        ),
        text(f"{at}.path", None, f"{ours}.path"),
        text(f"{at}.subset_name", None, f"{ours}.subset"),
        text(f"{at}.split", None, f"{ours}.split", note="of a single file there is none"),
        mapped(f"{at}.repeat_times", None, repeat, read=tasks, kind=or_null(WHOLE)),
        *_format(at, tasks, ours),
        mapped(
            f"{at}.rollout_args.temperature",
            None,
            f"{sampling}.temperature",
            read=tasks,
            kind=or_null(NUMBER),
            note="1.0 where it is left out",
        ),
        refused(
            f"{at}.default_workflow_type",
            None,
            f"there are {' and '.join(_WORKFLOWS)} so far",
            can=only(None, *_WORKFLOWS),
        ),
        text(f"{at}.default_reward_fn_type", None, "reward.functions.0.function"),
        refused(
            f"{at}.workflow_args", None, "workflows of your own are not run yet", can=only(None, {}), kind=ANY
        ),
        *beyond_the_page(
            mapped(f"{at}.rollout_args.top_p", None, f"{sampling}.top_p", read=tasks, kind=or_null(NUMBER)),
            mapped(f"{at}.rollout_args.top_k", None, f"{sampling}.top_k", read=tasks, kind=or_null(WHOLE)),
            placement(f"{at}.rollout_args.logprobs", None, "log-probs are always kept", can=always, kind=ANY),
            refused(f"{at}.rollout_args.n", None, "write repeat_times, which is the number of rollouts"),
            refused(
                f"{at}.reward_fn_args", None, "built-in rewards take none here", can=only(None, {}), kind=ANY
            ),
        ),
    )


_PRIORITY = unless(f"{_EXPERIENCE}.use_priority_queue", True)
_QUEUE = "one step's rollouts are one step's experiences, so nothing waits"
ROWS = (
    *(
        replace(row, stated=False)
        for row in (
            mapped("buffer.batch_size", 1, "trainer.tasks_per_step", read=batches, note="counts tasks"),
            mapped(
                "buffer.train_batch_size",
                None,
                "trainer.tasks_per_step",
                read=batches,
                kind=or_null(WHOLE),
                note="counts experiences",
            ),
            mapped("buffer.total_epochs", 1, "trainer.duration", read=duration, off=_epochs),
            mapped(
                "buffer.total_steps",
                None,
                "trainer.duration",
                read=duration,
                kind=or_null(WHOLE),
                off=_buffer_steps,
                note="beats total_epochs",
            ),
        )
    ),
    *_task_rows(_TASKSET, "data.train", "rollout.sampling", "algorithm.rollouts_per_task"),
    *_task_rows(f"{_EVAL}.0", "data.eval.0", "data.eval.0.sampling", "data.eval.0.rollouts_per_task"),
    placement(f"{_EXPERIENCE}.name", None, "one process, which has no actors to name", can=always, kind=ANY),
    mapped(
        f"{_EXPERIENCE}.storage_type",
        "queue",
        read=answers,
        kind=one_of("queue", "sql", "file"),
        note="queue, or file under sft and dpo; nothing else is built for one process",
    ),
    mapped(f"{_EXPERIENCE}.path", None, "data.train.path", read=answers, kind=or_null(TEXT), off=_given),
    *(replace(row, off=_given) for row in _format(_EXPERIENCE, answers, "data.train")),
    mapped(
        f"{_EXPERIENCE}.format.chosen_key",
        None,
        "data.train.chosen",
        read=answers,
        kind=or_null(TEXT),
        off=unless("algorithm.algorithm_type", "dpo"),
    ),
    mapped(
        f"{_EXPERIENCE}.format.rejected_key",
        None,
        "data.train.rejected",
        read=answers,
        kind=or_null(TEXT),
        off=unless("algorithm.algorithm_type", "dpo"),
    ),
    no_effect(
        f"{_EXPERIENCE}.format.enable_concatenated_multi_turn",
        False,
        "of a conversation all assistant turns are always trained",
    ),
    refused(f"{_EXPERIENCE}.format.chat_template", None, "write the template into the tokenizer's folder"),
    placement(f"{_EXPERIENCE}.max_read_timeout", 1800, _QUEUE, can=always, kind=NUMBER),
    refused(f"{_EXPERIENCE}.use_priority_queue", False, f"{_QUEUE}; leave it out", off=_sampled),
    refused(f"{_EXPERIENCE}.reuse_cooldown_time", None, f"{_QUEUE}; leave it out", off=_PRIORITY),
    refused(
        "buffer.trainer_input.auxiliary_buffers",
        None,
        "an expert's answers are not read from Trinity's files yet; use a run file with algorithm mix",
        can=only(None, {}),
        kind=ANY,
    ),
    refused(
        "buffer.default_workflow_type",
        None,
        f"there are {' and '.join(_WORKFLOWS)} so far",
        can=only(None, *_WORKFLOWS),
    ),
    mapped(
        "buffer.default_reward_fn_type",
        None,
        "reward.functions.0.function",
        read=tasks,
        kind=or_null(TEXT),
        note=f"{', '.join(f'{theirs}: {ours}' for theirs, ours in _REWARDS.items())}, or file.py:function",
    ),
)
TOTAL_STEPS = replace(
    mapped(
        "trainer.total_steps",
        None,
        "trainer.duration",
        read=duration,
        kind=or_null(WHOLE),
        note="beats buffer.total_steps and buffer.total_epochs",
    ),
    stated=False,
)
