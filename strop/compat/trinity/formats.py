"""Ledger rows, reading and writing of Trinity's storages: the location of rows and their `format`, the columns."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from strop.compat.ledger.data_columns import known_columns
from strop.compat.ledger.key_mapping import (
    ANY,
    STRING,
    ForeignValues,
    InactiveCheck,
    KeyMapping,
    mapped,
    no_effect,
    nullable,
    one_of,
)
from strop.config.paths import data_file_name
from strop.config.schema.data import TasksetConfig

INPUT = "buffer.explorer_input"
TASKSET, EVAL = f"{INPUT}.taskset", f"{INPUT}.eval_tasksets"
EXPERIENCE = "buffer.trainer_input.experience_buffer"
AUXILIARY = "buffer.trainer_input.auxiliary_buffers"
UNMARKED_IMAGES = "images without a marker <image> stand at the start of the prompt"
_SYSTEM, _PREFIX = f"{INPUT}.system_prompt", f"{INPUT}.reply_prefix"
_PIPELINE_INPUTS = "data_processor.task_pipeline.inputs"
_DATABASES = ("sqlite:///", "postgresql://", "postgres://")


def row_source(foreign: ForeignValues, at: str) -> dict[str, Any]:
    """The location of rows: the inputs of a task pipeline, a file, a directory with splits, or a database table."""
    if at == TASKSET and (inputs := _pipeline_inputs(foreign)):
        is_named = all(data_file_name(path) or "://" in path for path in inputs)
        split = None if is_named else foreign[f"{at}.split"] or "train"
        source = {"split": split, "subset": None if is_named else foreign[f"{at}.subset_name"]}
        return {"path": inputs[0] if len(inputs) == 1 else inputs, **source}
    path, storage = _path(foreign, at), foreign[f"{at}.storage_type"]
    if storage == "queue":
        raise foreign.error_for(
            f"{at}.storage_type",
            f"{at}.storage_type is queue, but all these rows must exist when the run starts; write file or "
            "sql.",
        )
    if storage == "sql":
        return table_source(foreign, at)
    split = None if data_file_name(path) else foreign[f"{at}.split"] or "train"
    return {"path": path, "split": split, "subset": foreign[f"{at}.subset_name"]}


def write_source(at: str, taskset: TasksetConfig) -> dict[str, Any]:
    if taskset.table is not None:
        return {f"{at}.storage_type": "sql", f"{at}.path": taskset.path, f"{at}.name": taskset.table}
    return {f"{at}.path": taskset.path, f"{at}.split": taskset.split, f"{at}.subset_name": taskset.subset}


def _single_file(at: str) -> InactiveCheck:
    """Check that finds a split inactive where the rows are in one file; of a list of sections, in one file each."""

    def inactive(foreign: ForeignValues) -> str | None:
        section, is_item = (at[:-2], True) if at.endswith(".0") else (at, False)
        places = [f"{section}.{index}" for index in foreign[section] or {}] if is_item else [at]
        paths = [foreign[f"{place}.path"] for place in places if foreign.is_set(f"{place}.split")]
        named = [str(path) for path in paths if path and data_file_name(str(path))]
        return f"{named[0]} is a single file" if named and len(named) == len(paths) else None

    return inactive


def _pipeline_inputs(foreign: ForeignValues) -> list[str]:
    """The inputs of the task pipeline; empty without them, or without operators."""
    if not foreign.is_set(_PIPELINE_INPUTS) or not foreign["data_processor.task_pipeline.operators"]:
        return []
    inputs = foreign[_PIPELINE_INPUTS]
    return [inputs] if isinstance(inputs, str) else list(inputs or [])


def table_source(foreign: ForeignValues, at: str) -> dict[str, Any]:
    """The location of rows in a database table."""
    return {"path": database_url(_path(foreign, at)), "table": foreign[f"{at}.name"]}


def _path(foreign: ForeignValues, at: str) -> str:
    path = foreign[f"{at}.path"]
    if not path:
        raise foreign.error_for(
            f"{at}.path", f"write {at}.path: a file or directory of JSON Lines or Parquet."
        )
    return str(path)


def database_url(path: str) -> str:
    """The URL of a database; a plain path is a SQLite file."""
    return path if path.startswith(_DATABASES) else f"sqlite:///{path}"


def _is_messages(foreign: ForeignValues, at: str) -> bool:
    """Whether the prompt column has messages. Without `prompt_type`, that is where `messages_key` is set."""
    prompt_type = foreign[f"{at}.format.prompt_type"]
    return foreign.is_set(f"{at}.format.messages_key") if prompt_type is None else prompt_type == "messages"


def task_columns(foreign: ForeignValues, at: str) -> dict[str, Any]:
    """The columns of tasks for sampling."""
    form = f"{at}.format"
    messages = _is_messages(foreign, at)
    key, default = ("messages_key", "message") if messages else ("prompt_key", "prompt")
    return {
        "prompt": foreign[f"{form}.{key}"] or default,
        "answer": foreign[f"{form}.response_key"] or "response",
        "reply_prefix": foreign[f"{form}.reply_prefix"] or foreign[_PREFIX] or "",
        **_shown(foreign, at, messages=messages),
    }


def texts(foreign: ForeignValues, at: str) -> dict[str, Any]:
    """The columns and texts that a workflow class of Trinity reads from a task."""
    form = f"{at}.format"
    names = ("prompt_key", "response_key", "messages_key", "tools_key", "system_prompt", "system_prompt_key")
    written = {name: foreign[f"{form}.{name}"] for name in names}
    written["prompt_key"] = written["prompt_key"] or "prompt"
    written["system_prompt"] = written["system_prompt"] or _system(foreign, at)
    written["reply_prefix"] = foreign[f"{form}.reply_prefix"] or foreign[_PREFIX]
    written["prompt_type"] = "messages" if _is_messages(foreign, at) else None
    return {name: value for name, value in written.items() if value}


def answer_columns(foreign: ForeignValues, at: str) -> dict[str, Any]:
    """The columns of demonstrations."""
    form = f"{at}.format"
    messages = _is_messages(foreign, at)
    settings = {"answer": None, **_shown(foreign, at, messages=messages), **_tools(foreign, at)}
    if not messages:
        prompt = foreign[f"{form}.prompt_key"] or "prompt"
        return {**settings, "prompt": prompt, "response": foreign[f"{form}.response_key"] or "response"}
    turns = "all" if foreign[f"{form}.enable_concatenated_multi_turn"] else "last"
    return {**settings, "response": foreign[f"{form}.messages_key"] or "message", "trained_turns": turns}


def _tools(foreign: ForeignValues, at: str) -> dict[str, Any]:
    """The column `tools`, which Trinity's SFT reads where a file has it and no key names another."""
    if foreign[f"{at}.format.tools_key"] or "tools" not in (
        known_columns([foreign[f"{at}.path"] or ""]) or ()
    ):
        return {}
    return {
        "tools": "tools",
        "optional_columns": [*_images(foreign, f"{at}.format").get("optional_columns", ()), "tools"],
    }


