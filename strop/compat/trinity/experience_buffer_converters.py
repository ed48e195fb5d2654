"""Converters of Trinity's `experience_buffer`: rollout storage, the offline data of sft, cpt and dpo, and the chat
template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.compat.ledger.key_mapping import ForeignValues, written_by
from strop.compat.trinity import formats, topology
from strop.compat.trinity.buffer_writer import (
    EXPERIENCE,
    write_offline_data,
    write_storage,
    write_template,
)
from strop.compat.trinity.presets import algorithm_type, is_offline


@written_by(write_storage)
def storage(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the buffer between explorer and trainer."""
    if is_offline(foreign):
        return {}
    settings: dict[str, Any] = {
        "buffer.read_timeout_seconds": foreign[f"{EXPERIENCE}.max_read_timeout"],
        "buffer.on_timeout": "train",
    }
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
                **({} if url is None or _is_absolute(url) else {"buffer.relative_to": "working_directory"}),
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


def _is_absolute(url: str) -> bool:
    """Whether a database is one of a server, or a file with an absolute path."""
    return not url.startswith("sqlite:///") or url.startswith(("sqlite:////", "sqlite:///~"))


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
    kind = storage_type(foreign)
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


def storage_type(foreign: ForeignValues) -> str:
    """The storage type that is set, or the default of the algorithm type."""
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
