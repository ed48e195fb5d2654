"""`strop plan`: memory, tokens and disk of a run on a machine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from strop.cli.arguments import HereOption, MachineOption, OverridesArgument, RunFileArgument
from strop.cli.columns import align_columns
from strop.cli.output import echo

if TYPE_CHECKING:
    from strop.config.load.loader import LoadedRun
    from strop.config.plan.budget import Proposal
    from strop.config.schema import Run


def plan(
    run: RunFileArgument,
    overrides: OverridesArgument = None,
    here: HereOption = False,
    machine: MachineOption = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Measure three steps of the run on this machine first.")
    ] = False,
) -> None:
    """Print the memory of each process by purpose, the tokens and seconds of a step and the disk that a run needs."""
    from strop.config.plan.machine import on_machine, parse_machine
    from strop.dialects.detect import read_any
    from strop.errors import ConfigError

    if calibrate and machine:
        raise ConfigError("--calibrate measures this machine: leave --machine out.")
    with on_machine(parse_machine(machine) if machine else None):
        for stage in read_any(run, overrides or (), here=here).loaded.runs:
            if calibrate:
                _measure(stage.run)
            _print_budget(stage)


def _measure(run: Run) -> None:
    from strop.run.entry.calibrate import STEPS, calibrate

    echo(
        f"Training {STEPS} steps of a copy of the run, in a temporary folder that is deleted afterwards ...\n"
    )
    calibrate(run)


def _print_times(run: Run) -> None:
    """Seconds of a step and of the run, where they were measured on this machine."""
    from strop.config.plan.calibration import calibration_lines
    from strop.run.entry.calibrate import known_calibration

    found = known_calibration(run)
    if found is None:
        echo("Seconds of a step: not known; `strop plan --calibrate` measures some steps on this machine.")
        return
    for line in calibration_lines(run, found):
        echo(line)


def _print_budget(loaded: LoadedRun) -> None:
    from strop.config.plan import budget
    from strop.config.plan.machine import described_machine
    from strop.config.plan.table import describe_plan, machine_of, plan_rows, plan_run
    from strop.errors import PlacementError

    run = loaded.run
    place = machine_of(run)
    echo(f"Memory on {place}, in GiB:")
    echo(align_columns(budget.memory_rows(run, place)) + "\n")
    for line in budget.step_lines(run):
        echo(line)
    if described_machine() is None:
        _print_times(run)
    try:
        placed = plan_run(run)
        echo(f"\n{describe_plan(placed)}\n{align_columns(plan_rows(placed))}")
        is_placed = True
    except PlacementError as error:
        echo(f"\nNo placement: {error}")
        is_placed = False
    print_missing_memory(run, is_placed=is_placed)


def print_missing_memory(run: Run, *, is_placed: bool = True) -> None:
    """Print that a run does not fit into the machine's memory, and what to change; nothing where it fits."""
    from strop.config.plan.machine import GIB

    capacity, proposal = missing_memory(run, is_placed=is_placed)
    if capacity is None:
        return
    echo(f"\nThe run does not fit into {capacity / GIB:.0f} GiB.")
    if proposal is not None:
        result = "fits" if proposal.fits else "still does not fit"
        echo(f"With these changes it needs {proposal.needed / GIB:.1f} GiB, and {result}:")
        print_changes(proposal)


def missing_memory(run: Run, *, is_placed: bool = True) -> tuple[int | None, Proposal | None]:
    """The bytes of the machine's memory into which a run does not fit, with what to change; None where it fits or its
    need is not known."""
    from strop.config.plan import budget
    from strop.config.plan.machine import described_machine
    from strop.config.plan.table import machine_of

    place = machine_of(run)
    capacity = place.nodes[0].gpu_bytes if place.gpus else None
    if not place.gpus and described_machine() is None:
        capacity = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if capacity is None or (is_placed and budget.fits(run, place, capacity)):
        return None, None
    return capacity, budget.propose(run, place, capacity)


def print_changes(proposal: Proposal) -> None:
    """Print each change of a proposal with its cost."""
    echo(align_columns([(f"  {each.override}", each.cost) for each in proposal.changes], max_width=60))


def add_to(app: typer.Typer) -> None:
    """Add the command to an app."""
    app.command()(plan)
