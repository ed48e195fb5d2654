"""Ledger rows of verl's `data` section."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from strop.compat.ledger.data_columns import known_columns
from strop.compat.ledger.key_mapping import (
    ANY,
    INTEGER,
    STRING,
    STRING_OR_LIST,
    UNSET,
    ForeignValues,
    KeyMapping,
    ReadFunction,
    any_inactive,
    empty,
    mapped,
    no_effect,
    not_on_page,
    nullable,
    one_of,
    refused,
    unless_null,
    written_by,
)
from strop.compat.verl import switches
from strop.compat.verl.switches import serving_engine
from strop.config.schema import Run
from strop.config.schema.data import CustomDatasetConfig, EvalTasksetConfig

NO_VIDEO = (
    "Strop trains on text and images, and data.train_files has this column; remove it if no task needs it"
)


def image_columns(foreign: ForeignValues, files: str = "data.train_files") -> dict[str, Any]:
    """The column of images, which rows may lack as in verl; empty if the files of a key have no such column.

    Of files that cannot be read here, the column is taken from a key that is set.
    """
    column = foreign["data.image_key"]
    if not column:
        return {}
    known = _known_columns(foreign, files)
    has_images = foreign.is_set("data.image_key") if known is None else column in known
    return {"images": column, "optional_columns": [column]} if has_images else {}


def write_image_columns(run: Run) -> Mapping[str, Any]:
    """Write the column of images."""
    return {"data.image_key": run.data.train.images} if run.data.train.images else {}


def require_no_video(foreign: ForeignValues) -> None:
    """Raise `ConfigError` if the training files have a column of videos or of audio, under its default name too."""
    for key in ("data.video_key", "data.audio_key"):
        if foreign.has_row(key) and not has_no_column(foreign, foreign[key]):
            raise foreign.error_for(key, f"{key}={foreign[key]!r} is not supported: {NO_VIDEO}.")


def has_no_column(foreign: ForeignValues, column: Any) -> bool:
    """Whether no training file that can be read has the column. Missing files are reported when they are read."""
    return not column or column not in (_known_columns(foreign, "data.train_files") or ())


def _known_columns(foreign: ForeignValues, key: str) -> frozenset[str] | None:
    """Columns of a key's files that can be read; None if none can."""
    files = foreign[key]
    return known_columns([files] if isinstance(files, str) else files or [])


_MAX_SAMPLER_TOKENS = 131072
"""Default of `rollout.engine.kv_cache_tokens`, in tokens; longer sequences need a larger KV cache."""


def write_tasksets(run: Run) -> Mapping[str, Any]:
    """Write the files and the columns of the training tasks; the evaluation tasks share the columns."""
    train = run.data.train
    return {
        "data.train_files": train.path,
        "data.prompt_key": train.prompt,
        "data.reward_fn_key": train.source,
        "data.val_files": None,
        **write_row_limits(run),
        **write_image_columns(run),
        **write_custom_class(train.dataset),
        **(write_validation(run.data.eval[0]) if run.data.eval else {}),
    }


def custom_class(foreign: ForeignValues) -> Mapping[str, Any] | None:
    """The user's dataset class, which receives verl's whole `data` section; None for the built-in reader."""
    path, name = foreign["data.custom_cls.path"], foreign["data.custom_cls.name"]
    if path is None:
        return None
    if name is None:
        raise foreign.error_for(
            "data.custom_cls.path",
            f"data.custom_cls.path is {path}; also write data.custom_cls.name, the name of the class in it.",
        )
    return {"name": f"{path}:{name}", "config": foreign["data"]}


def write_custom_class(dataset: CustomDatasetConfig | None) -> Mapping[str, Any]:
    """Write the file of the dataset class and the name of the class."""
    path, _, name = dataset.name.rpartition(":") if dataset else ("", "", "")
    return {"data.custom_cls.path": path, "data.custom_cls.name": name} if path else {}


def write_validation(taskset: EvalTasksetConfig) -> Mapping[str, Any]:
    """Write the files of an evaluation taskset and the sampling of its responses."""
    at, sampling = "actor_rollout_ref.rollout.val_kwargs", taskset.sampling
    values = {"data.val_files": taskset.path, f"{at}.n": taskset.rollouts_per_task}
    if sampling.temperature == 0:
        return {**values, f"{at}.do_sample": False, f"{at}.temperature": 0}
    return {
        **values,
        f"{at}.do_sample": True,
        f"{at}.temperature": sampling.temperature,
        f"{at}.top_p": sampling.top_p,
        f"{at}.top_k": sampling.top_k or -1,
    }


