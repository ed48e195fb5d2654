"""How an explanation looks: a table in a terminal, plain lines in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

import typer

from strop.cli.actions import check_files, say_notes
from strop.config.explain import Line, lines, summary
from strop.config.load import Loaded

if TYPE_CHECKING:
    from strop.run.score_file import Figures


def show_explanation(loaded: Loaded) -> None:
    """Print the paragraph, the notes, and every value; of each stage, where there are stages."""
    for number, stage in enumerate(loaded.each, 1):
        if loaded.stages:
            typer.echo(f"Stage {number} of {len(loaded.stages)}, {stage.run.name}:")
        _show(stage)


def _show(loaded: Loaded) -> None:
    values = lines(loaded)
    if sys.stdout.isatty():
        _table(summary(loaded), loaded, values)
        return
    typer.echo(f"{summary(loaded)}\n")
    say_notes(loaded)
    if loaded.set_aside or loaded.notes:
        typer.echo()
    columns = _columns(values)
    typer.echo(aligned([columns, *(_cells(line, columns) for line in values)]))


def _columns(values: list[Line]) -> tuple[str, ...]:
    """The heads; another dialect's key has a column of its own."""
    theirs = ("theirs",) if any(line.theirs for line in values) else ()
    return ("field", "value", "unit", *theirs, "source", "effect")


def _cells(line: Line, columns: tuple[str, ...]) -> tuple[str, ...]:
    theirs = (line.theirs,) if "theirs" in columns else ()
    return (line.field, line.value, line.unit, *theirs, line.place, line.effect)


def explain_or_check(loaded: Loaded, *, explain: bool, check: bool) -> bool:
    """Say what a run would do, and whether it can be started; returns whether one of them was wanted."""
    if explain:
        show_explanation(loaded)
    if check:
        check_files(loaded)
    return explain or check


def show_figures(figures: Mapping[str, Figures]) -> None:
    """Print what each source's answers come to."""
    for source, found in figures.items():
        typer.echo(f"{source}: {found.prompts} prompts, {found.responses} responses")
        for name, value in found.metrics.items():
            typer.echo(f"  {name:10} {value:.6g}")


def aligned(rows: list[tuple[str, ...]], widest: int = 40) -> str:
    """Columns under one another; a cell wider than `widest` pushes only its own line."""
    columns = range(len(rows[0]) - 1)
    widths = [max(min(len(row[column]), widest) for row in rows) for column in columns]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in rows
    )


def _table(paragraph: str, loaded: Loaded, values: list[Line]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    console.print(Text(f"{paragraph}\n"))
    say_notes(loaded)
    table = Table(box=None, pad_edge=False, header_style="bold")
    styles = {"field": "cyan", "value": "bold", "theirs": "magenta", "source": "green"}
    columns = _columns(values)
    for name in columns:
        table.add_column(name, style=styles.get(name, ""), overflow="fold")
    for line in values:
        cells = (Text(cell) for cell in _cells(line, columns))
        table.add_row(*cells, style="dim" if line.source.kind == "default" else "")
    console.print(table)
