"""`strop keys`, `strop schema` and `strop help`: keys of a dialect, JSON Schema of the run file, and documentation."""

from __future__ import annotations

import json
import sys
from itertools import groupby
from typing import Annotated, Any

import typer

from strop.cli.output import echo

_COLUMNS = ("key", "disposition", "field", "default", "note")


def keys(
    dialect: Annotated[str, typer.Argument(help="verl, trinity, rft_trainer, ...", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="VERSION",
            help="Print only the keys that this or a later version of the tool added.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Print every key of a dialect, with its disposition, its run file field, its default, and a note."""
    from strop.cli.output import align_columns
    from strop.compat.ledger.key_mapping import added_since
    from strop.compat.registry import ledger_of

    rows = ledger_of(dialect).rows
    if since is not None:
        rows = added_since(rows, since)
    entries = [row.as_entry() for row in rows]
    if as_json:
        echo(json.dumps(entries, indent=1, ensure_ascii=False))
    elif sys.stdout.isatty():
        _print_table(entries)
    else:
        echo(align_columns([_COLUMNS, *map(_cells, entries)], max_width=60))


def schema() -> None:
    """Print the JSON Schema of the run file, for completion and checks in an editor."""
    from strop.config.reference import schema_text

    typer.echo(schema_text(), nl=False)  # as it is: an example of a URL in it is no secret


def _cells(entry: dict[str, Any]) -> tuple[str, ...]:
    from strop.config.reference import format_yaml

    return tuple(format_yaml(entry[name]) if name == "default" else entry[name] for name in _COLUMNS)


def _print_table(entries: list[dict[str, Any]]) -> None:
    """Print one table per section; keys are shortened to their last part; field and note share a column."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    for section, rows in groupby(entries, key=lambda entry: entry["key"].rpartition(".")[0]):
        table = Table(box=None, pad_edge=False, expand=True, show_header=False)
        for ratio, style in ((30, "cyan"), (11, ""), (17, "bold"), (42, "")):
            table.add_column(ratio=ratio, style=style, overflow="fold")
        for entry in rows:
            _, disposition, field, default, note = _cells(entry)
            name = entry["key"].rpartition(".")[2]
            becomes = "; ".join(filter(None, (field, note)))
            table.add_row(*map(Text, (f"  {name}", disposition, default, becomes)))
        console.print(Text(f"\n{section or 'key, disposition, default, field and note'}", style="bold green"))
        console.print(table)


def add_to(app: typer.Typer) -> None:
    """Add the commands to an app."""
    app.command()(keys)
    app.command()(schema)


def _complete_topic(incomplete: str) -> list[str]:
    from strop.cli.pages import topics

    return [topic for topic in topics() if topic.startswith(incomplete)]


def help_(
    context: typer.Context,
    topic: Annotated[
        str | None,
        typer.Argument(
            help="Page, such as rewards or troubleshooting#out-of-memory, or a command.",
            show_default=False,
            autocompletion=_complete_topic,
        ),
    ] = None,
) -> None:
    """Print a page of the documentation, or the help of a command; without a topic, list the pages."""
    from strop.cli.output import align_columns
    from strop.cli.pages import page_text, title, topics

    if topic is None:
        rows = [(f"  {name}", title(page)) for name, page in topics().items()]
        rows += [
            ("  run-file", "Every field of the run file"),
            ("  metrics", "Every metric"),
            ("  verl, trinity, trl, ...", "Every key of a tool"),
        ]
        echo("Topics of `strop help TOPIC`; `strop help COMMAND` prints the options of a command:")
        echo(align_columns(rows or [("", "the pages are not installed")], max_width=60))
        return
    group: Any = context.parent.command if context.parent else None
    if group is not None and (command := group.get_command(context.parent, topic)) is not None:
        with command.make_context(topic, [], parent=context.parent, resilient_parsing=True) as inner:
            echo(inner.get_help())
        return
    text = page_text(topic)
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.markdown import Markdown

        Console().print(Markdown(text))
    else:
        echo(text)


def add_help_to(app: typer.Typer) -> None:
    """Add the command to an app."""
    app.command("help")(help_)
