"""The `strop` command line. Heavy modules are imported inside the commands that need them."""

from __future__ import annotations

from typing import Annotated

import typer

from strop.cli import (
    chat_command,
    convert_command,
    data_commands,
    dialect_commands,
    folder_commands,
    init_command,
    plan_command,
    quickstart_command,
    reference_commands,
    run_commands,
    serve_command,
    studio_command,
    sweep_command,
    watch_command,
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
run_commands.add_to(app)
quickstart_command.add_to(app)
plan_command.add_to(app)
chat_command.add_to(app)
serve_command.add_to(app)
folder_commands.add_to(app)
watch_command.add_to(app)
sweep_command.add_to(app)
studio_command.add_to(app)
data_commands.add_to(app)
init_command.add_to(app)
dialect_commands.add_to(app)
dialect_commands.add_component_to(app)
convert_command.add_to(app)
convert_command.add_import_to(app)
reference_commands.add_to(app)
reference_commands.add_help_to(app)


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


def main() -> None:
    """Run the command line; `strop.cli.start` is the entry point that also handles interrupts of the imports."""
    app()
