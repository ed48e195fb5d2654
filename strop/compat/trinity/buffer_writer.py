"""Writer of Trinity's `buffer` section: tasksets, offline data, batch sizes and experience storage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.compat.trinity.rewards import reward_name, write_overlong_penalty
from strop.compat.trinity.selectors import write_selector
from strop.compat.trinity.workflows import write_unscored_workflow, write_workflow
from strop.config.schema import Run
from strop.config.schema.algorithm import DistillationOnlyConfig, OfflineAlgorithmConfig, SftConfig
from strop.config.schema.batch_selection import StalenessSelectionConfig, WarmupSelectionConfig
from strop.config.schema.buffer import (
    DEFAULT_BUFFER_NAME,
    FileBufferConfig,
    PriorityBufferConfig,
    QueueBufferConfig,
    SqlBufferConfig,
)
from strop.config.schema.data import TasksetConfig
from strop.config.schema.group_baselines import MixConfig
from strop.config.schema.preference import DpoConfig
from strop.config.schema.rollout import SamplingConfig
from strop.config.step_arithmetic import to_steps

TASKSET = "buffer.explorer_input.taskset"
EVAL = "buffer.explorer_input.eval_tasksets"
EXPERIENCE = "buffer.trainer_input.experience_buffer"
AUXILIARY = "buffer.trainer_input.auxiliary_buffers"


def write_batches(run: Run) -> Mapping[str, Any]:
    """Write the tasks per step (rows under sft, cpt and dpo), the rollouts of an update where a step has several, and
    the fraction of expert data."""
    step, update = run.trainer.tasks_per_step, run.trainer.tasks_per_update
    if isinstance(run.algorithm, OfflineAlgorithmConfig):
        return {"buffer.train_batch_size": step}
    values: dict[str, Any] = {"buffer.batch_size": step}
    if isinstance(run.algorithm, MixConfig):
        values["algorithm.sample_strategy_args.expert_data_ratio"] = run.algorithm.expert_fraction
    elif update is not None and update < step and step % update == 0:
        values["buffer.train_batch_size"] = update * run.algorithm.rollouts_per_task
    return values


def write_duration(run: Run) -> Mapping[str, Any]:
    """Write the duration in steps or epochs; a duration in updates must be a whole number of steps."""
    length = to_steps(run, run.trainer.duration)
    keys = {"steps": "buffer.total_steps", "epochs": "buffer.total_epochs"}
    if length is None or length.unit not in keys:
        return {}
    return {keys[length.unit]: length.count}


def write_tasks(run: Run) -> Mapping[str, Any]:
    """Write the training taskset, the evaluation tasksets that are sampled, and their workflows and
    rewards."""
    values: dict[str, Any] = {}
    evaluated = [taskset for taskset in run.data.eval if taskset.is_sampled]
    sampled = not isinstance(run.algorithm, OfflineAlgorithmConfig)
    if sampled:
        values |= _taskset(TASKSET, run.data.train) | _sampling(TASKSET, run.rollout.sampling)
        values |= write_selector(run, f"{TASKSET}.task_selector")
        if run.data.queue is not None:
            values[f"{TASKSET}.storage_type"] = "queue"
        if run.data.overlong == "left":
            values["model.enable_prompt_truncation"] = True
    samplings = [*([run.rollout.sampling] if sampled else []), *(taskset.sampling for taskset in evaluated)]
    if samplings:
        values["model.min_response_tokens"] = samplings[0].min_response_tokens
    for index, taskset in enumerate(evaluated):
        at = f"{EVAL}.{index}"
        values |= _taskset(at, taskset) | _sampling(at, taskset.sampling)
        workflow = write_workflow(at, taskset.workflow or run.rollout.workflow)
        values |= workflow if taskset.workflow else {f"{at}.workflow_args": workflow[f"{at}.workflow_args"]}
        values |= {f"{at}.name": taskset.name, f"{at}.repeat_times": taskset.rollouts_per_task}
    main = write_workflow(TASKSET, run.rollout.workflow)
    if isinstance(run.algorithm, DistillationOnlyConfig) and run.reward.is_empty:
        main |= write_unscored_workflow(TASKSET, run.rollout.workflow, run.algorithm.distillation.temperature)
    values["buffer.default_workflow_type"] = main[f"{TASKSET}.default_workflow_type"]
    if sampled:
        values[f"{TASKSET}.workflow_args"] = main[f"{TASKSET}.workflow_args"]
    if run.reward.functions:
        name, args = reward_name(run.reward.functions)
        if name == "math_boxed_reward" and (main[f"{TASKSET}.workflow_args"] or {}).get("with_think"):
            args = {"with_think": False, **args}
        if (
            name == "math_dapo_reward"
        ):  # has the rules of this run in a file with a key of later versions than 0.3
            values["algorithm.bypass_old_logprobs"] = True
            penalty = getattr(run.algorithm, "overlong_penalty", None)
            args |= {} if penalty is None else write_overlong_penalty(penalty)
        values["buffer.default_reward_fn_type"] = name
        if sampled:
            values[f"{TASKSET}.reward_fn_args"] = args or None
    own = run.rollout.workflow.args if run.rollout.workflow.name == "trinity" else {}
    if own.get("reward_fn"):
        values["buffer.default_reward_fn_type"] = own["reward_fn"]
    if own.get("reward_fn_args") and sampled:
        values[f"{TASKSET}.reward_fn_args"] = own["reward_fn_args"]
    for index, taskset in enumerate(evaluated):
        scored = run.reward if taskset.reward is None else taskset.reward
        workflow = (taskset.workflow or run.rollout.workflow).args
        if workflow.get("reward_fn_args"):
            values[f"{EVAL}.{index}.reward_fn_args"] = workflow["reward_fn_args"]
        if scored.functions:
            name, args = reward_name(scored.functions)
            values[f"{EVAL}.{index}.reward_fn_args"] = args or None
            if taskset.reward is not None:
                values[f"{EVAL}.{index}.default_reward_fn_type"] = name
    return values


def _place(at: str, taskset: TasksetConfig) -> dict[str, Any]:
    if taskset.table is not None:
        return {f"{at}.storage_type": "sql", f"{at}.path": taskset.path, f"{at}.name": taskset.table}
    return {
        f"{at}.path": taskset.path,
        f"{at}.split": taskset.split,
        f"{at}.subset_name": taskset.subset,
    }


def _taskset(at: str, taskset: TasksetConfig) -> dict[str, Any]:
    """The columns of a taskset. Strop treats message and text columns alike; both are written as text
    columns."""
    return {
        **_place(at, taskset),
        f"{at}.format.prompt_key": taskset.prompt,
        f"{at}.format.response_key": taskset.answer,
        f"{at}.format.system_prompt": taskset.system,
        f"{at}.format.system_prompt_key": taskset.system_column,
        f"{at}.format.tools_key": taskset.tools,
        **({f"{at}.format.image_key": taskset.images} if taskset.images else {}),
        f"{at}.format.reply_prefix": taskset.reply_prefix or None,
    }


def _sampling(at: str, sampling: SamplingConfig) -> dict[str, Any]:
    return {
        f"{at}.rollout_args.temperature": sampling.temperature,
        f"{at}.rollout_args.top_p": None if sampling.top_p == 1 else sampling.top_p,
        f"{at}.rollout_args.top_k": sampling.top_k or None,
    }


def _answers(at: str, taskset: TasksetConfig) -> dict[str, Any]:
    """The columns of demonstrations: prompt and response, or a whole conversation."""
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


def write_offline_data(run: Run) -> Mapping[str, Any]:
    """Write the training data of sft, cpt and dpo, which Trinity has in the experience buffer."""
    if isinstance(run.algorithm, SftConfig) and run.data.train.text is not None:
        text = {"prompt_type": "plaintext", "prompt_key": run.data.train.text}
        written = {f"{EXPERIENCE}.format.{key}": value for key, value in text.items()}
        return {f"{EXPERIENCE}.storage_type": "file", **_place(EXPERIENCE, run.data.train), **written}
    if isinstance(run.algorithm, SftConfig):
        return {f"{EXPERIENCE}.storage_type": "file", **_answers(EXPERIENCE, run.data.train)}
    if not isinstance(run.algorithm, DpoConfig):
        return {}
    train, form = run.data.train, f"{EXPERIENCE}.format"
    values = {f"{EXPERIENCE}.storage_type": "file", **_taskset(EXPERIENCE, train)}
    return {**values, f"{form}.chosen_key": train.chosen, f"{form}.rejected_key": train.rejected}


def write_auxiliary(run: Run) -> Mapping[str, Any]:
    """Write the demonstrations that a sample strategy reads, each dataset under its name."""
    values: dict[str, Any] = {}
    for dataset in run.data.demonstrations:
        values |= _answers(f"{AUXILIARY}.{dataset.name}", dataset)
        values["algorithm.sample_strategy_args.sft_dataset_name"] = dataset.name
    return values


def write_batch_selection(run: Run) -> Mapping[str, Any]:
    """Write the sample strategy where it differs from the type's own."""
    args = "algorithm.sample_strategy_args"
    match run.trainer.batch_selection:
        case WarmupSelectionConfig(steps=steps):
            return {
                "algorithm.sample_strategy": "warmup",
                "buffer.trainer_input.sft_warmup_steps": int(steps.count),
            }
        case StalenessSelectionConfig(max_staleness=oldest):
            return {
                "algorithm.sample_strategy": "staleness_control",
                f"{args}.max_staleness": int(oldest.count) + 1,
            }
        case _:
            return {}


