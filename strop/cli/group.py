"""What all groups of commands do alike."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from strop.errors import StropError

_WHOLE = 1000
"""More characters than a first sentence has."""


class Group(TyperGroup):
    """Lists its commands each with the whole first sentence of what it does."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the part of `--help` that lists the commands."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, found.get_short_help_str(_WHOLE)) for name, found in commands if found]
            )


class StropGroup(Group):
    """Prints what Strop raises on purpose as one paragraph; anything else keeps its traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command; exits with the error's own code."""
        try:
            return super().invoke(ctx)
        except StropError as error:
            typer.echo(f"strop: {error}", err=True)
            raise typer.Exit(error.exit_code) from None
