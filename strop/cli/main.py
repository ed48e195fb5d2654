"""The command line. Everything heavy is imported inside the command that needs it."""

from __future__ import annotations

import typer

from strop.cli import component, convert, dialects, reference, runs
from strop.cli.group import StropGroup

app = typer.Typer(
    cls=StropGroup,
    help="Reinforcement fine-tuning of language models, with the configuration you already have.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
runs.add_to(app)
dialects.add_to(app)
component.add_to(app)
convert.add_to(app)
reference.add_to(app)


@app.command()
def version() -> None:
    """Print Strop's version."""
    from strop import __version__

    typer.echo(__version__)


def main() -> None:
    """The entry point of `strop`."""
    app()