def write_storage(run: Run) -> Mapping[str, Any]:
    """Write the experience buffer of rollouts."""
    buffer = run.buffer
    if isinstance(run.algorithm, OfflineAlgorithmConfig):
        return {}
    values: dict[str, Any] = {f"{EXPERIENCE}.max_read_timeout": buffer.read_timeout_seconds}
    match buffer:
        case FileBufferConfig():
            return {**values, f"{EXPERIENCE}.storage_type": "file", f"{EXPERIENCE}.path": buffer.path}
        case SqlBufferConfig():
            values |= {f"{EXPERIENCE}.storage_type": "sql", f"{EXPERIENCE}.path": buffer.url}
            values[f"{EXPERIENCE}.name"] = buffer.name
        case QueueBufferConfig() | PriorityBufferConfig():
            values[f"{EXPERIENCE}.path"] = buffer.backup
            values[f"{EXPERIENCE}.name"] = None if buffer.name == DEFAULT_BUFFER_NAME else buffer.name
    if isinstance(buffer, PriorityBufferConfig):
        values[f"{EXPERIENCE}.use_priority_queue"] = True
        values[f"{EXPERIENCE}.reuse_cooldown_time"] = buffer.reuse_cooldown_seconds
        at = f"{EXPERIENCE}.replay_buffer"
        values[f"{at}.priority_fn_args.decay"] = buffer.use_penalty
        if buffer.max_uses is not None:
            values[f"{at}.priority_fn"] = "decay_limit_randomization"
            values[f"{at}.priority_fn_args.use_count_limit"] = buffer.max_uses
            values[f"{at}.priority_fn_args.sigma"] = buffer.noise
    return {**values, f"{EXPERIENCE}.capacity": buffer.capacity_groups}


def write_template(run: Run) -> Mapping[str, Any]:
    """Write the chat template; the template in a file is written as its path."""
    chat_template = run.data.chat_template
    return {} if chat_template == "tokenizer" else {"model.custom_chat_template": chat_template}
