"""Fields of the expert's form for a Trinity-RFT file, from the ledger of its keys."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from strop.compat.ledger.key_mapping import UNSET, KeyMapping
from strop.compat.trinity.reader import LEDGER
from strop.config.reference import format_yaml
from strop.studio.fields import FormField, FormSection, written_text
from strop.studio.questions import value_at

_SPLIT_FROM = 30
"""Number of keys from which on a section is shown by subsection."""


def trinity_sections(values: Mapping[str, Any]) -> list[FormSection]:
    """The expert's form for a Trinity-RFT file; keys of list items are those of the first item."""
    counts: dict[str, int] = defaultdict(int)
    rows = [row for row in LEDGER.rows if not row.key.endswith("*") and ".*." not in row.key]
    for row in rows:
        counts[row.key.partition(".")[0]] += 1
    found: dict[str, list[FormField]] = defaultdict(list)
    for row in rows:
        above = row.key.split(".")[:-1]
        deep = 1 if not above or counts[above[0]] < _SPLIT_FROM else 3
        found[".".join(above[:deep])].append(_trinity_field(row, values))
    return [
        FormSection(key, key or "General", "", tuple(fields), is_written=any(each.value for each in fields))
        for key, fields in found.items()
    ]


def _trinity_field(row: KeyMapping, values: Mapping[str, Any]) -> FormField:
    default = "" if row.default is UNSET else format_yaml(row.default)
    decides = f"Decides {', '.join(row.fields)} of the run file." if row.fields else ""
    note = f"{row.note[0].upper()}{row.note[1:]}." if row.note else ""
    marks = "" if row.disposition == "mapped" else row.disposition
    return FormField(
        row.key,
        row.key.rpartition(".")[2],
        written_text(value_at(values, row.key.split("."))),
        default,
        " ".join(filter(None, (note, decides))),
        choices=("true", "false") if isinstance(row.default, bool) else (),
        note=marks,
    )
