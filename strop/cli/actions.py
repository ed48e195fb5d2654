"""What is done with a loaded run, whichever dialect it came from."""

from __future__ import annotations

import typer

from strop.config.load import Loaded
from strop.errors import ConfigError


def start(loaded: Loaded) -> None:
    """Say what was set aside and what has no effect, train, and say where the outcome is."""
    from strop import api

    say_notes(loaded)
    result = api.train(loaded)
    typer.echo(f"{result.steps} steps are done. The model is in {result.model}; all else in {result.folder}.")


def check_files(loaded: Loaded) -> None:
    """Say that a run can be started. Raises ConfigError where a file that it names is not there."""
    from strop.config.check import missing_files

    say_notes(loaded)
    faults = missing_files(loaded)
    if faults:
        raise ConfigError("\n".join(faults))
    typer.echo(f"This run can be started. All of it will be in {loaded.run.folder_path}.")


def say_notes(loaded: Loaded) -> None:
    """Print, before anything starts, what `--here` set aside and what was written without effect."""
    for item in loaded.set_aside:
        typer.echo(f"set aside: {item}")
    for note in loaded.notes:
        typer.echo(f"note: {note}")
