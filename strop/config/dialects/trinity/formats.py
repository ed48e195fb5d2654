"""Trinity's `format`: which columns hold what, of tasks and of given answers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from strop.config.dialects.row import TEXT, YES_NO, Row, beyond_the_page, mapped, one_of, or_null
from strop.config.dialects.theirs import Theirs

_FILES = (".jsonl", ".json", ".parquet")
_DATABASES = ("sqlite:///", "postgresql://", "postgres://")


def place(theirs: Theirs, at: str) -> dict[str, Any]:
    """Where rows are: a file, a directory with splits, or a table of a database."""
    path, storage = _path(theirs, at), theirs[f"{at}.storage_type"]
    if storage == "queue":
        raise theirs.fault(
            f"{at}.storage_type",
            f"{at}.storage_type is queue, and these rows must all be there at the start; write file, or sql.",
        )
    if storage == "sql":
        return table(theirs, at)
    split = None if path.endswith(_FILES) else theirs[f"{at}.split"] or "train"
    return {"path": path, "split": split, "subset": theirs[f"{at}.subset_name"]}


def table(theirs: Theirs, at: str) -> dict[str, Any]:
    """A table of a database, by the name of what is read."""
    return {"path": database(_path(theirs, at)), "table": theirs[f"{at}.name"]}


def _path(theirs: Theirs, at: str) -> str:
    path = theirs[f"{at}.path"]
    if not path:
        raise theirs.fault(f"{at}.path", f"write {at}.path: a file or directory of JSON Lines or Parquet.")
    return str(path)


def database(path: str) -> str:
    """A database's URL; a plain path is a SQLite file."""
    return path if path.startswith(_DATABASES) else f"sqlite:///{path}"


def is_messages(theirs: Theirs, at: str) -> bool:
    """Whether a column holds messages; left out, the written `messages_key` says so."""
    said = theirs[f"{at}.format.prompt_type"]
    return theirs.wrote(f"{at}.format.messages_key") if said is None else said == "messages"


def task_columns(theirs: Theirs, at: str) -> dict[str, Any]:
    """The columns of tasks that are sampled from."""
    form = f"{at}.format"
    messages = is_messages(theirs, at)
    key, default = ("messages_key", "message") if messages else ("prompt_key", "prompt")
    return {
        "prompt": theirs[f"{form}.{key}"] or default,
        "answer": theirs[f"{form}.response_key"] or "response",
        "reply_prefix": theirs[f"{form}.reply_prefix"] or "",
        **_shown(theirs, at, messages=messages),
    }


def answer_columns(theirs: Theirs, at: str) -> dict[str, Any]:
    """The columns of answers to imitate."""
    form = f"{at}.format"
    messages = is_messages(theirs, at)
    settings = {"answer": None, **_shown(theirs, at, messages=messages)}
    if not messages:
        prompt = theirs[f"{form}.prompt_key"] or "prompt"
        return {**settings, "prompt": prompt, "response": theirs[f"{form}.response_key"] or "response"}
    turns = "all" if theirs[f"{form}.enable_concatenated_multi_turn"] else "last"
    return {**settings, "response": theirs[f"{form}.messages_key"] or "message", "trained_turns": turns}


def pair_columns(theirs: Theirs, at: str) -> dict[str, Any]:
    """The columns of a prompt and its two answers."""
    columns = task_columns(theirs, at)
    return {
        **{name: columns[name] for name in ("prompt", "system", "system_column", "tools")},
        "answer": None,
        "chosen": theirs[f"{at}.format.chosen_key"] or "chosen",
        "rejected": theirs[f"{at}.format.rejected_key"] or "rejected",
    }


def _shown(theirs: Theirs, at: str, *, messages: bool) -> dict[str, Any]:
    form = f"{at}.format"
    return {
        "system": None if messages else theirs[f"{form}.system_prompt"],
        "system_column": None if messages else theirs[f"{form}.system_prompt_key"],
        "tools": theirs[f"{form}.tools_key"],
    }


def rows(at: str, read: Any, ours: str, *, answer: str) -> tuple[Row, ...]:
    """The rows of a `format`; `answer` is the column that `response_key` names."""
    form = f"{at}.format"
    text = partial(mapped, read=read, kind=or_null(TEXT))
    plain = _only(at, plain=True)
    return (
        mapped(
            f"{form}.prompt_type",
            None,
            f"{ours}.prompt",
            read=read,
            kind=or_null(one_of("plaintext", "messages")),
            note="where it is left out, messages if messages_key is written, and else plaintext",
        ),
        text(f"{form}.prompt_key", None, f"{ours}.prompt", off=plain, note="prompt where it is left out"),
        text(f"{form}.response_key", None, f"{ours}.{answer}", note="response where it is left out"),
        text(f"{form}.system_prompt_key", None, f"{ours}.system_column", off=plain),
        text(f"{form}.system_prompt", None, f"{ours}.system", off=plain, note="after system_prompt_key"),
        text(
            f"{form}.messages_key",
            None,
            f"{ours}.prompt" if answer == "answer" else f"{ours}.response",
            off=_only(at, plain=False),
            note="message where it is left out",
        ),
        text(f"{form}.tools_key", None, f"{ours}.tools"),
    )


def prefix_row(at: str, read: Any, ours: str) -> tuple[Row, ...]:
    """The text that answers begin with."""
    name = f"{at}.format.reply_prefix"
    return beyond_the_page(mapped(name, None, f"{ours}.reply_prefix", read=read, kind=or_null(TEXT)))


def turns_row(at: str, read: Any, ours: str, off: Callable[[Theirs], str | None]) -> Row:
    """Whether all turns of a conversation are learned."""
    return mapped(
        f"{at}.format.enable_concatenated_multi_turn",
        False,
        f"{ours}.trained_turns",
        read=read,
        kind=YES_NO,
        off=off,
        note="false trains the last of the assistant's turns alone",
    )


def _only(at: str, *, plain: bool) -> Callable[[Theirs], str | None]:
    def off(theirs: Theirs) -> str | None:
        if ".*." in at or ".0." in f"{at}." or is_messages(theirs, at) != plain:
            return None
        return f"{at} has {'messages' if plain else 'plaintext'}"

    return off
