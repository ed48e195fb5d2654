"""Keys of rows and messages that nothing reads, counted and said once for each taskset.

What is read, and what becomes of everything else, is the table in docs/data.md.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from strop.config.schema.data import TasksetConfig
from strop.data.encoding.messages import Tools
from strop.data.prompt_columns import form_columns
from strop.errors import DataError
from strop.printable import counted
from strop.types import Message

_BOOKKEEPING = frozenset({"id", "idx", "index", "uid", "uuid", "__index_level_0__"})
"""Columns that number rows; nothing that reads them is expected."""
_TOKEN_MASKS = (
    *("loss_mask", "completion_mask", "assistant_mask", "assistant_masks", "response_mask"),
    *("labels", "input_ids", "token_ids", "prompt_ids", "completion_ids"),
)
"""Columns of tokens, and of masks on them, by which other tools train on what they select."""
_ON_PROMPTS = ("train_on_input", "train_on_inputs", "train_on_prompt")
_ADVICE = {
    "tools": "write `tools: tools` in the taskset to give the model its tools",
    "system": "write `system_column: system` in the taskset for a row's own system message",
    "system_prompt": "write `system_column: system_prompt` in the taskset for a row's own system message",
    "images": "write `images: images` in the taskset if the model reads images",
    "image": "write `images: image` in the taskset if the model reads images",
    "chat_template_kwargs": "write `template_args_column: chat_template_kwargs` in the taskset for a row's own "
    "variables of the chat template",
    "history": "write earlier turns as messages of the prompt",
    "weight": "every row counts the same",
    "loss_mask": "write `weight: 0` in messages that are not trained on",
}
"""Columns that change prompts or training in other tools, with what to write instead."""
_CHANGES_PROMPTS = ("tools", "system", "system_prompt", "chat_template_kwargs", "history", "loss_mask")
_IMAGES = ("images", "image")
"""Columns that are looked for in the first row only: they may be large."""
_WHOLE_MESSAGES = re.compile(
    r"\b(?:messages?|msg|m|turn|loop_messages)\b\s*(?:\|\s*(?:tojson|string|items|dictsort|pprint)|\.items\()"
)
"""Parts of a template that render all keys of a message."""


class RowKeys:
    """Counts of the keys that rows of a taskset have and nothing reads."""

    def __init__(self, section: TasksetConfig, also_read: Iterable[str] = ()) -> None:
        """`also_read` are columns that are read apart from those that the taskset names."""
        self._section = section
        named = [
            *(
                section.text,
                section.response,
                section.label,
                section.chosen,
                section.rejected,
                section.margin,
                section.score,
                section.steps,
                section.images,
                section.tools,
            ),
            *(
                section.system_column,
                section.template_args_column,
                *section.template_columns.values(),
                *also_read,
            ),
        ]
        if section.text is None:
            named.append(section.prompt)
        self._read = {path for path in named if path is not None}
        self._images: list[str] = []
        self._columns: Counter[str] = Counter()
        self._joined: Counter[str] = Counter()
        self._messages: Counter[str] = Counter()
        self._variables: Counter[str] = Counter()

    def add_trained(self, row: Mapping[str, Any], where: str, *, reads_prompt: bool = True) -> None:
        """Count the columns of a row that is trained on. Raises `DataError` for a mask on tokens, which is not read."""
        joined = form_columns(row, self._section) if reads_prompt else []
        self._joined.update(joined)
        read = {*self._read, *joined} - ({self._section.prompt} if not reads_prompt else set())
        for path, value in _unread(row, read):
            _require_no_mask(path, value, where)
            self._columns[path] += 1

    def sampled_columns(self, first: Mapping[str, Any]) -> list[str]:
        """Columns that `add_sampled` counts, of those in the first row; `images` is noted if it is among them."""
        self._images = [name for name in _IMAGES if first.get(name) and not self._reads(name)]
        return [name for name in _CHANGES_PROMPTS if name in first]

    def add_sampled(self, row: Mapping[str, Any]) -> None:
        """Count the columns of a row that is a prompt: rewards and workflows get all of them, and the model none."""
        joined = form_columns(row, self._section)
        self._joined.update(joined)
        for name in _CHANGES_PROMPTS:
            if row.get(name) not in (None, "", []) and not self._reads(name) and name not in joined:
                self._columns[name] += 1

    def _reads(self, column: str) -> bool:
        return any(path == column or path.startswith(f"{column}.") for path in self._read)

    def add_messages(self, messages: Sequence[Message]) -> None:
        """Count the keys of messages that a chat template must read to have an effect."""
        for message in messages:
            if len(message) > 2:
                self._messages.update(key for key in message if key not in ("role", "content"))

    def add_variables(self, tools: Tools, names: Iterable[str] = ()) -> None:
        """Count the tools and the variables of a row, which a chat template must read to have an effect."""
        self._variables.update(names)
        if tools:
            self._variables["tools"] += 1

    @property
    def need_template(self) -> bool:
        """Whether the chat template decides what is read."""
        return bool(self._messages or self._variables)

    def notes(self, template: str | None) -> tuple[str, ...]:
        """One line for each kind of key without effect; `template` is the chat template, None without one."""
        sampled = not self._section.is_offline
        found = []
        if self._joined:
            shown = ", ".join(_counts(self._joined, "row"))
            found.append(f"columns that are a part of the prompt next to {self._section.prompt}: {shown}.")
        if self._columns or self._images:
            advice = [_ADVICE[key] for key in (*self._columns, *self._images) if key in _ADVICE]
            what = "columns that only rewards and workflows get" if sampled else "columns that are not read"
            counts = [*_counts(self._columns, "row"), *(f"{key} (in the first row)" for key in self._images)]
            found.append(f"{what}: {', '.join(counts)}{_sentence(advice)}")
        unread = Counter({k: n for k, n in self._messages.items() if not _renders(template, k)})
        if unread:
            by = (
                "read by neither Strop nor the chat template"
                if template
                else "not read without a chat template"
            )
            found.append(f"keys of messages that are {by}: {', '.join(_counts(unread, 'message'))}.")
        ignored = Counter({k: n for k, n in self._variables.items() if not _mentions(template, k)})
        if ignored:
            shown = ", ".join(_counts(ignored, "row"))
            found.append(f"variables that the chat template does not read: {shown}.")
        return tuple(found)


def _unread(row: Mapping[str, Any], read: Collection[str], at: str = "") -> Iterator[tuple[str, Any]]:
    """Paths and values of a row outside of the paths that are read, without null values and numbers of rows."""
    for name, value in row.items():
        path = f"{at}{name}"
        if value is None or name in _BOOKKEEPING or path in read:
            continue
        if isinstance(value, Mapping) and any(each.startswith(f"{path}.") for each in read):
            yield from _unread(value, read, f"{path}.")
        else:
            yield path, value


def _require_no_mask(path: str, value: Any, where: str) -> None:
    name = path.rpartition(".")[2]
    if (
        name in _TOKEN_MASKS
        and isinstance(value, list | tuple)
        and value
        and isinstance(value[0], int | float)
    ):
        raise DataError(
            f"{where} has the column {path!r} with {counted(len(value), 'number')}, which other tools train by, and "
            "Strop encodes messages and texts itself. Remove the column; `weight: 0` in a message says that it is not "
            "trained on."
        )
    if name in _ON_PROMPTS and value:
        raise DataError(
            f"{where} has {name}: {value!r:.40}, and Strop trains on responses only. Remove the column, or name a "
            "column of plain text as `text`, of which all tokens are trained on."
        )


def _renders(template: str | None, key: str) -> bool:
    """Whether a template reads a key of messages."""
    return template is not None and (_mentions(template, key) or bool(_WHOLE_MESSAGES.search(template)))


def _mentions(template: str | None, name: str) -> bool:
    return template is not None and bool(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", template))


def _counts(counts: Counter[str], noun: str) -> list[str]:
    return [f"{key} ({counted(number, noun)})" for key, number in counts.items()]


def _sentence(parts: Sequence[str]) -> str:
    text = "; ".join(parts)
    return f". {text[0].upper()}{text[1:]}." if text else "."
