"""Trinity's `buffer.trainer_input`: where rollouts wait, and given answers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from strop.config.dialects.row import (
    NUMBER,
    TEXT,
    WHOLE,
    YES_NO,
    Off,
    Row,
    also_off,
    always,
    beyond_the_page,
    either,
    mapped,
    one_of,
    or_null,
    placement,
    written_by,
)
from strop.config.dialects.theirs import Theirs
from strop.config.dialects.trinity import formats, parts
from strop.config.dialects.trinity.presets import (
    is_offline,
    kind,
    only_given,
    only_sampled,
    only_types,
)
from strop.config.dialects.trinity.write_buffer import (
    EXPERIENCE,
    write_answers,
    write_storage,
    write_template,
)


@written_by(write_storage)
def storage(theirs: Theirs) -> Mapping[str, Any]:
    """Where rollouts wait to be trained on."""
    if is_offline(theirs):
        return {}
    settings: dict[str, Any] = {"buffer.read_timeout_seconds": theirs[f"{EXPERIENCE}.max_read_timeout"]}
    path, held = theirs[f"{EXPERIENCE}.path"], theirs[f"{EXPERIENCE}.capacity"]
    held = parts.room(theirs) if held is None else held
    room = {} if held is None else {"buffer.capacity_groups": held}
    name = theirs[f"{EXPERIENCE}.name"]
    match _kept_in(theirs, path):
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
                **room,
            }
    backup = None if path is None else path.removeprefix("sqlite:///")
    settings |= {"buffer.backup": backup, **room, **({} if name is None else {"buffer.name": name})}
    if not theirs[f"{EXPERIENCE}.use_priority_queue"]:
        return {**settings, "buffer.type": "queue"}
    cooldown = theirs[f"{EXPERIENCE}.reuse_cooldown_time"] if parts.is_apart(theirs) else None
    return {**settings, "buffer.type": "priority", "buffer.reuse_cooldown_seconds": cooldown}


def _kept_in(theirs: Theirs, path: str | None) -> str:
    """A queue is here what it is there, unless its two ends are started apart: those meet in a database."""
    said = _storage_type(theirs)
    if said != "queue" or not parts.is_apart(theirs):
        return said
    if theirs[f"{EXPERIENCE}.use_priority_queue"] and parts.is_half(theirs):
        raise theirs.fault(
            f"{EXPERIENCE}.use_priority_queue",
            f"{EXPERIENCE}.use_priority_queue is True, and a priority queue is a process of a run in mode "
            f"both. With mode {theirs['mode']} the other half meets this one in a database: leave "
            "use_priority_queue out, or write mode: both.",
        )
    in_database = path is not None and path.startswith("postgres")
    return "sql" if parts.is_half(theirs) or in_database else "queue"


def _storage_type(theirs: Theirs) -> str:
    said = theirs[f"{EXPERIENCE}.storage_type"]
    return str(said or ("file" if is_offline(theirs) else "queue"))


@written_by(write_answers)
def answers(theirs: Theirs) -> Mapping[str, Any]:
    """Under sft and dpo the experience buffer is the data."""
    if not is_offline(theirs):
        return {}
    columns = formats.pair_columns if kind(theirs) == "dpo" else formats.answer_columns
    settings = {**formats.place(theirs, EXPERIENCE), **columns(theirs, EXPERIENCE)}
    return {f"data.train.{name}": value for name, value in settings.items()}


@written_by(write_template)
def template(theirs: Theirs) -> Mapping[str, Any]:
    """The data's own chat template comes before the model's."""
    own = theirs[f"{EXPERIENCE}.format.chat_template"] if is_offline(theirs) else None
    said = own or theirs["model.custom_chat_template"]
    return {"data.chat_template": said} if said else {}


def _rows(at: str, read: Any, ours: str, off: Off) -> tuple[Row, ...]:
    """What given answers are read by, whichever buffer they are in."""
    text = partial(mapped, read=read, kind=or_null(TEXT))
    return (
        text(f"{at}.subset_name", None, f"{ours}.subset", off=off),
        text(f"{at}.split", None, f"{ours}.split", off=off, note="of a single file there is none"),
    )


_queue = either(
    only_sampled,
    lambda theirs: None if _storage_type(theirs) == "queue" else f"storage_type is {_storage_type(theirs)}",
)
_priority = either(
    _queue,
    lambda theirs: None if theirs[f"{EXPERIENCE}.use_priority_queue"] else "use_priority_queue is False",
)
_reused = either(
    _priority,
    lambda theirs: (
        None
        if parts.is_apart(theirs)
        else "explorer and trainer take turns, and each step learns from what it has just sampled"
    ),
)
_dpo, _sft = only_types("dpo"), only_types("sft")
_OURS = "data.train"
ROWS: tuple[Row, ...] = (
    placement(
        f"{EXPERIENCE}.name",
        None,
        "a queue's name as an actor, on a cluster; of an sql buffer, and of given answers in a database, the "
        "name there",
        can=always,
        kind=or_null(TEXT),
        ours=("buffer.name",),
        read=storage,
    ),
    mapped(
        f"{EXPERIENCE}.storage_type",
        None,
        "buffer.type",
        read=storage,
        kind=or_null(one_of("queue", "sql", "file")),
        note="queue, or file under sft and dpo, where it is left out; between two halves that are started "
        "apart a queue is a database",
    ),
    mapped(
        f"{EXPERIENCE}.path",
        None,
        "buffer.backup",
        "buffer.url",
        "buffer.path",
        "data.train.path",
        read=storage,
        kind=or_null(TEXT),
        note="under sft and dpo the data; else a queue's backup, a database, a folder: a relative one in the "
        "run's folder",
    ),
    *_rows(EXPERIENCE, answers, _OURS, only_given),
    *(also_off(row, only_given) for row in formats.rows(EXPERIENCE, answers, _OURS, answer="response")),
    *(
        mapped(
            f"{EXPERIENCE}.format.{side}_key",
            None,
            f"{_OURS}.{side}",
            read=answers,
            kind=or_null(TEXT),
            off=_dpo,
            note=f"{side} where it is left out",
        )
        for side in ("chosen", "rejected")
    ),
    formats.turns_row(EXPERIENCE, answers, _OURS, _sft),
    mapped(
        f"{EXPERIENCE}.format.chat_template",
        None,
        "data.chat_template",
        read=template,
        kind=or_null(TEXT),
        off=only_given,
        note="Jinja; model.custom_chat_template where it is left out",
    ),
    mapped(
        f"{EXPERIENCE}.max_read_timeout",
        1800,
        "buffer.read_timeout_seconds",
        read=storage,
        kind=NUMBER,
        off=only_sampled,
    ),
    mapped(
        f"{EXPERIENCE}.use_priority_queue",
        False,
        "buffer.type",
        read=storage,
        kind=YES_NO,
        off=_queue,
    ),
    mapped(
        f"{EXPERIENCE}.reuse_cooldown_time",
        None,
        "buffer.reuse_cooldown_seconds",
        read=storage,
        kind=or_null(NUMBER),
        off=_reused,
        note="null reads each once",
    ),
)
ARGUMENTS: tuple[Row, ...] = beyond_the_page(
    mapped(
        f"{EXPERIENCE}.capacity",
        None,
        "buffer.capacity_groups",
        read=storage,
        kind=or_null(WHOLE),
        off=either(
            only_sampled,
            lambda theirs: "storage_type is file" if _storage_type(theirs) == "file" else None,
        ),
        note="counts groups, the rollouts of one task; 4096 where it is left out",
    ),
    placement(
        f"{EXPERIENCE}.wrap_in_ray",
        True,
        "a queue is an actor wherever there is a cluster",
        can=always,
        kind=YES_NO,
    ),
)
TEMPLATE = mapped(
    "model.custom_chat_template",
    None,
    "data.chat_template",
    read=template,
    kind=or_null(TEXT),
    note="a Jinja template itself",
)
