"""`strop convert`: write a configuration in another dialect."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Annotated

import typer

from strop.cli.arguments import OverridesArgument, RunFileArgument
from strop.cli.columns import align_columns
from strop.cli.output import echo
from strop.errors import ConfigError
from strop.workers.files import atomic_write

if TYPE_CHECKING:
    from strop.compat.convert import Conversion


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
