"""A run's data and buffers in Trinity's words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.config.dialects.trinity.workflows import write_workflow
from strop.config.same import in_steps
from strop.config.schema import Run
from strop.config.schema.algorithm import Dpo, Mix, Sft
from strop.config.schema.buffer import DEFAULT_NAME, FileBuffer, PriorityBuffer, QueueBuffer, SqlBuffer
from strop.config.schema.data import Taskset
from strop.config.schema.reward import Reward
from strop.config.schema.rollout import Sampling
from strop.config.schema.sample import StalenessSample, WarmUpSample

TASKSET = "buffer.explorer_input.taskset"
EVAL = "buffer.explorer_input.eval_tasksets"
EXPERIENCE = "buffer.trainer_input.experience_buffer"
AUXILIARY = "buffer.trainer_input.auxiliary_buffers"
_REWARDS = {"math": "math_reward", "countdown": "countdown_reward", "format": "format_reward"}


def write_batches(run: Run) -> Mapping[str, Any]:
    """Tasks of a step; under sft and dpo, rows; and an expert's share."""
    if isinstance(run.algorithm, Sft | Dpo):
        return {"buffer.train_batch_size": run.trainer.tasks_per_step}
    values: dict[str, Any] = {"buffer.batch_size": run.trainer.tasks_per_step}
    if isinstance(run.algorithm, Mix):
        values["algorithm.sample_strategy_args.expert_data_ratio"] = run.algorithm.expert_share
    return values


def write_duration(run: Run) -> Mapping[str, Any]:
    """In steps or in epochs; updates only where whole steps make them."""
    length = in_steps(run, run.trainer.duration)
    keys = {"steps": "buffer.total_steps", "epochs": "buffer.total_epochs"}
    if length is None or length.unit not in keys:
        return {}
    return {keys[length.unit]: length.count}


def write_tasks(run: Run) -> Mapping[str, Any]:
    """What is sampled from, what is measured by sampling, and the reward that scores each."""
    values: dict[str, Any] = {}
    measured = [taskset for taskset in run.data.eval if taskset.is_sampled]
    sampled = not isinstance(run.algorithm, Sft | Dpo)
    if sampled:
        values |= _taskset(TASKSET, run.data.train) | _sampling(TASKSET, run.rollout.sampling)
        if run.data.queue is not None:
            values[f"{TASKSET}.storage_type"] = "queue"
    drawn = [*([run.rollout.sampling] if sampled else []), *(taskset.sampling for taskset in measured)]
    if drawn:
        values["model.min_response_tokens"] = drawn[0].min_response_tokens
    for index, taskset in enumerate(measured):
        at = f"{EVAL}.{index}"
        values |= _taskset(at, taskset) | _sampling(at, taskset.sampling)
        own = write_workflow(at, taskset.workflow or run.rollout.workflow)
        values |= own if taskset.workflow else {f"{at}.workflow_args": own[f"{at}.workflow_args"]}
        values |= {f"{at}.name": taskset.name, f"{at}.repeat_times": taskset.rollouts_per_task}
    main = write_workflow(TASKSET, run.rollout.workflow)
    values["buffer.default_workflow_type"] = main[f"{TASKSET}.default_workflow_type"]
    if sampled:
        values[f"{TASKSET}.workflow_args"] = main[f"{TASKSET}.workflow_args"]
    if run.reward.functions:
        values["buffer.default_reward_fn_type"] = _reward_name(run.reward)
        if sampled:
            values[f"{TASKSET}.reward_fn_args"] = run.reward.functions[0].args or None
    for index, taskset in enumerate(measured):
        scored = run.reward if taskset.reward is None else taskset.reward
        if scored.functions:
            values[f"{EVAL}.{index}.reward_fn_args"] = scored.functions[0].args or None
        if scored.functions and taskset.reward is not None:
            values[f"{EVAL}.{index}.default_reward_fn_type"] = _reward_name(scored)
    return values


def _reward_name(reward: Reward) -> str:
    name = reward.functions[0].function
    return _REWARDS.get(name, name)


def _place(at: str, taskset: Taskset) -> dict[str, Any]:
    if taskset.table is not None:
        return {f"{at}.storage_type": "sql", f"{at}.path": taskset.path, f"{at}.name": taskset.table}
    return {
        f"{at}.path": taskset.path,
        f"{at}.split": taskset.split,
        f"{at}.subset_name": taskset.subset,
    }


