"""Output of explanations and scores: tables in a terminal, plain lines in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from strop.cli.actions import check_run, print_notes, print_plan
from strop.cli.output import align_columns, echo
from strop.config.explain import ExplainedValue, explain_values, summarize
from strop.config.load.loader import LoadedRun
from strop.config.redact import safe_text
from strop.errors import PlacementError

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from strop.run.entry.score_file import SourceScores

_FOREIGN = "foreign key"
_STYLES = {"field": "cyan", "value": "bold", _FOREIGN: "magenta", "source": "green"}
_WIDE = 140
"""Columns of a terminal from which a table of values is readable."""


def show_explanation(loaded: LoadedRun) -> None:
    """Print a summary, the notes, and every value of a run; of each stage if there are stages."""
    for number, stage in enumerate(loaded.runs, 1):
        if loaded.stages:
            echo(f"Stage {number} of {len(loaded.stages)}, {stage.run.name}:")
        _show(stage)


def _show(loaded: LoadedRun) -> None:
    values = explain_values(loaded)
    if sys.stdout.isatty():
        _print_table(summarize(loaded), loaded, values)
        _print_plan_or_obstacle(loaded)
        return
    echo(f"{summarize(loaded)}\n")
    _print_plan_or_obstacle(loaded)
    print_notes(loaded)
    if loaded.overridden or loaded.notes:
        echo()
    columns = _columns(values)
    echo(align_columns([columns, *(_cells(value, columns) for value in values)]))


def _print_plan_or_obstacle(loaded: LoadedRun) -> None:
    """Print the placement plan, or why there is none: an explanation does not need the machine of the run."""
    try:
        print_plan(loaded.run)
    except PlacementError as error:
        echo(f"No placement: {error}\n")


def _columns(values: list[ExplainedValue]) -> tuple[str, ...]:
    """Return the column headings; a configuration of another tool has a column for its keys."""
    foreign = (_FOREIGN,) if any(value.foreign_key for value in values) else ()
    return ("field", "value", "unit", *foreign, "source", "effect")


def _cells(value: ExplainedValue, columns: tuple[str, ...]) -> tuple[str, ...]:
    foreign = (value.foreign_key,) if _FOREIGN in columns else ()
    return (value.field, value.value, value.unit, *foreign, value.location, value.effect)


def explain_or_check(loaded: LoadedRun, *, explain: bool, check: bool) -> bool:
    """Print what a run would do, and whether it can start, as requested; returns whether either was."""
    if explain:
        show_explanation(loaded)
    if check:
        check_run(loaded)
    return explain or check


def show_scores(scores: Mapping[str, SourceScores]) -> None:
    """Print the metrics of each data source's responses."""
    for source, found in scores.items():
        echo(f"{source}: {found.prompts} prompts, {found.responses} responses")
        for name, value in found.metrics.items():
            echo(f"  {name:10} {value:.6g}")


def _print_table(summary: str, loaded: LoadedRun, values: list[ExplainedValue]) -> None:
    """Print the values that are set, then the defaults; in a narrow terminal the effect is below each value."""
    from rich.console import Console
    from rich.text import Text

    console = Console()
    console.print(Text(safe_text(f"{summary}\n")))
    print_notes(loaded)
    columns = _columns(values)
    is_set = [value.source.kind != "default" for value in values]
    for title, wanted in (("Values that are set", True), ("Defaults", False)):
        chosen = [value for value, found in zip(values, is_set, strict=True) if found == wanted]
        if chosen:
            console.print(Text(f"\n{title}:", style="bold"))
            console.print(_table(chosen, columns) if console.width >= _WIDE else _value_list(chosen, columns))


def _table(values: list[ExplainedValue], columns: tuple[str, ...]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, style=_STYLES.get(name, ""), overflow="fold")
    for value in values:
        cells = (Text(safe_text(cell)) for cell in _cells(value, columns))
        table.add_row(*cells, style="dim" if value.source.kind == "default" else "")
    return table


def _value_list(values: list[ExplainedValue], columns: tuple[str, ...]) -> Group:
    """Each value with its unit and source on a line, and its effect on the lines below."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    lines: list[Padding | Text] = []
    for value in values:
        cells = dict(zip(columns, map(safe_text, _cells(value, columns)), strict=True))
        effect = cells.pop("effect")
        line = Text()
        for name, cell in cells.items():
            line.append(f"{cell}  " if cell else "", style=_STYLES.get(name, ""))
        lines += [line, Padding(Text(effect, style="dim"), (0, 0, 0, 4))]
    return Group(*lines)
