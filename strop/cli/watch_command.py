"""`strop watch`: follow a run that another process trains."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strop.cli.arguments import RunFolderArgument
from strop.cli.output import echo

if TYPE_CHECKING:
    from strop.runs.metrics_file import MetricsRow


def watch(
    folder: RunFolderArgument,
    every: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.1)] = 2.0,
    wait: Annotated[
        float, typer.Option(help="Seconds to wait for a run that has no folder yet.", min=0)
    ] = 300.0,
) -> None:
    """Print the last step of a run and each further one as it is recorded, until the run ends."""
    from strop.run.recording.console import make_display
    from strop.runs.overview import run_state
    from strop.runs.reader import read_run
    from strop.runs.status import run_status
    from strop.runs.verdict import learning_faults, verdict

    _wait_for_start(folder, every, wait)
    data = read_run(folder)
    display = make_display(sys.stdout, run_status(data).steps)
    # The steps before the last one took place before the display's clock started.
    display.open(str(folder), (), done=run_status(data).step)
    shown = {int(row["step"] or 0): _values(row) for row in data.rows[:-1]}
    for values in shown.values():
        display.earlier_step(values)
    try:
        while True:
            for row in data.rows:
                step, values = int(row["step"] or 0), _values(row)
                known = shown.get(step, {})
                new = {name: value for name, value in values.items() if known.get(name) != value}
                if new:  # an evaluation is added to a row later
                    display.step(step, new)
                    shown[step] = values
            state = run_state(data)
            if state != "running":
                break
            time.sleep(every)
            data = read_run(folder)
    finally:
        display.close()
    message = run_status(data).message
    echo(f"{state}{f': {message}' if message else ''}. {verdict(data)}".rstrip())
    for fault in learning_faults(data.rows):
        echo(f"warning: {fault}")


def _wait_for_start(folder: Path, every: float, seconds: float) -> None:
    """Wait at most `seconds` for a run in a folder that does not exist: a run makes it when its model is loaded."""
    from strop.runs.folder import RunFolder
    from strop.runs.sessions import read_sessions

    if folder.exists() or not seconds:
        return
    echo(f"There is no folder {folder} yet; waiting {seconds:g} s for a run to start in it.")
    end = time.monotonic() + seconds
    while not (read_sessions(folder) or RunFolder(folder).metrics.exists()) and time.monotonic() < end:
        time.sleep(min(every, seconds))


def _values(row: MetricsRow) -> dict[str, float]:
    return {name: value for name, value in row.items() if value is not None}


def add_to(app: typer.Typer) -> None:
    """Add the command to an app."""
    app.command()(watch)