def _taskset(at: str, taskset: Taskset) -> dict[str, Any]:
    """A column of messages and one of text are one thing here; it is written as text's."""
    return {
        **_place(at, taskset),
        f"{at}.format.prompt_key": taskset.prompt,
        f"{at}.format.response_key": taskset.answer,
        f"{at}.format.system_prompt": taskset.system,
        f"{at}.format.system_prompt_key": taskset.system_column,
        f"{at}.format.tools_key": taskset.tools,
        f"{at}.format.reply_prefix": taskset.reply_prefix or None,
    }


def _sampling(at: str, sampling: Sampling) -> dict[str, Any]:
    return {
        f"{at}.rollout_args.temperature": sampling.temperature,
        f"{at}.rollout_args.top_p": None if sampling.top_p == 1 else sampling.top_p,
        f"{at}.rollout_args.top_k": sampling.top_k or None,
    }


def _answers(at: str, taskset: Taskset) -> dict[str, Any]:
    """Of a prompt and an answer, or of a whole conversation."""
    values = {**_taskset(at, taskset), f"{at}.format.response_key": taskset.response}
    conversation = taskset.prompt == "prompt" and taskset.response in ("messages", "message")
    if not (conversation or taskset.trained_turns == "last"):
        return values
    form = f"{at}.format"
    plain = (f"{form}.prompt_key", f"{form}.response_key", f"{form}.system_prompt")
    return {
        **{key: value for key, value in values.items() if key not in plain},
        f"{form}.prompt_type": "messages",
        f"{form}.messages_key": taskset.response,
        f"{form}.enable_concatenated_multi_turn": taskset.trained_turns == "all",
    }


def write_answers(run: Run) -> Mapping[str, Any]:
    """Under sft and dpo the experience buffer is the data."""
    if isinstance(run.algorithm, Sft):
        return {f"{EXPERIENCE}.storage_type": "file", **_answers(EXPERIENCE, run.data.train)}
    if not isinstance(run.algorithm, Dpo):
        return {}
    train, form = run.data.train, f"{EXPERIENCE}.format"
    values = {f"{EXPERIENCE}.storage_type": "file", **_taskset(EXPERIENCE, train)}
    return {**values, f"{form}.chosen_key": train.chosen, f"{form}.rejected_key": train.rejected}


def write_auxiliary(run: Run) -> Mapping[str, Any]:
    """Given answers that a strategy reads, each set under its name."""
    values: dict[str, Any] = {}
    for answers in run.data.auxiliary:
        values |= _answers(f"{AUXILIARY}.{answers.name}", answers)
        values["algorithm.sample_strategy_args.sft_dataset_name"] = answers.name
    return values


def write_sample(run: Run) -> Mapping[str, Any]:
    """A strategy that is not the type's own."""
    args = "algorithm.sample_strategy_args"
    match run.trainer.sample:
        case WarmUpSample(steps=steps):
            return {
                "algorithm.sample_strategy": "warmup",
                "buffer.trainer_input.sft_warmup_steps": int(steps.count),
            }
        case StalenessSample(max_staleness=oldest):
            return {
                "algorithm.sample_strategy": "staleness_control",
                f"{args}.max_staleness": int(oldest.count) + 1,
            }
        case _:
            return {}


def write_storage(run: Run) -> Mapping[str, Any]:
    """Where rollouts wait."""
    buffer = run.buffer
    if isinstance(run.algorithm, Sft | Dpo):
        return {}
    values: dict[str, Any] = {f"{EXPERIENCE}.max_read_timeout": buffer.read_timeout_seconds}
    match buffer:
        case FileBuffer():
            return {**values, f"{EXPERIENCE}.storage_type": "file", f"{EXPERIENCE}.path": buffer.path}
        case SqlBuffer():
            values |= {f"{EXPERIENCE}.storage_type": "sql", f"{EXPERIENCE}.path": buffer.url}
            values[f"{EXPERIENCE}.name"] = buffer.name
        case QueueBuffer() | PriorityBuffer():
            values[f"{EXPERIENCE}.path"] = buffer.backup
            values[f"{EXPERIENCE}.name"] = None if buffer.name == DEFAULT_NAME else buffer.name
    if isinstance(buffer, PriorityBuffer):
        values[f"{EXPERIENCE}.use_priority_queue"] = True
        values[f"{EXPERIENCE}.reuse_cooldown_time"] = buffer.reuse_cooldown_seconds
    return {**values, f"{EXPERIENCE}.capacity": buffer.capacity_groups}


def write_template(run: Run) -> Mapping[str, Any]:
    """A template of its own; a file's text is not read for it."""
    said = run.data.chat_template
    return {} if said == "tokenizer" else {"model.custom_chat_template": said}