def text_columns(foreign: ForeignValues, at: str) -> dict[str, Any]:
    """The column of plain text for continued pretraining, which has no chat template."""
    form = f"{at}.format"
    if _is_messages(foreign, at):
        raise foreign.error_for(
            f"{form}.prompt_type",
            f"algorithm_type cpt trains on plain text, and {at}.format has messages. Write prompt_type: plaintext "
            "with the column of the text as prompt_key, or algorithm_type: sft.",
        )
    return {"answer": None, "text": foreign[f"{form}.prompt_key"] or "prompt"}


def pair_columns(foreign: ForeignValues, at: str) -> dict[str, Any]:
    """The columns of preference pairs: a prompt with a chosen and a rejected response."""
    columns = task_columns(foreign, at)
    return {
        **{name: columns[name] for name in ("prompt", "system", "system_column", "tools")},
        "answer": None,
        "chosen": foreign[f"{at}.format.chosen_key"] or "chosen",
        "rejected": foreign[f"{at}.format.rejected_key"] or "rejected",
    }


def _shown(foreign: ForeignValues, at: str, *, messages: bool) -> dict[str, Any]:
    form = f"{at}.format"
    return {
        "system": None if messages else foreign[f"{form}.system_prompt"] or _system(foreign, at),
        "system_column": None if messages else foreign[f"{form}.system_prompt_key"],
        "tools": foreign[f"{form}.tools_key"],
        **_images(foreign, form),
    }


