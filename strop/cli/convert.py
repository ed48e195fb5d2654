"""`strop convert`: one dialect into another."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Annotated

import typer

from strop.cli.arguments import Overrides, RunFile
from strop.cli.show import aligned
from strop.errors import ConfigError

if TYPE_CHECKING:
    from strop.config.dialects.convert import Conversion


def convert(
    run: RunFile,
    to: Annotated[
        str,
        typer.Option(help="strop, verl, trinity, rft_trainer, verl_trainer or grpo.", show_default=False),
    ],
    overrides: Overrides = None,
    output: Annotated[
        Path | None, typer.Option(help="The file to write; else it is printed.", show_default=False)
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail where something cannot be said, and write nothing.")
    ] = False,
    here: Annotated[
        bool,
        typer.Option("--here", help="As in the other commands; as nothing runs, it is so without it too."),
    ] = False,
) -> None:
    """Write a configuration in another dialect, and list what cannot be said there.

    The file may be a run file, verl's, Trinity's or a component's inputs, as for `strop train`.
    """
    from strop.config.dialects.convert import convert as rewrite
    from strop.config.dialects.recognise import read_file
    from strop.config.save import yaml_text

    job = read_file(run, overrides or (), here=True)
    for note in job.loaded.notes:
        typer.echo(f"note: {note}", err=True)
    conversion = rewrite(job, to)
    _say(conversion, to)
    if strict and conversion.unsaid:
        raise ConfigError(
            f"{run} cannot be said in {to} without a difference (--strict); nothing is written."
        )
    text = f"# From {run.name}, by strop convert.\n{yaml_text(conversion.values)}"
    if output is None:
        typer.echo(text, nl=False)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{output} cannot be written: {error.strerror}.") from None
    typer.echo(f"Wrote {output}.", err=True)


def _say(conversion: Conversion, to: str) -> None:
    for note in conversion.notes:
        typer.echo(f"note: {note}", err=True)
    if not conversion.unsaid:
        typer.echo(f"All of it can be said in {to}: read back, it is the same run.", err=True)
    learned = [one for one in conversion.unsaid if one.is_learned_from]
    others = [one for one in conversion.unsaid if not one.is_learned_from]
    for what, found in (("changes what is learned", learned), ("changes nothing that is learned", others)):
        if found:
            typer.echo(f"This cannot be said in {to}, and {what}:", err=True)
            rows = ((one.field, one.value, one.there, one.why) for one in found)
            typer.echo(indent(aligned([("field", "here", f"in {to}", "why"), *rows]), "  "), err=True)


def add_to(app: typer.Typer) -> None:
    """Add this command."""
    app.command()(convert)
