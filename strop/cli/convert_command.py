"""`strop convert` and `strop import`: run files from configurations and launch scripts of other tools, and back."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Annotated

import typer

from strop.cli.arguments import OverridesArgument, RunFileArgument
from strop.cli.output import align_columns, echo
from strop.errors import ConfigError
from strop.workers.files import atomic_write

if TYPE_CHECKING:
    from strop.compat.convert import Conversion
    from strop.compat.launch.importer import ImportedCommand


def convert(
    run: RunFileArgument,
    to: Annotated[
        str,
        typer.Option(help="strop, verl, trinity, trl, rft_trainer, verl_trainer or grpo."),
    ] = "strop",
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Dialect of the file, such as trl or verl-sft; by default it is detected.",
            show_default=False,
        ),
    ] = None,
    overrides: OverridesArgument = None,
    output: Annotated[
        Path | None, typer.Option(help="File to write; by default standard output.", show_default=False)
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail, and write nothing, if a value cannot be converted.")
    ] = False,
    here: Annotated[
        bool,
        typer.Option(
            "--here", "--local", help="Accepted as in the other commands; a conversion always behaves so."
        ),
    ] = False,
) -> None:
    """Write a configuration in another dialect, and list the values that it cannot express.

    The file may be a run file or a file of verl, Trinity-RFT, TRL or AzureML, as for `strop train`.
    """
    from strop.compat.convert import convert as convert_job
    from strop.config.save import yaml_text
    from strop.reading import read_any

    job = read_any(run, overrides or (), here=True, dialect=source)
    for note in dict.fromkeys(note for stage in job.loaded.runs for note in stage.notes):
        echo(f"note: {note}", err=True)
    conversion = convert_job(job, to)
    _print_differences(conversion, to)
    if strict and conversion.unsupported:
        raise ConfigError(
            f"{run} cannot be converted to {to} without a difference (--strict); no file is written."
        )
    text = f"# From {run.name}, by strop convert.\n{yaml_text(conversion.values)}"
    if output is None:
        echo(text, newline=False)
        return
    try:
        target = output.resolve()
        if target.is_file() or not target.exists():
            atomic_write(target, text)
        else:  # a terminal or a pipe
            target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{output} cannot be written: {error.strerror}.") from None
    echo(f"Wrote {output}.", err=True)


def _print_differences(conversion: Conversion, to: str) -> None:
    for note in conversion.notes:
        echo(f"note: {note}", err=True)
    if not conversion.unsupported:
        echo(f"Converted to {to} without a difference: read back, it is the same run.", err=True)
    training = [one for one in conversion.unsupported if one.affects_training]
    others = [one for one in conversion.unsupported if not one.affects_training]
    for effect, found in (("changes training", training), ("does not change training", others)):
        if found:
            echo(f"Not expressible in {to}; {effect}:", err=True)
            rows = ((one.field, one.value, one.target_value, one.reason) for one in found)
            table = align_columns([("field", "here", f"in {to}", "why"), *rows])
            echo(indent(table, "  "), err=True)


def add_to(app: typer.Typer) -> None:
    """Add the command to an app."""
    app.command()(convert)


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


def add_import_to(app: typer.Typer) -> None:
    """Add the command to an app."""
    app.command(name="import", context_settings={"ignore_unknown_options": True})(import_script)
