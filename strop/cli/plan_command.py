"""`strop plan`: memory, tokens and disk of a run on a machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from strop.cli.arguments import HereOption, MachineOption, OverridesArgument, RunFileArgument
from strop.cli.output import align_columns, echo, print_memory

if TYPE_CHECKING:
    from strop.config.load.loader import LoadedRun
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
    from strop.config.machine import on_machine, parse_machine
    from strop.errors import ConfigError
    from strop.reading import read_any

    if calibrate and machine:
        raise ConfigError("--calibrate measures this machine: leave --machine out.")
    with on_machine(parse_machine(machine) if machine else None):
        for stage in read_any(run, overrides or (), here=here).loaded.runs:
            if calibrate:
                _measure(stage.run)
            _print_budget(stage)


def _measure(run: Run) -> None:
    """Measure the run, and with other numbers of local workers where it has the choice."""
    from strop.config.local_workers import with_workers
    from strop.plan.fit import other_worker_counts
    from strop.run.entry.calibrate import STEPS, calibrate

    others = other_worker_counts(run)
    compared = "".join(f", and of one with trainer.engine.workers={workers}" for workers in others)
    echo(
        f"Training {STEPS} steps of a copy of the run{compared}, in a temporary folder that is deleted afterwards ...\n"
    )
    for each in (run, *(with_workers(run, workers) for workers in others)):
        calibrate(each)


def _print_times(run: Run) -> None:
    """Seconds of a step and of the run, where they were measured on this machine."""
    from strop.config.local_workers import with_workers
    from strop.plan.fit import calibration_lines, other_worker_counts
    from strop.run.entry.calibrate import known_calibration

    found = known_calibration(run)
    if found is None:
        echo("Seconds of a step: not known; `strop plan --calibrate` measures some steps on this machine.")
        return
    compared = {
        workers: known_calibration(with_workers(run, workers)) for workers in other_worker_counts(run)
    }
    others = {workers: other for workers, other in compared.items() if other is not None}
    for line in calibration_lines(run, found, others):
        echo(line)


def _print_budget(loaded: LoadedRun) -> None:
    from strop.config.machine import described_machine
    from strop.errors import PlacementError
    from strop.plan import fit
    from strop.plan.fit import with_machine_defaults
    from strop.plan.placement import describe_plan, machine_of, plan_rows, plan_run

    run = with_machine_defaults(loaded.run)
    place = machine_of(run)
    echo(f"Memory on {place}, in GiB:")
    echo(align_columns(fit.memory_rows(run, place)) + "\n")
    for line in fit.step_lines(run):
        echo(line)
    if described_machine() is None:
        _print_times(loaded.run)
    try:
        placed = plan_run(run)
        echo(f"\n{describe_plan(placed)}\n{align_columns(plan_rows(placed))}")
    except PlacementError as error:
        echo(f"\nNo placement: {error}")
    echo("")
    print_memory(run)


def add_to(app: typer.Typer) -> None:
    """Add the command to an app."""
    app.command()(plan)
