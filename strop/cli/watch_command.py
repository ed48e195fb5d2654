"""`strop watch`: follow a run that another process trains."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from strop.cli.arguments import RunFolderArgument
from strop.cli.output import echo

if TYPE_CHECKING:
    from strop.runs.metrics_file import MetricsRow


def watch(
    folder: RunFolderArgument,
    every: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.1)] = 2.0,
) -> None:
    """Print the last step of a run and each further one as it is recorded, until the run ends."""
    from strop.run.recording.console import make_display
    from strop.runs.overview import run_state
    from strop.runs.reader import read_run
    from strop.runs.status import run_status
    from strop.runs.verdict import learning_faults, verdict

    data = read_run(folder)
    display = make_display(sys.stdout, run_status(data).steps)
    # The steps before the last one took place before the display's clock started.
    display.open(str(folder), (), done=run_status(data).step)
    shown = {int(row["step"] or 0): _values(row) for row in data.rows[:-1]}
    try:
        while True:
            for row in data.rows:
                step, values = int(row["step"] or 0), _values(row)
                if shown.get(step) != values:  # an evaluation is added to a row later
                    display.step(step, values)
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


def _values(row: MetricsRow) -> dict[str, float]:
    return {name: value for name, value in row.items() if value is not None}


def add_to(app: typer.Typer) -> None:
    """Add the command to an app."""
    app.command()(watch)