@written_by(write_tasksets)
def tasksets(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the training and evaluation tasksets; verl's data has the answer in `reward_model.ground_truth`."""
    require_no_video(foreign)
    columns = {
        "prompt": foreign["data.prompt_key"],
        "answer": "reward_model.ground_truth",
        "source": foreign["data.reward_fn_key"],
        **image_columns(foreign),
    }
    settings: dict[str, Any] = {f"data.train.{name}": column for name, column in columns.items()}
    settings["data.train.path"] = foreign["data.train_files"]
    settings["data.train.limit_tasks"] = limit_of_rows(foreign, "data.train_max_samples")
    limit = limit_of_rows(foreign, "data.val_max_samples")
    validation = {"name": "val", "path": foreign["data.val_files"], **columns}
    validation["rollouts_per_task"] = foreign["actor_rollout_ref.rollout.val_kwargs.n"]
    validation["sampling"] = validation_sampling(foreign)
    if limit is not None:
        validation["limit_tasks"] = limit
    if (dataset := custom_class(foreign)) is not None:
        settings["data.train.dataset"] = validation["dataset"] = dataset
    settings["data.eval"] = [] if foreign["data.val_files"] is None else [validation]
    return settings


def write_row_limits(run: Run) -> Mapping[str, Any]:
    """Write the maximum numbers of rows; -1 means all of them."""
    sections = {"train": run.data.train, **({"val": run.data.eval[0]} if run.data.eval else {})}
    return {f"data.{name}_max_samples": section.limit_tasks or -1 for name, section in sections.items()}


def limit_of_rows(foreign: ForeignValues, key: str) -> int | None:
    """Maximum number of rows, or None for all of them."""
    count = foreign[key] if foreign.has_row(key) else None
    return count if count is not None and count > 0 else None


_TEMPLATE_ARGS = "data.apply_chat_template_kwargs"


def write_template_args(run: Run) -> Mapping[str, Any]:
    """Write the variables of the chat template."""
    return {f"{_TEMPLATE_ARGS}.{name}": value for name, value in run.data.chat_template_args.items()}


@written_by(write_template_args)
def template_args(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the variables of the chat template."""
    keys = [key for key in foreign.written if key.startswith(f"{_TEMPLATE_ARGS}.")]
    values = {key.removeprefix(f"{_TEMPLATE_ARGS}."): foreign[key] for key in keys}
    return {"data.chat_template_args": values} if values else {}


def validation_sampling(foreign: ForeignValues) -> dict[str, Any]:
    """Read the evaluation sampling; `do_sample: False` means greedy sampling at any temperature."""
    shared = {"ignore_eos": foreign["actor_rollout_ref.rollout.ignore_eos"]}
    temperature = foreign["actor_rollout_ref.rollout.val_kwargs.temperature"]
    wrote = foreign.is_set("actor_rollout_ref.rollout.val_kwargs.do_sample")
    if not foreign["actor_rollout_ref.rollout.val_kwargs.do_sample"] or (temperature == 0 and not wrote):
        return {"temperature": 0.0, **shared}
    if temperature == 0:
        raise foreign.error_for(
            "actor_rollout_ref.rollout.val_kwargs.do_sample",
            "val_kwargs.do_sample is True, but val_kwargs.temperature is 0, which is greedy; "
            "write a val_kwargs.temperature above 0, or do_sample=False.",
        )
    return {
        "temperature": temperature,
        "top_p": foreign["actor_rollout_ref.rollout.val_kwargs.top_p"],
        "top_k": all_tokens(foreign["actor_rollout_ref.rollout.val_kwargs.top_k"]),
        **shared,
    }


def all_tokens(top_k: int) -> int:
    """The top-k value as a run file has it: -1 (vLLM) and 0 (Hugging Face) both keep all tokens."""
    return 0 if top_k == -1 else top_k


@written_by(
    lambda run: {
        "data.max_prompt_length": run.data.max_prompt_tokens,
        "data.max_response_length": run.data.max_response_tokens,
    }
)
def lengths(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the length limits; the native sampler's KV cache holds at least one sequence of maximum length."""
    prompt, response = foreign["data.max_prompt_length"], foreign["data.max_response_length"]
    settings = {"data.max_prompt_tokens": prompt, "data.max_response_tokens": response}
    if prompt + response > _MAX_SAMPLER_TOKENS and serving_engine(foreign) is None:
        settings["rollout.engine.kv_cache_tokens"] = prompt + response
    return settings


def write_truncation(run: Run) -> Mapping[str, Any]:
    """Write whether overlong prompts are filtered or truncated."""
    filtered = run.data.overlong == "filter"
    cut = {} if filtered else {"data.truncation": run.data.overlong}
    return {"data.filter_overlong_prompts": filtered, **cut}


@written_by(write_truncation)
def truncation(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the handling of overlong prompts; filtering precedes truncation and leaves nothing to truncate."""
    filtered = foreign["data.filter_overlong_prompts"]
    return {"data.overlong": "filter" if filtered else foreign["data.truncation"]}


def write_batches(run: Run) -> Mapping[str, Any]:
    """Write the batch sizes; an update covers the whole step unless tasks_per_update is set."""
    step = run.trainer.tasks_per_step
    return {
        "data.train_batch_size": step,
        "actor_rollout_ref.actor.ppo_mini_batch_size": run.trainer.tasks_per_update or step,
    }


@written_by(write_batches)
def batches(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the batch sizes; both count prompts, each with `rollout.n` responses."""
    step = step_size(foreign)
    if switches.is_spin(foreign):
        return {"trainer.tasks_per_step": step, "trainer.tasks_per_update": step}
    update = mini_batch_size(foreign, "actor_rollout_ref.actor.ppo_mini_batch_size")
    return {"trainer.tasks_per_step": step, "trainer.tasks_per_update": update}


def step_size(foreign: ForeignValues) -> int:
    """Prompts of a step. Without dynamic sampling, verl trains on all prompts of `data.gen_batch_size`."""
    if switches.has_mini_batch_steps(foreign):
        return switches.tasks_per_step(foreign)
    return int(foreign[step_size_key(foreign)])


def step_size_key(foreign: ForeignValues) -> str:
    """Key of the number of prompts of a step."""
    generated = foreign["data.gen_batch_size"] is not None and not foreign["algorithm.filter_groups.enable"]
    return "data.gen_batch_size" if generated else "data.train_batch_size"


def mini_batch_size(foreign: ForeignValues, key: str) -> int | None:
    """The mini-batch size in prompts; None means the whole step. Raises ConfigError unless it divides the
    step."""
    if foreign[key] is None:
        return None
    step, update = step_size(foreign), int(foreign[key])
    if step > 0 and update > 0 and step % update:
        fits = sorted((n for n in range(1, step + 1) if step % n == 0), key=lambda n: abs(n - update))
        near = " and ".join(str(size) for size in sorted(fits[:2]))
        raise foreign.error_for(
            key,
            f"{step_size_key(foreign)} ({step}) is not a multiple of {key} ({update}); the nearest divisors are "
            f"{near}.",
        )
    return update


@written_by(lambda run: {"actor_rollout_ref.model.trust_remote_code": run.model.trust_remote_code})
def remote_code(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read whether the model's own code may run: only where a user sets a key to True, although the
    default for the data is True."""
    keys = ("data.trust_remote_code", "actor_rollout_ref.model.trust_remote_code")
    return {"model.trust_remote_code": any(foreign.is_set(key) and foreign[key] for key in keys)}


def custom_class_rows(read: ReadFunction, note: str) -> tuple[KeyMapping, ...]:
    """Rows of the keys for a user's dataset class; the documentation of verl 0.3.1 has the first two for PPO."""
    name = ("data.train.dataset.name", "data.eval.0.dataset.name")
    config = ("data.train.dataset.config", "data.eval.0.dataset.config")
    return (
        mapped(
            "data.custom_cls.path",
            None,
            "data.train.dataset",
            *name,
            read=read,
            value_type=nullable(STRING),
            note=note,
        ),
        mapped(
            "data.custom_cls.name",
            None,
            "data.train.dataset",
            *name,
            read=read,
            value_type=nullable(STRING),
            inactive=switches.custom_class,
        ),
        mapped(
            "data.custom_cls.*",
            UNSET,
            *config,
            read=read,
            inactive=switches.custom_class,
            note="options of the class, which receives the whole section as config",
        ),
    )


_CUSTOM_CLASS = custom_class_rows(tasksets, "a torch Dataset that returns messages or the tokens of a prompt")
_IMAGES = "the model's own image processor is used, and pixels are made where they are used"
_TOOLS_IN_PROMPTS = "data.max_prompt_length limits a prompt without the descriptions of the tools"


_CONTINUES = "every turn of a conversation continues the sampled tokens"
_taskset_row = partial(mapped, read=tasksets)
_LISTED = (
    mapped("data.tokenizer", None, "model.tokenizer", value_type=nullable(STRING)),
    _taskset_row(
        "data.train_files", "~/data/rlhf/gsm8k/train.parquet", "data.train.path", value_type=STRING_OR_LIST
    ),
    _taskset_row(
        "data.val_files",
        "~/data/rlhf/gsm8k/test.parquet",
        "data.eval.0.path",
        value_type=nullable(STRING_OR_LIST),
        note="null disables evaluation",
    ),
    _taskset_row("data.prompt_key", "prompt", "data.train.prompt", "data.eval.0.prompt"),
    mapped("data.max_prompt_length", 512, "data.max_prompt_tokens", read=lengths),
    mapped("data.max_response_length", 512, "data.max_response_tokens", read=lengths),
    mapped(
        "data.train_batch_size",
        1024,
        "trainer.tasks_per_step",
        read=batches,
        inactive=switches.fully_async,
        note="counts prompts",
    ),
    no_effect("data.return_raw_input_ids", False, "a reward model with another tokenizer receives the text"),
    no_effect("data.return_raw_chat", False, "every task always keeps its messages", value_type=ANY),
    no_effect("data.return_full_prompt", False, "every rollout is always recorded with its whole prompt"),
    mapped("data.shuffle", True, "data.shuffle"),
    mapped("data.filter_overlong_prompts", False, "data.overlong", read=truncation),
    mapped("data.filter_overlong_prompts_workers", 1, "data.tokenize_workers"),
    mapped(
        "data.truncation",
        "error",
        "data.overlong",
        read=truncation,
        value_type=one_of("error", "left", "right", "middle"),
        inactive=switches.keep_overlong,
    ),
    _taskset_row(
        "data.image_key",
        "images",
        "data.train.images",
        "data.eval.0.images",
        value_type=nullable(STRING),
        note="images of the rows that have this column; without it in the files, prompts are text",
    ),
    mapped(
        "data.trust_remote_code",
        True,
        "model.trust_remote_code",
        read=remote_code,
        note="takes effect only where it is set",
    ),
    *_CUSTOM_CLASS[:2],
)
_UNLISTED = not_on_page(
    *_CUSTOM_CLASS[2:],
    _taskset_row("data.reward_fn_key", "data_source", "data.train.source", "data.eval.0.source"),
    mapped("data.seed", 1, "seed", note="seeds all random choices, not only the order of the data"),
    no_effect("data.min_response_length", UNSET, "no version of verl reads it"),
    no_effect("data.val_batch_size", None, "all validation prompts are sampled together"),
    mapped(
        "data.gen_batch_size",
        None,
        "trainer.tasks_per_step",
        read=batches,
        value_type=nullable(INTEGER),
        inactive=any_inactive(switches.fully_async, unless_null("data.gen_batch_size")),
        note="prompts of a step; with algorithm.filter_groups.enable, of one sampling round, and "
        "data.train_batch_size counts the prompts of a step",
    ),
    _taskset_row(
        "data.train_max_samples",
        -1,
        "data.train.limit_tasks",
        note="-1 means all rows; verl takes a random choice, Strop the first rows",
    ),
    _taskset_row(
        "data.val_max_samples",
        -1,
        "data.eval.0.limit_tasks",
        note="-1 means all rows; verl takes a random choice, Strop the first rows",
    ),
    *(
        no_effect(f"data.{name}", default, why, value_type=ANY)
        for name, default, why in (
            ("use_shm", False, "the data is read from its files"),
            ("dataloader_num_workers", 8, "rows are read in this process"),
            ("validation_shuffle", False, "all validation prompts are evaluated, in any order"),
            ("image_patch_size", 14, _IMAGES),
            ("return_multi_modal_inputs", True, _IMAGES),
            ("tool_config_path", UNSET, _TOOLS_IN_PROMPTS),
            ("function_tool_path", UNSET, _TOOLS_IN_PROMPTS),
            ("need_tools_kwargs", UNSET, "a row without tools_kwargs is no error"),
        )
    ),
    *(
        refused(
            f"data.{name}_key", f"{name}s", NO_VIDEO, supported=has_no_column, value_type=nullable(STRING)
        )
        for name in ("video", "audio")
    ),
    *(
        mapped(
            f"data.mm_processor_kwargs.{name}",
            None,
            f"data.images.{name}",
            value_type=nullable(INTEGER),
            note="replaces the limit of the model's image processor",
        )
        for name in ("min_pixels", "max_pixels")
    ),
    refused(
        "data.mm_processor_kwargs.*",
        UNSET,
        "of the image processor's arguments Strop has min_pixels and max_pixels; remove the others",
        supported=empty,
    ),
    mapped(
        "data.apply_chat_template_kwargs.*",
        UNSET,
        "data.chat_template_args",
        read=template_args,
        note="variables of the chat template",
    ),
    refused(
        "data.sampler.*",
        UNSET,
        (
            "Strop does not run verl's sampler classes; sort the file and write data.shuffle=False, or a run file with "
            "data.order: {type: column}, or curriculum or difficulty, which draw tasks by the run's own rewards"
        ),
        supported=empty,
    ),
    refused(
        "data.datagen.*",
        UNSET,
        "Strop has no generation of tasks during a run; write the tasks to a file",
        supported=empty,
    ),
    no_effect("data.continuous_token.*", UNSET, _CONTINUES),
)
ROWS = (*_LISTED, *_UNLISTED)
