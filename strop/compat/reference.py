"""Generated pages: the fields of the run file, the metrics, and the keys of each tool."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from strop.compat.azureml.reader import COMPONENTS
from strop.compat.ledger.key_mapping import UNSET, KeyMapping, Ledger
from strop.compat.registry import LEDGERS
from strop.compat.trinity.embedded_verl import PREFIX
from strop.config import reference
from strop.config.load.config_tree import split_key
from strop.config.reference import GENERATED_NOTICE, field_link, format_yaml, inline_code, table
from strop.runs.metrics import metrics_page

TITLES = {
    "verl": ("verl: `ppo_trainer.yaml` and its overrides", "strop verl ppo key=value ..."),
    "verl-sft": ("verl: `sft_trainer.yaml`", "strop verl sft key=value ..."),
    "verl-sft-engine": ("verl: `sft_trainer_engine.yaml`", "strop verl sft key=value ..."),
    "verl-eval": ("verl: `evaluation.yaml`", "strop verl eval key=value ..."),
    "verl-generate": ("verl: `generation.yaml`", "strop verl generate key=value ..."),
    "verl-merge": ("verl: the model merger", "strop verl merge --local_dir FOLDER --target_dir FOLDER"),
    "trinity": ("Trinity-RFT", "strop trinity FILE.yaml"),
    "trl": ("TRL: `GRPOConfig`", "strop trl grpo --key value ..."),
    "trl-rloo": ("TRL: `RLOOConfig`", "strop trl rloo --key value ..."),
    "trl-sft": ("TRL: `SFTConfig`", "strop trl sft --key value ..."),
    "trl-dpo": ("TRL: `DPOConfig`", "strop trl dpo --key value ..."),
    "trl-kto": ("TRL: `KTOConfig`", "strop trl kto --key value ..."),
    "trl-reward": ("TRL: `RewardConfig`", "strop trl reward --key value ..."),
    "trl-cpo": ("TRL: `CPOConfig`, experimental there", "strop trl cpo --key value ..."),
    "trl-orpo": ("TRL: `ORPOConfig`, experimental there", "strop trl orpo --key value ..."),
    "rft_trainer": ("AzureML: `rft_trainer`", "strop component rft_trainer --input value ..."),
    "verl_trainer": ("AzureML: `verl_trainer_component`", "strop component verl_trainer --input value ..."),
    "grpo": ("AzureML: `group_relative_policy_optimization`", "strop component grpo --input value ..."),
}
"""Title of each dialect's page, and the command that runs such a configuration."""

_HEADER = ("key", "disposition", "field", "default", "note")
_MAX_TABLE_KEYS = 40
"""Maximum number of keys in one table; a longer section is shown per subsection."""
_LEDGER_INTRO = """\
# {title}

Run such a configuration with `{command}`. {count} keys: {dispositions}.

A *mapped* key decides the listed fields of the [run file](run-file.md). A *placement* key decides where and
how fast a run executes; `--here` overrides it. A *refused* key accepts only its default, or what its note
allows. A key that is *accepted without effect* has no meaning in Strop; setting it prints a notice. `default
unstated` means that the tool's documentation states no default and the tool's own default at that time is
listed. `strop keys {dialect}` prints the same table.
"""


def ledger_page(ledger: Ledger) -> str:
    """The text of one ledger's page, in the ledger's order."""
    title, command = TITLES[ledger.dialect]
    dispositions = Counter(row.disposition for row in ledger.rows)
    counted = ", ".join(f"{count} {disposition}" for disposition, count in dispositions.most_common())
    count, dialect = len(ledger.rows), ledger.dialect
    intro = _LEDGER_INTRO.format(
        title=title, command=command, count=count, dispositions=counted, dialect=dialect
    )
    lines = [GENERATED_NOTICE, "", intro.rstrip()]
    for section, rows in _by_section(ledger).items():
        lines += ["", f"## {section}"] if section else []
        lines += ["", *table(_HEADER, map(_cells, rows))]
    return "\n".join(lines) + "\n"


def _by_section(ledger: Ledger) -> dict[str, list[KeyMapping]]:
    """Rows by section; rows of a long section by subsection."""
    counts = Counter(split_key(row.key)[0] for row in ledger.rows)
    found: dict[str, list[KeyMapping]] = defaultdict(list)
    for row in ledger.rows:
        above = split_key(row.key)[:-1]
        deep = 1 if not above or counts[above[0]] <= _MAX_TABLE_KEYS else 2 + row.key.startswith(PREFIX)
        found[".".join(above[:deep])].append(row)
    return found


def _cells(row: KeyMapping) -> tuple[str, ...]:
    entry = row.as_entry()
    default = "" if row.default is UNSET else inline_code(format_yaml(row.default)) or '`""`'
    return (
        inline_code(row.key),
        row.disposition,
        ", ".join(map(field_link, row.fields)),
        default,
        entry["note"],
    )


_COUNTS = re.compile(r"counts (\w+)")
_NAME_ENDINGS = ("path", "files", "dir", "project", "name", "output", "folder")
"""Endings of keys and fields with names or paths as defaults, which the page omits."""
_MIN_DIALECTS = 3
"""Minimum number of dialects for a field to be listed."""
_DEFAULTS_INTRO = """\
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


def defaults_page() -> str:
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
        _DEFAULTS_INTRO.format(pages=pages),
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


PAGES: Mapping[str, Callable[[], str]] = {
    "run-file": reference.page,
    "metrics": metrics_page,
    **{name: partial(ledger_page, ledger) for name, ledger in LEDGERS.items()},
    "defaults": defaults_page,
}
"""Name of each page -> function that writes its text."""


def pages() -> dict[Path, str]:
    """Text of each page, by its path relative to the repository root."""
    return {Path(f"docs/reference/{name}.md"): write() for name, write in PAGES.items()}


if __name__ == "__main__":
    for path, text in pages().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
