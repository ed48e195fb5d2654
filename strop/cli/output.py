"""Output of the command line: texts without control characters and secrets, tables, and predicted memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from strop.config.redact import safe_text

if TYPE_CHECKING:
    from strop.config.schema import Run
    from strop.plan.fit import MemoryFit, Proposal


def echo(text: object = "", *, err: bool = False, newline: bool = True) -> None:
    """Print a text on stdout, or on stderr, that a terminal shows as it is and that holds no secret."""
    typer.echo(safe_text(str(text)), err=err, nl=newline)


def align_columns(rows: Sequence[tuple[str, ...]], max_width: int = 40) -> str:
    """Align the cells of a table; a cell wider than `max_width` shifts only its own line."""
    columns = range(len(rows[0]) - 1)
    widths = [max(min(len(row[column]), max_width) for row in rows) for column in columns]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in rows
    )


def print_memory(run: Run) -> MemoryFit | None:
    """Print the memory that a run needs, and what to change where it does not fit; returns it where it is known."""
    from strop.plan.fit import memory_fit

    fit = memory_fit(run)
    if fit is None:
        return None
    echo(str(fit))
    if fit.proposal is not None:
        echo(str(fit.proposal))
        print_changes(fit.proposal)
    return fit


def print_changes(proposal: Proposal) -> None:
    """Print each change of a proposal with its cost."""
    echo(align_columns([(f"  {each.override}", each.cost) for each in proposal.changes], max_width=60))
