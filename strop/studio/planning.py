"""Plan of a configuration for Studio: memory, tokens, disk and placement, and changes that make it fit."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from strop.config.explain.summary import summarize
from strop.config.load.loader import LoadedRun
from strop.config.plan import budget
from strop.config.plan.machine import GIB, Machine, described_machine
from strop.config.plan.table import describe_plan, machine_of, plan_rows, plan_run
from strop.config.schema import Run
from strop.errors import PlacementError


@dataclass(frozen=True, slots=True)
class ShownPlan:
    """Work and needs of a run."""

    machine: str
    summary: str
    memory: Sequence[tuple[str, ...]]
    """Header, and one row per process, in GiB."""
    lines: Sequence[str]
    """Tokens of a step, and disk."""
    placement: str
    placed: Sequence[tuple[str, ...]]
    changes: Sequence[tuple[str, str]]
    """Overrides with which the run needs less memory, and their costs; empty for a run that fits."""
    verdict: str


def plan_for(loaded: LoadedRun) -> ShownPlan:
    """The plan of a run on this machine, or on the nodes that it requires."""
    run = loaded.run
    machine = machine_of(run)
    try:
        placed = plan_run(run)
        placement, rows = describe_plan(placed), plan_rows(placed)
    except PlacementError as error:
        placement, rows = f"No placement: {error}", []
    verdict, changes = _fit(run, machine, is_placed=bool(rows))
    return ShownPlan(
        str(machine),
        summarize(loaded),
        budget.memory_rows(run, machine),
        list(budget.step_lines(run)),
        placement,
        rows,
        changes,
        verdict,
    )


def _fit(run: Run, machine: Machine, *, is_placed: bool) -> tuple[str, list[tuple[str, str]]]:
    """Whether the run fits into the machine's memory, and the changes with which it does."""
    capacity = machine.nodes[0].gpu_bytes if machine.gpus else None
    if not machine.gpus and described_machine() is None:
        capacity = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if capacity is None:
        return "", []
    available = f"{capacity / GIB:.0f} GiB"
    if is_placed and budget.fits(run, machine, capacity):
        return "" if budget.largest_need(run, machine) is None else f"It fits into {available}.", []
    proposal = budget.propose(run, machine, capacity)
    if proposal is None:
        return f"It does not fit into {available}.", []
    result = "fits" if proposal.fits else "still does not fit"
    needed = f"{proposal.needed / GIB:.1f} GiB"
    verdict = f"It does not fit into {available}. With these changes it needs {needed}, and {result}:"
    return verdict, [(each.override, each.cost) for each in proposal.changes]
