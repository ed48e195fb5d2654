"""`docs/reference/defaults.md`: one key, several defaults."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

from strop.config.dialects import LEDGERS
from strop.config.dialects.component import COMPONENTS
from strop.config.dialects.row import UNSET, Row
from strop.config.dialects.trinity.inside import PREFIX
from strop.config.draft import split
from strop.config.reference.markdown import MADE, code, table
from strop.config.reference.run_file import linked
from strop.config.reference.words import written

_COUNTS = re.compile(r"counts (\w+)")
_NAMES = ("path", "files", "dir", "project", "name", "output", "folder")
"""What keys and fields end in whose defaults are names and places: nobody wonders that they differ."""
_FEW = 3
"""In so many dialects a field is worth a line."""
_INTRO = """\
# One key, several defaults

The same key, or the same field of the [run file](run-file.md), does not default to the same in every tool.
These differ; where a value counts something, the unit stands behind it. Each tool's whole ledger:
{pages}.

## The same key

The components' inputs are verl's keys under other names, and Trinity's `trainer.trainer_config` holds
verl's keys; the key is called here as verl calls it. An empty cell: no such key, or it has no default.
"""
_FIELDS = """
## The same field

Where several keys decide one field, each stands before its value; a key that is null by default is left out.
"""

Cells = Mapping[str, str]
"""By dialect."""


def page() -> str:
    """The page."""
    pages = ", ".join(f"[{name}]({name}.md)" for name in LEDGERS)
    keys = {code(key): cells for key, cells in _keys().items() if _differ(key, cells)}
    fields = {
        linked(field): cells
        for field, cells in _fields().items()
        if _differ(field, cells) and len(cells) >= _FEW
    }
    lines = [MADE, "", _INTRO.format(pages=pages), *_table("key", keys), _FIELDS, *_table("field", fields)]
    return "\n".join(lines) + "\n"


def _table(first: str, rows: Mapping[str, Cells]) -> list[str]:
    """A column for each dialect that has a cell."""
    dialects = [name for name in LEDGERS if any(name in cells for cells in rows.values())]
    return table(
        [first, *dialects],
        ([name, *(code(cells.get(dialect, "")) for dialect in dialects)] for name, cells in rows.items()),
    )


def _keys() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for dialect, key, row in _rows():
        found[key][dialect] = _default(row)
    return found


def _fields() -> dict[str, dict[str, str]]:
    """All that decides a field, by dialect."""
    found: dict[str, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for dialect, _, row in _rows():
        for field in row.ours:
            found[field][dialect].append(row)
    return {
        field: {dialect: text for dialect, rows in by_dialect.items() if (text := _several(rows))}
        for field, by_dialect in found.items()
    }


def _several(rows: list[Row]) -> str:
    if len(rows) == 1:
        return _default(rows[0])
    said = [row for row in rows if row.default is not None]
    return ", ".join(f"{split(row.theirs)[-1]} {_default(row)}" for row in said)


def _rows() -> Iterator[tuple[str, str, Row]]:
    """Every row that has a default: its dialect, and its key as verl calls it."""
    for dialect, ledger in LEDGERS.items():
        known = {part.name: part.key for part in COMPONENTS[dialect].inputs} if dialect in COMPONENTS else {}
        for row in ledger.rows:
            if row.default is not UNSET and not row.in_list:
                yield dialect, known.get(row.theirs, row.theirs).removeprefix(PREFIX), row


def _default(row: Row) -> str:
    value = written(row.default).replace(PREFIX, "") or '""'
    counted = _COUNTS.search(row.note)
    return f"{value} {counted[1]}" if counted and row.default is not None else value


def _differ(name: str, cells: Cells) -> bool:
    return len(set(cells.values())) > 1 and not name.endswith(_NAMES)
