"""Ledger rows of the section `data` of verl's `sft_trainer_engine.yaml`: conversations and micro-batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.compat.ledger.key_mapping import (
    UNSET,
    ForeignValues,
    mapped,
    no_effect,
    refused,
    unless,
    written_by,
)
from strop.compat.ledger.placement_notes import ALWAYS_PACKED
from strop.compat.ledger.value_types import (
    ANY,
    STRING,
    STRING_OR_LIST,
    nullable,
    one_of,
)
from strop.compat.verl.data import (
    custom_class,
    custom_class_rows,
    template_args,
    write_custom_class,
    write_row_limits,
    write_template_args,
)
from strop.compat.verl.images import (
    NO_VIDEO,
    has_no_column,
    image_columns,
    require_no_video,
    write_image_columns,
)
from strop.compat.verl.sft_converters import (
    length_limit,
    row_columns,
    write_row_columns,
)
from strop.config.schema import Run

_fixed = unless("data.use_dynamic_bsz", False)
_dynamic = unless("data.use_dynamic_bsz", True)


def write_conversations(run: Run) -> Mapping[str, Any]:
    """Write the files and the column of the conversations."""
    train, held_out = run.data.train, run.data.eval
    return {
        "data.train_files": train.path,
        "data.val_files": held_out[0].path if held_out else None,
        "data.messages_key": train.response,
        **write_row_columns(run, "data"),
        **write_row_limits(run),
        **write_image_columns(run),
        **write_custom_class(train.dataset),
    }


@written_by(write_conversations)
def conversations(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the files, and the column of whole conversations, of which the assistant's turns are trained."""
    require_no_video(foreign)
    columns: dict[str, Any] = {"response": foreign["data.messages_key"], **row_columns(foreign, "data")}
    if images := image_columns(foreign):
        optional = [*columns["optional_columns"], *images["optional_columns"]]
        columns |= {**images, "optional_columns": optional}
    dataset = custom_class(foreign)
    settings: dict[str, Any] = {"algorithm.type": "sft", "data.eval": []}
    for name, files in (("train", "data.train_files"), ("val", "data.val_files")):
        limit = foreign[f"data.{name}_max_samples"]
        taskset = {"path": foreign[files], **columns}
        taskset |= {"limit_tasks": limit} if limit > 0 else {}
        taskset |= {} if dataset is None else {"dataset": dataset}
        if name == "train":
            settings |= {f"data.train.{key}": value for key, value in taskset.items()}
        elif foreign[files] is not None:
            settings["data.eval"] = [{"name": "val", **taskset}]
    return settings


@written_by(write_template_args)
def thinking_args(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the variables of the chat template; `enable_thinking_default` is one of them."""
    args = dict(template_args(foreign).get("data.chat_template_args", {}))
    thinking = foreign["data.enable_thinking_default"]
    if thinking not in (None, "none"):
        args["enable_thinking"] = bool(thinking)
    return {"data.chat_template_args": args} if args else {}


def write_micro_batch(run: Run) -> Mapping[str, Any]:
    """Write the micro-batch size in tokens or in sequences."""
    size = run.trainer.microbatch
    by_tokens = size.unit == "tokens"
    key = "data.max_token_len_per_gpu" if by_tokens else "data.micro_batch_size_per_gpu"
    return {"data.use_dynamic_bsz": by_tokens, key: size.count}


@written_by(write_micro_batch)
def micro_batch(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the micro-batch size: tokens for a dynamic batch size, else sequences."""
    if foreign["data.use_dynamic_bsz"]:
        return {"trainer.microbatch": f"{foreign['data.max_token_len_per_gpu']} tokens"}
    return {"trainer.microbatch": f"{foreign['data.micro_batch_size_per_gpu']} sequences"}


ROWS = (
    mapped("data.train_batch_size", 256, "trainer.tasks_per_step", note="counts rows"),
    mapped("data.micro_batch_size_per_gpu", 4, "trainer.microbatch", read=micro_batch, inactive=_fixed),
    mapped("data.max_token_len_per_gpu", 8192, "trainer.microbatch", read=micro_batch, inactive=_dynamic),
    mapped("data.use_dynamic_bsz", True, "trainer.microbatch", read=micro_batch),
    mapped(
        "data.train_files",
        "~/data/gsm8k/train.parquet",
        "data.train.path",
        read=conversations,
        value_type=STRING_OR_LIST,
    ),
    mapped(
        "data.val_files",
        None,
        "data.eval.0.path",
        read=conversations,
        value_type=nullable(STRING_OR_LIST),
        note="the loss on this file is the evaluation",
    ),
    mapped("data.train_max_samples", -1, "data.train.limit_tasks", read=conversations),
    mapped("data.val_max_samples", -1, "data.eval.0.limit_tasks", read=conversations),
    mapped(
        "data.messages_key", "messages", "data.train.response", "data.eval.0.response", read=conversations
    ),
    mapped(
        "data.max_length",
        1024,
        "data.max_prompt_tokens",
        "data.max_response_tokens",
        read=length_limit,
        note="bounds a whole conversation",
    ),
    mapped(
        "data.truncation",
        "error",
        "data.overlong",
        read=length_limit,
        value_type=one_of("error", "left", "right"),
    ),
    mapped(
        "data.tools_key",
        "tools",
        "data.train.tools",
        "data.eval.0.tools",
        read=conversations,
        note="column of a row's tools, where it exists",
    ),
    mapped(
        "data.enable_thinking_key",
        "enable_thinking",
        "data.train.template_columns",
        "data.eval.0.template_columns",
        read=conversations,
        note="column of a row's own enable_thinking, where it exists",
    ),
    mapped(
        "data.enable_thinking_default",
        None,
        "data.chat_template_args",
        read=thinking_args,
        value_type=ANY,
        note="enable_thinking of rows without it; null or none for the template's own default",
    ),
    *custom_class_rows(
        conversations, "a torch Dataset of input_ids, attention_mask and loss_mask, or of rows"
    ),
    *(
        no_effect(f"data.{name}", default, why, value_type=ANY)
        for name, default, why in (
            ("pad_mode", "no_padding", ALWAYS_PACKED),
            ("balance_dp_token", False, "a single process needs no balancing"),
            ("use_shm", False, "the data is read from its files"),
            ("num_workers", 8, "rows are read in this process"),
            ("ignore_input_ids_mismatch", False, "a conversation is always tokenized as a whole"),
        )
    ),
    mapped(
        "data.image_key",
        "images",
        "data.train.images",
        read=conversations,
        value_type=nullable(STRING),
        note="images of the rows that have this column; without it in the files, conversations are text",
    ),
    refused("data.video_key", "videos", NO_VIDEO, supported=has_no_column, value_type=nullable(STRING)),
    mapped(
        "data.apply_chat_template_kwargs.*",
        UNSET,
        "data.chat_template_args",
        read=thinking_args,
        note="variables of the chat template",
    ),
)
