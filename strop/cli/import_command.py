"""`strop import`: run files for the training commands of a launch script."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strop.cli.output import echo
from strop.errors import ConfigError
from strop.workers.files import atomic_write

if TYPE_CHECKING:
    from strop.compat.launch.importer import ImportedCommand


def import_script(
    script: Annotated[
        Path, typer.Argument(metavar="LAUNCH.sh", help="Launch script, in bash.", show_default=False)
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Arguments of the script.", show_default=False)
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            help="Run file to write; by default the script's name with .yaml, in this folder.",
            show_default=False,
        ),
    ] = None,
    only: Annotated[
        int | None,
        typer.Option(metavar="N", help="Number of the only command to import.", show_default=False),
    ] = None,
) -> None:
    """Write a run file for each training command that a launch script would run, without running it.

    The script runs in bash, with recorders in place of all programs, and can write no file and use no network.
    """
    from strop.compat.launch.importer import import_script as find_commands

    found, notices = find_commands(script, arguments or ())
    for notice in notices:
        echo(f"note: {notice}", err=True)
    if only is not None and not 1 <= only <= len(found):
        raise ConfigError(
            f"--only {only}: the script runs {len(found)} training commands; write a number from 1 to {len(found)}."
        )
    path = output or Path(f"{script.stem}.yaml")
    for number, command in enumerate(found, 1):
        if only is None or number == only:
            several = len(found) > 1 and only is None
            echo(f"{number}. {command.shown}")
            _import(command, path.with_stem(f"{path.stem}-{number}") if several else path, script)


def _import(command: ImportedCommand, path: Path, script: Path) -> None:
    """Write the run file of one command, and print how to run it."""
    if not command.is_training:
        echo(f"   trains nothing, so it needs no run file. Run: {command.strop_command}")
        return
    from strop.compat.convert import convert
    from strop.config.save import yaml_text

    job = command.read()
    for note in job.loaded.notes:
        echo(f"   note: {note}", err=True)
    conversion = convert(job, "strop")
    for note in conversion.notes:
        echo(f"   note: {note}", err=True)
    try:
        if path.exists():
            raise ConfigError(f"{path} exists already; name another file with --output.")
        atomic_write(path, f"# From {script.name}, by strop import.\n{yaml_text(conversion.values)}")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}.") from None
    if command.command.folder != Path.cwd():
        echo(f"   note: relative paths in it are relative to {command.command.folder}.", err=True)
    echo(f"   wrote {path}. Run: strop train {path}")
    echo(f"   or, with the keys of the script: {command.strop_command} --here")


def add_to(app: typer.Typer) -> None:
    """Add the command to an app."""
    app.command(name="import", context_settings={"ignore_unknown_options": True})(import_script)
