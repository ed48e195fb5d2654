"""The `strop` command line. Heavy modules are imported inside the commands that need them."""

from __future__ import annotations

from typing import Annotated

import typer

from strop.cli import (
    data_commands,
    dialect_commands,
    first_run_commands,
    folder_commands,
    reference_commands,
    run_commands,
    serve_commands,
    sweep_command,
)
from strop.cli.command_group import StropGroup

app = typer.Typer(
    cls=StropGroup,
    help="Reinforcement fine-tuning of language models, with the configuration you already have.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_FOREIGN_OPTIONS = {"allow_extra_args": True, "ignore_unknown_options": True}
app.command()(run_commands.train)
app.command()(run_commands.check)
app.command()(run_commands.explain)
app.command()(run_commands.evaluate)
app.command()(run_commands.generate)
app.command()(run_commands.export)
app.command()(run_commands.report)
app.command()(first_run_commands.quickstart)
app.command()(run_commands.plan)
app.command()(serve_commands.chat)
app.command()(serve_commands.serve)
app.command("list")(folder_commands.list_runs)
app.command()(folder_commands.show)
app.command()(folder_commands.compare)
app.command()(folder_commands.watch)
app.command()(sweep_command.sweep)
app.command()(serve_commands.studio)
app.add_typer(data_commands.app, name="data")
app.command()(first_run_commands.init)
app.command()(dialect_commands.trinity)
app.command(context_settings=_FOREIGN_OPTIONS)(dialect_commands.trl)
app.add_typer(dialect_commands.verl, name="verl")
app.command(context_settings=_FOREIGN_OPTIONS)(dialect_commands.component)
app.command()(dialect_commands.convert)
app.command("import", context_settings={"ignore_unknown_options": True})(dialect_commands.import_script)
app.command()(reference_commands.keys)
app.command()(reference_commands.schema)
app.command("help")(reference_commands.help_)


@app.command()
def version() -> None:
    """Print Strop's version."""
    from strop import __version__

    typer.echo(__version__)


def _print_version(requested: bool) -> None:
    if requested:
        version()
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print Strop's version.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Options of `strop` itself, without a command."""
