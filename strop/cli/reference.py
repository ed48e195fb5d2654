"""The commands that say what may be written."""

from __future__ import annotations

import json
import sys
from itertools import groupby
from typing import Annotated, Any

import typer

_COLUMNS = ("key", "fate", "field", "default", "note")


def keys(
    dialect: Annotated[str, typer.Argument(help="verl, trinity, rft_trainer, ...", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="As a JSON list.")] = False,
) -> None:
    """Print a dialect's ledger: every key, what becomes of it, its field here, its default, and a note."""
    from strop.cli.show import aligned
    from strop.config.dialects import ledger_of

    entries = [row.as_entry() for row in ledger_of(dialect).rows]
    if as_json:
        typer.echo(json.dumps(entries, indent=1, ensure_ascii=False))
    elif sys.stdout.isatty():
        _table(entries)
    else:
        typer.echo(aligned([_COLUMNS, *map(_cells, entries)], widest=60))


def schema() -> None:
    """Print the JSON Schema of the run file, with which an editor completes and checks one."""
    from strop.config.reference.pages import schema_text

    typer.echo(schema_text(), nl=False)


def _cells(entry: dict[str, Any]) -> tuple[str, ...]:
    from strop.config.reference.words import written

    return tuple(written(entry[name]) if name == "default" else entry[name] for name in _COLUMNS)


def _table(entries: list[dict[str, Any]]) -> None:
    """By sections, under which a key is called by its last part, and its field and note share a column."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    for section, inside in groupby(entries, key=lambda entry: entry["key"].rpartition(".")[0]):
        table = Table(box=None, pad_edge=False, expand=True, show_header=False)
        for share, style in ((30, "cyan"), (11, ""), (17, "bold"), (42, "")):
            table.add_column(ratio=share, style=style, overflow="fold")
        for entry in inside:
            _, fate, field, default, note = _cells(entry)
            name = entry["key"].rpartition(".")[2]
            becomes = "; ".join(filter(None, (field, note)))
            table.add_row(*map(Text, (f"  {name}", fate, default, becomes)))
        console.print(Text(f"\n{section or 'key, fate, default, field and note'}", style="bold green"))
        console.print(table)


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(keys)
    app.command()(schema)
