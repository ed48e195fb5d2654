"""Printing of text by the command line: without control characters and without secrets."""

from __future__ import annotations

import typer

from strop.config.redact import safe_text


def echo(text: object = "", *, err: bool = False, newline: bool = True) -> None:
    """Print a text on stdout, or on stderr, that a terminal shows as it is and that holds no secret."""
    typer.echo(safe_text(str(text)), err=err, nl=newline)
