"""Generator of `docs/reference/defaults.md`, which compares the defaults of the dialects."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

from strop.compat.azureml.reader import COMPONENTS
from strop.compat.ledger.key_mapping import UNSET, KeyMapping
from strop.compat.registry import LEDGERS
from strop.compat.trinity.embedded_verl import PREFIX
from strop.config.load.config_tree import split_key
from strop.config.reference import GENERATED_NOTICE, field_link, format_yaml, inline_code, table

_COUNTS = re.compile(r"counts (\w+)")
_NAME_ENDINGS = ("path", "files", "dir", "project", "name", "output", "folder")
"""Endings of keys and fields with names or paths as defaults, which the page omits."""
_MIN_DIALECTS = 3
"""Minimum number of dialects for a field to be listed."""
_INTRO = """\
# Defaults compared

The same key, or the same field of the [run file](run-file.md), has different defaults in different tools.
This page lists the differences. A value that counts something is followed by its unit. The complete ledger
of each tool: {pages}.

## Keys

The components' inputs stand for verl's keys under other names, and Trinity's `trainer.trainer_config` has
verl's keys; this page uses verl's names. An empty cell means that the tool does not have the key, or that
the key has no default.
"""
_FIELDS = """
## Fields

Where several keys decide one field, each value follows its key; keys with null as their default are omitted.
"""

Cells = Mapping[str, str]
"""Text of a table cell, by dialect."""


def page() -> str:
    """The text of the page."""
    pages = ", ".join(f"[{name}]({name}.md)" for name in LEDGERS)
    keys = {inline_code(key): cells for key, cells in _keys().items() if _differ(key, cells)}
    fields = {
        field_link(field): cells
        for field, cells in _fields().items()
        if _differ(field, cells) and len(cells) >= _MIN_DIALECTS
    }
    lines = [
        GENERATED_NOTICE,
        "",
        _INTRO.format(pages=pages),
        *_table("key", keys),
        _FIELDS,
        *_table("field", fields),
    ]
    return "\n".join(lines) + "\n"


def _table(first: str, rows: Mapping[str, Cells]) -> list[str]:
    """Table with one column per dialect that has a cell."""
    dialects = [name for name in LEDGERS if any(name in cells for cells in rows.values())]
    return table(
        [first, *dialects],
        (
            [name, *(inline_code(cells.get(dialect, "")) for dialect in dialects)]
            for name, cells in rows.items()
        ),
    )


def _keys() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for dialect, key, row in _rows():
        found[key][dialect] = _default(row)
    return found


def _fields() -> dict[str, dict[str, str]]:
    """Defaults of all keys that decide a field, by field and dialect."""
    found: dict[str, dict[str, list[KeyMapping]]] = defaultdict(lambda: defaultdict(list))
    for dialect, _, row in _rows():
        for field in row.fields:
            found[field][dialect].append(row)
    return {
        field: {dialect: text for dialect, rows in by_dialect.items() if (text := _several(rows))}
        for field, by_dialect in found.items()
    }


def _several(rows: list[KeyMapping]) -> str:
    if len(rows) == 1:
        return _default(rows[0])
    stated = [row for row in rows if row.default is not None]
    return ", ".join(f"{split_key(row.key)[-1]} {_default(row)}" for row in stated)


def _rows() -> Iterator[tuple[str, str, KeyMapping]]:
    """Every row with a default: its dialect, its key under verl's name, and the row."""
    for dialect, ledger in LEDGERS.items():
        known = {part.name: part.key for part in COMPONENTS[dialect].inputs} if dialect in COMPONENTS else {}
        for row in ledger.rows:
            if row.default is not UNSET and not row.is_repeated:
                yield dialect, known.get(row.key, row.key).removeprefix(PREFIX), row


def _default(row: KeyMapping) -> str:
    value = format_yaml(row.default).replace(PREFIX, "") or '""'
    counted = _COUNTS.search(row.note)
    return f"{value} {counted[1]}" if counted and row.default is not None else value


def _differ(name: str, cells: Cells) -> bool:
    return len(set(cells.values())) > 1 and not name.endswith(_NAME_ENDINGS)
