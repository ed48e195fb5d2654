"""Prompts of rows in the form of Alpaca and of ms-swift, which have the columns `input` and `history` too.

What they mean is that of LLaMA-Factory (src/llamafactory/data/converter.py): the two parts of a prompt are joined by a
line break.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.config.schema.data import ALPACA_PROMPTS, TasksetConfig
from strop.data.sources.columns import messages_at
from strop.errors import DataError
from strop.workers.json_text import parse_json

_FORM = ("input", "history", "system")


def prompt_columns(section: TasksetConfig) -> list[str]:
    """All columns from which a prompt is made; rows may lack those of the form of Alpaca."""
    named = [section.prompt, section.tools, section.system_column]
    if section.prompt in ALPACA_PROMPTS:
        named += _FORM
    return [column for column in named if column is not None]


def form_columns(row: Mapping[str, Any], section: TasksetConfig) -> list[str]:
    """Columns with a value that belong to a prompt in the form of Alpaca or ms-swift, next to its own column."""
    if section.prompt not in ALPACA_PROMPTS:
        return []
    taken = {
        section.response,
        section.label,
        section.chosen,
        section.rejected,
        section.tools,
        section.images,
        section.answer,
    }
    found = [name for name in _FORM if row.get(name) not in (None, "", [])]
    if section.prompt != "instruction":
        found = [name for name in found if name != "input"]
    return [name for name in found if name not in taken and not (name == "system" and section.system_column)]


def prompt_value(row: Mapping[str, Any], where: str, section: TasksetConfig) -> Any:
    """Text or messages of the prompt column; in the form of Alpaca with its `input`, and after its `history`.

    Raises `DataError` for columns of that form with other values.
    """
    value = messages_at(row, section.prompt, where)
    columns = form_columns(row, section)
    if "input" in columns:
        if not isinstance(value, str) or not isinstance(row["input"], str):
            raise DataError(
                f"{where}: the columns 'instruction' and 'input' are the two parts of a prompt, which must be text. "
                "Name another column as the prompt, or rename input."
            )
        value = f"{value}\n{row['input']}" if value else row["input"]
    if "history" not in columns:
        return value
    earlier = _turns(row["history"], where)
    return [*earlier, {"role": "user", "content": value}] if isinstance(value, str) else [*earlier, *value]


def _turns(history: Any, where: str) -> list[dict[str, str]]:
    """The messages of earlier turns: pairs of a prompt and a response, or their JSON text."""
    try:
        pairs = parse_json(history) if isinstance(history, str) else history
        turns = [(user, assistant) for user, assistant in pairs]
        if not all(isinstance(text, str) for turn in turns for text in turn):
            raise TypeError
    except (ValueError, TypeError):
        raise DataError(
            f"{where}: the column 'history' is {history!r:.80}, not a list of pairs of texts such as "
            '[["question", "answer"]].'
        ) from None
    return [
        {"role": role, "content": text}
        for turn in turns
        for role, text in zip(("user", "assistant"), turn, strict=True)
    ]
