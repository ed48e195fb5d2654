"""Plan of a configuration for Studio: memory, tokens, disk and placement, and changes that make it fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from strop.config.explain import summarize
from strop.config.load.loader import LoadedRun
from strop.errors import PlacementError
from strop.plan import fit
from strop.plan.fit import MemoryFit, memory_fit, with_machine_defaults
from strop.plan.placement import describe_plan, machine_of, plan_rows, plan_run


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
    fit: MemoryFit | None
    """Predicted memory next to the machine's; None where that is not known."""

    @property
    def by_purpose(self) -> list[tuple[str, ...]]:
        """The memory with one row per purpose, and one column per process."""
        return list(zip(*self.memory, strict=True))


def plan_for(loaded: LoadedRun) -> ShownPlan:
    """The plan of a run on this machine, or on the nodes that it requires."""
    run = with_machine_defaults(loaded.run)
    machine = machine_of(run)
    try:
        placed = plan_run(run)
        placement, rows = describe_plan(placed), plan_rows(placed)
    except PlacementError as error:
        placement, rows = f"No placement: {error}", []
    return ShownPlan(
        str(machine),
        summarize(loaded),
        fit.memory_rows(run, machine),
        list(fit.step_lines(run)),
        placement,
        rows,
        memory_fit(run),
    )
