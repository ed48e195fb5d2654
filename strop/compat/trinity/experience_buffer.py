"""Ledger rows of Trinity's `buffer.trainer_input.experience_buffer`: rollout storage, or the offline data of
sft, cpt and dpo."""

from __future__ import annotations

from functools import partial
from typing import Any

from strop.compat.ledger.key_mapping import (
    UNSET,
    InactiveCheck,
    KeyMapping,
    also_inactive,
    always,
    any_inactive,
    mapped,
    no_effect,
    not_on_page,
    placement,
    unless,
)
from strop.compat.ledger.value_types import ANY, BOOLEAN, INTEGER, NUMBER, STRING, nullable, one_of
from strop.compat.trinity import formats, topology
from strop.compat.trinity.buffer_writer import (
    EXPERIENCE,
)
from strop.compat.trinity.experience_buffer_converters import (
    offline_data,
    storage,
    storage_type,
    template,
)
from strop.compat.trinity.presets import (
    only_offline,
    only_sampled,
    only_types,
)


def _rows(at: str, read: Any, field: str, inactive: InactiveCheck) -> tuple[KeyMapping, ...]:
    """Rows of the subset and the split of offline data."""
    text = partial(mapped, read=read, value_type=nullable(STRING))
    return (
        text(f"{at}.subset_name", None, f"{field}.subset", inactive=inactive),
        text(f"{at}.split", None, f"{field}.split", inactive=inactive, note="ignored for a single file"),
    )


