"""Command groups: listing of commands with their first sentence, and reporting of errors as one paragraph."""

from __future__ import annotations

import errno
import signal
from typing import Any

import typer
from typer.core import TyperGroup

from strop.cli.output import echo
from strop.config.paths import expand_user
from strop.config.redact import forget_environment
from strop.errors import ConfigError, ExitCode, StropError, message_with_notes, out_of_memory
from strop.printable import printable, shorten

_UNLIMITED = 1000
"""Maximum length of a first sentence in the list of commands, longer than any."""


class CommandGroup(TyperGroup):
    """Group that lists its commands with the complete first sentence of their help."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the part of `--help` that lists the commands."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, found.get_short_help_str(_UNLIMITED)) for name, found in commands if found]
            )


def _with_home(word: str) -> str:
    """A word of the command line, with the home folder in place of `~/` at the start of it or of an option's value."""
    option, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
    return f"{option}{equals}{expand_user(value)}" if value.startswith("~/") else word


class StropGroup(CommandGroup):
    """Group that prints a `StropError`, a lack of memory or an interrupt as one paragraph, others with a traceback."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line; `~/` is the home folder also where no shell expands it, as in `--out=~/file`."""
        return super().parse_args(ctx, list(map(_with_home, args)))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command; an override that is written like an option ends with what to write instead."""
        found = super().resolve_command(ctx, args)
        _, command, rest = found
        if command is not None and not command.ignore_unknown_options:
            for word in rest:
                key, equals, value = word.partition("=")
                if key.startswith("--") and "." in key:
                    written = f"{key[2:]}={value if equals else 'VALUE'}"
                    ctx.fail(f"There is no option {key}. Keys of the configuration have no dashes: {written}")
        return found

    def invoke(self, ctx: Any) -> Any:
        """Run a command; exits with the error's own code."""
        forget_environment()
        try:
            return super().invoke(ctx)
        except StropError as error:
            for notice in error.notices if isinstance(error, ConfigError) else ():
                echo(f"note: {notice}", err=True)
            echo(f"strop: {message_with_notes(error)}", err=True)
            raise typer.Exit(error.exit_code) from None
        except (MemoryError, RuntimeError) as error:
            message = out_of_memory(error)
            if message is None:
                raise
            echo(f"strop: {message}", err=True)
            raise typer.Exit(ExitCode.FAILED) from None
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG or not isinstance(error.filename, str):
                raise
            name = printable(shorten(error.filename, 120))
            echo(f"strop: {name}: no file or folder can have a name of this length.", err=True)
            raise typer.Exit(ExitCode.REFUSED) from None
        except KeyboardInterrupt:
            # A second interrupt ends the process at once, if a thread delays its exit.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            echo("strop: Interrupted.", err=True)
            raise typer.Exit(ExitCode.SIGNALED + signal.SIGINT) from None
