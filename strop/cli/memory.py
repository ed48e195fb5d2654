"""Printing of a run's predicted memory next to the machine's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strop.cli.columns import align_columns
from strop.cli.output import echo

if TYPE_CHECKING:
    from strop.config.schema import Run
    from strop.plan.fit import MemoryFit, Proposal


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
