"""Ledger rows of Trinity's `buffer.trainer_input.experience_buffer`: rollout storage, or the offline data of
sft, cpt and dpo."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from strop.dialects.ledger.key_mapping import (
    UNSET,
    ForeignValues,
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
    written_by,
)
from strop.dialects.ledger.value_types import ANY, BOOLEAN, INTEGER, NUMBER, STRING, nullable, one_of
from strop.dialects.trinity import formats, topology
from strop.dialects.trinity.buffer_writer import (
    EXPERIENCE,
    write_offline_data,
    write_storage,
    write_template,
)
from strop.dialects.trinity.presets import (
    algorithm_type,
    is_offline,
    only_offline,
    only_sampled,
    only_types,
)


@written_by(write_storage)
def storage(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the buffer between explorer and trainer."""
    if is_offline(foreign):
        return {}
    settings: dict[str, Any] = {"buffer.read_timeout_seconds": foreign[f"{EXPERIENCE}.max_read_timeout"]}
    path, groups = foreign[f"{EXPERIENCE}.path"] or None, foreign[f"{EXPERIENCE}.capacity"]
    groups = topology.buffer_capacity(foreign) if groups is None else groups
    capacity = {} if groups is None else {"buffer.capacity_groups": groups}
    name = foreign[f"{EXPERIENCE}.name"] or None
    match _storage_kind(foreign, path):
        case "file":
            folder = {} if path is None else {"buffer.path": path}
            return {**settings, "buffer.type": "file", **folder}
        case "sql":
            url = None if path is None else formats.database(path)
            return {
                **settings,
                "buffer.type": "sql",
                "buffer.url": url,
                "buffer.name": name,
                **capacity,
            }
    backup = None if path is None else path.removeprefix("sqlite:///")
    settings |= {"buffer.backup": backup, **capacity, **({} if name is None else {"buffer.name": name})}
    if not topology.uses_priority_queue(foreign):
        return {**settings, "buffer.type": "queue"}
    cooldown = foreign[f"{EXPERIENCE}.replay_buffer.reuse_cooldown_time"]
    cooldown = foreign[f"{EXPERIENCE}.reuse_cooldown_time"] if cooldown is None else cooldown
    cooldown = cooldown if topology.is_distributed(foreign) else None
    return {
        **settings,
        "buffer.type": "priority",
        "buffer.reuse_cooldown_seconds": cooldown,
        **_priority_rule(foreign),
    }


def _priority_rule(foreign: ForeignValues) -> dict[str, Any]:
    """The priority of `replay_buffer`: version minus decay times uses; one of its functions adds noise and a
    maximum number of uses."""
    at = f"{EXPERIENCE}.replay_buffer"
    earlier = foreign[f"{EXPERIENCE}.replay_buffer_kwargs.decay"]
    settings = {"buffer.use_penalty": foreign[f"{at}.priority_fn_args.decay"] if earlier is None else earlier}
    if foreign[f"{at}.priority_fn"] == "decay_limit_randomization":
        settings["buffer.max_uses"] = foreign[f"{at}.priority_fn_args.use_count_limit"]
        settings["buffer.noise"] = foreign[f"{at}.priority_fn_args.sigma"]
    return settings


def _storage_kind(foreign: ForeignValues, path: str | None) -> str:
    """The storage type of the buffer. A queue becomes a database where explorer and trainer are started
    separately."""
    kind = _storage_type(foreign)
    if kind != "queue" or not topology.is_distributed(foreign):
        return kind
    if topology.uses_priority_queue(foreign) and topology.is_single_role(foreign):
        raise foreign.error_for(
            f"{EXPERIENCE}.use_priority_queue",
            f"{EXPERIENCE}.use_priority_queue is True, but a priority queue is supported only in mode both. "
            f"In mode {foreign['mode']}, explorer and trainer exchange rollouts through a database: remove "
            "use_priority_queue, or write mode: both.",
        )
    in_database = path is not None and path.startswith("postgres")
    return "sql" if topology.is_single_role(foreign) or in_database else "queue"


def _storage_type(foreign: ForeignValues) -> str:
    written = foreign[f"{EXPERIENCE}.storage_type"]
    return str(written or ("file" if is_offline(foreign) else "queue"))


_COLUMNS = {"sft": formats.answer_columns, "cpt": formats.text_columns, "dpo": formats.pair_columns}
"""Columns of the training data of each type that has no rollouts."""


@written_by(write_offline_data)
def offline_data(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the training data of sft, cpt and dpo, which Trinity has in the experience buffer."""
    if not is_offline(foreign):
        return {}
    columns = _COLUMNS[algorithm_type(foreign)](foreign, EXPERIENCE)
    settings = {**formats.row_source(foreign, EXPERIENCE), **columns}
    return {f"data.train.{name}": value for name, value in settings.items()}


@written_by(write_template)
def template(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the chat template; the data's template takes precedence over the model's."""
    data_template = foreign[f"{EXPERIENCE}.format.chat_template"] if is_offline(foreign) else None
    chat_template = (
        data_template or foreign["model.custom_chat_template"] or foreign["model.chat_template_path"]
    )
    return {"data.chat_template": chat_template} if chat_template else {}


def _rows(at: str, read: Any, field: str, inactive: InactiveCheck) -> tuple[KeyMapping, ...]:
    """Rows of the subset and the split of offline data."""
    text = partial(mapped, read=read, value_type=nullable(STRING))
    return (
        text(f"{at}.subset_name", None, f"{field}.subset", inactive=inactive),
        text(f"{at}.split", None, f"{field}.split", inactive=inactive, note="ignored for a single file"),
    )


_queue = any_inactive(
    only_sampled,
    lambda foreign: (
        None if _storage_type(foreign) == "queue" else f"storage_type is {_storage_type(foreign)}"
    ),
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
        note="under sft, cpt and dpo, the data; else the backup of a queue, a database, or a folder; a relative path "
        "is in the run folder",
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
        read=storage,
        value_type=NUMBER,
        inactive=only_sampled,
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
            lambda foreign: "storage_type is file" if _storage_type(foreign) == "file" else None,
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