_queue = any_inactive(
    only_sampled,
    lambda foreign: None if storage_type(foreign) == "queue" else f"storage_type is {storage_type(foreign)}",
)
_priority = any_inactive(
    _queue,
    lambda foreign: None if topology.uses_priority_queue(foreign) else "the buffer is no priority queue",
)
_reused = any_inactive(
    _priority,
    lambda foreign: (
        None
        if topology.is_distributed(foreign)
        else "explorer and trainer alternate, and each step trains on the rollouts it has just sampled"
    ),
)
_limited = any_inactive(
    _priority, unless(f"{EXPERIENCE}.replay_buffer.priority_fn", "decay_limit_randomization")
)
_dpo, _sft, _of_answers = only_types("dpo"), only_types("sft"), only_types("sft", "dpo")
_OF_TEXT = [f"{EXPERIENCE}.format.{name}" for name in ("prompt_type", "prompt_key", "messages_key")]
"""Keys of the format that also count for plain text."""
_OURS = "data.train"
ROWS: tuple[KeyMapping, ...] = (
    placement(
        f"{EXPERIENCE}.name",
        None,
        "the queue's actor name on a cluster; the table name for an sql buffer or offline data in a database",
        supported=always,
        value_type=nullable(STRING),
        fields=("buffer.name",),
        read=storage,
    ),
    mapped(
        f"{EXPERIENCE}.storage_type",
        None,
        "buffer.type",
        read=storage,
        value_type=nullable(one_of("queue", "sql", "file")),
        note="null means queue, or file under sft, cpt and dpo; a queue becomes a database where explorer and trainer "
        "are started separately",
    ),
    mapped(
        f"{EXPERIENCE}.path",
        None,
        "buffer.backup",
        "buffer.url",
        "buffer.path",
        "data.train.path",
        read=storage,
        value_type=nullable(STRING),
        note="under sft, cpt and dpo, the data; else the backup of a queue, a database, or a folder; a relative "
        "path of a database is relative to the working directory, as in Trinity; a queue's backup, which belongs "
        "to the run, and a folder are in the run folder",
    ),
    *_rows(EXPERIENCE, offline_data, _OURS, only_offline),
    *(
        also_inactive(row, any_inactive(only_offline, *([] if row.key in _OF_TEXT else [_of_answers])))
        for row in formats.rows(EXPERIENCE, offline_data, _OURS, answer="response")
    ),
    *(
        mapped(
            f"{EXPERIENCE}.format.{side}_key",
            None,
            f"{_OURS}.{side}",
            read=offline_data,
            value_type=nullable(STRING),
            inactive=_dpo,
            note=f"null means {side}",
        )
        for side in ("chosen", "rejected")
    ),
    formats.turns_row(EXPERIENCE, offline_data, _OURS, _sft),
    mapped(
        f"{EXPERIENCE}.format.chat_template",
        None,
        "data.chat_template",
        read=template,
        value_type=nullable(STRING),
        inactive=only_offline,
        note="Jinja; null means model.custom_chat_template",
    ),
    mapped(
        f"{EXPERIENCE}.max_read_timeout",
        1800,
        "buffer.read_timeout_seconds",
        "buffer.on_timeout",
        read=storage,
        value_type=NUMBER,
        inactive=only_sampled,
        note="an incomplete batch is trained on; for a batch without a group the trainer waits once more",
    ),
    mapped(
        f"{EXPERIENCE}.use_priority_queue",
        False,
        "buffer.type",
        read=storage,
        value_type=BOOLEAN,
        inactive=_queue,
    ),
    mapped(
        f"{EXPERIENCE}.reuse_cooldown_time",
        None,
        "buffer.reuse_cooldown_seconds",
        read=storage,
        value_type=nullable(NUMBER),
        inactive=_reused,
        note="null means that each is trained on once",
    ),
)
ARGUMENTS: tuple[KeyMapping, ...] = not_on_page(
    mapped(
        f"{EXPERIENCE}.format.image_key",
        None,
        f"{_OURS}.images",
        read=offline_data,
        value_type=nullable(STRING),
        inactive=only_offline,
        note="images without a marker <image> stand at the start of the prompt",
    ),
    mapped(
        f"{EXPERIENCE}.replay_buffer_kwargs.decay",
        None,
        "buffer.use_penalty",
        read=storage,
        value_type=nullable(NUMBER),
        inactive=_priority,
        note="0.3's name of replay_buffer.priority_fn_args.decay",
    ),
    mapped(
        f"{EXPERIENCE}.replay_buffer_kwargs.priority_fn",
        "linear_decay",
        "buffer.use_penalty",
        read=storage,
        value_type=one_of("linear_decay"),
        inactive=_priority,
    ),
    mapped(
        f"{EXPERIENCE}.capacity",
        None,
        "buffer.capacity_groups",
        read=storage,
        value_type=nullable(INTEGER),
        inactive=any_inactive(
            only_sampled,
            lambda foreign: "storage_type is file" if storage_type(foreign) == "file" else None,
        ),
        note="counts groups, the rollouts of one task; null means 4096",
    ),
    mapped(
        f"{EXPERIENCE}.replay_buffer.enable",
        False,
        "buffer.type",
        read=storage,
        inactive=_queue,
        note="the same as use_priority_queue of earlier versions",
    ),
    mapped(
        f"{EXPERIENCE}.replay_buffer.reuse_cooldown_time",
        None,
        "buffer.reuse_cooldown_seconds",
        read=storage,
        value_type=nullable(NUMBER),
        inactive=_reused,
        note="null means that each is trained on once",
    ),
    mapped(
        f"{EXPERIENCE}.replay_buffer.priority_fn",
        "linear_decay",
        "buffer.max_uses",
        read=storage,
        value_type=one_of("linear_decay", "decay_limit_randomization"),
        inactive=_priority,
    ),
    mapped(
        f"{EXPERIENCE}.replay_buffer.priority_fn_args.decay",
        2.0,
        "buffer.use_penalty",
        read=storage,
        inactive=_priority,
    ),
    *(
        mapped(
            f"{EXPERIENCE}.replay_buffer.priority_fn_args.{name}",
            default,
            field,
            read=storage,
            value_type=value_type,
            inactive=_limited,
        )
        for name, default, field, value_type in (
            ("use_count_limit", 3, "buffer.max_uses", INTEGER),
            ("sigma", 0.0, "buffer.noise", NUMBER),
        )
    ),
    no_effect(
        f"{EXPERIENCE}.enable_progress_bar", False, "data are read without a progress bar", value_type=BOOLEAN
    ),
    no_effect(
        f"{EXPERIENCE}.format.reply_prefix",
        None,
        "only workflows read it; responses that are given have none",
        value_type=nullable(STRING),
    ),
    *(
        no_effect(
            f"{EXPERIENCE}.{name}", default, "a database is read with Strop's own retries", value_type=ANY
        )
        for name, default in (("max_retry_times", 3), ("max_retry_interval", 1))
    ),
    *(
        no_effect(f"{EXPERIENCE}.{name}", UNSET, "Trinity sets it itself", value_type=ANY)
        for name in (
            "schema_type",
            "index",
            "batch_size",
            "tokenizer_path",
            "total_epochs",
            "total_steps",
            "ray_namespace",
        )
    ),
    placement(
        f"{EXPERIENCE}.wrap_in_ray",
        True,
        "a queue is always an actor on a cluster",
        supported=always,
        value_type=BOOLEAN,
    ),
)
TEMPLATE_PATH = mapped(
    "model.chat_template_path",
    None,
    "data.chat_template",
    read=template,
    value_type=nullable(STRING),
    note="a Jinja file; custom_chat_template takes precedence",
)
TEMPLATE = mapped(
    "model.custom_chat_template",
    None,
    "data.chat_template",
    read=template,
    value_type=nullable(STRING),
    note="the Jinja template, not a path",
)