def _images(foreign: ForeignValues, form: str) -> dict[str, Any]:
    """The column of images, which rows may lack."""
    column = foreign[f"{form}.image_key"] if foreign.has_row(f"{form}.image_key") else None
    return {"images": column, "optional_columns": [column]} if column else {}


def _system(foreign: ForeignValues, at: str) -> str | None:
    """The system message of all tasksets; demonstrations and pairs have none."""
    return foreign[_SYSTEM] if at.startswith(INPUT) else None


def write_columns(at: str, taskset: TasksetConfig) -> dict[str, Any]:
    """The columns of a taskset. Strop treats message and text columns alike; both are written as text
    columns."""
    return {
        **write_source(at, taskset),
        f"{at}.format.prompt_key": taskset.prompt,
        f"{at}.format.response_key": taskset.answer,
        f"{at}.format.system_prompt": taskset.system,
        f"{at}.format.system_prompt_key": taskset.system_column,
        f"{at}.format.tools_key": taskset.tools,
        **({f"{at}.format.image_key": taskset.images} if taskset.images else {}),
        f"{at}.format.reply_prefix": taskset.reply_prefix or None,
    }


def write_answer_columns(at: str, taskset: TasksetConfig) -> dict[str, Any]:
    """The columns of demonstrations: prompt and response, or a whole conversation."""
    values = {**write_columns(at, taskset), f"{at}.format.response_key": taskset.response}
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


def source_rows(at: str, read: Any, field: str) -> tuple[KeyMapping, ...]:
    """Rows of the location of rows in files."""
    text = partial(mapped, read=read, value_type=nullable(STRING))
    split = text(
        f"{at}.split", None, f"{field}.split", inactive=_single_file(at), note="ignored for a single file"
    )
    return (
        text(f"{at}.path", None, f"{field}.path"),
        text(f"{at}.subset_name", None, f"{field}.subset"),
        split,
    )


def retry_rows(at: str) -> tuple[KeyMapping, ...]:
    """Rows of the retries of a database."""
    retries = {"max_retry_times": 3, "max_retry_interval": 1}
    why = "a database is read with Strop's own retries"
    return tuple(no_effect(f"{at}.{name}", default, why, value_type=ANY) for name, default in retries.items())


def format_rows(at: str, read: Any, field: str, *, answer: str) -> tuple[KeyMapping, ...]:
    """Rows of a `format` section; `answer` is the run-file field that `response_key` decides."""
    form = f"{at}.format"
    text = partial(mapped, read=read, value_type=nullable(STRING))
    plain = _only(at, plain=True)
    return (
        mapped(
            f"{form}.prompt_type",
            None,
            f"{field}.prompt",
            read=read,
            value_type=nullable(one_of("plaintext", "messages")),
            note="null means messages if messages_key is set, else plaintext",
        ),
        text(f"{form}.prompt_key", None, f"{field}.prompt", inactive=plain, note="null means prompt"),
        text(f"{form}.response_key", None, f"{field}.{answer}", note="null means response"),
        text(f"{form}.system_prompt_key", None, f"{field}.system_column", inactive=plain),
        text(
            f"{form}.system_prompt",
            None,
            f"{field}.system",
            inactive=plain,
            note="used for rows without a value in the column system_prompt_key",
        ),
        text(
            f"{form}.messages_key",
            None,
            f"{field}.prompt" if answer == "answer" else f"{field}.response",
            inactive=_only(at, plain=False),
            note="null means message",
        ),
        text(f"{form}.tools_key", None, f"{field}.tools"),
    )


def turns_row(at: str, read: Any, field: str, inactive: Callable[[ForeignValues], str | None]) -> KeyMapping:
    """Row of the switch that trains all turns of a conversation."""
    return mapped(
        f"{at}.format.enable_concatenated_multi_turn",
        False,
        f"{field}.trained_turns",
        read=read,
        inactive=inactive,
        note="false trains only the last assistant turn",
    )


def _only(at: str, *, plain: bool) -> Callable[[ForeignValues], str | None]:
    def inactive(foreign: ForeignValues) -> str | None:
        if ".*." in at or ".0." in f"{at}." or _is_messages(foreign, at) != plain:
            return None
        return f"{at} has {'messages' if plain else 'plaintext'}"

    return inactive
