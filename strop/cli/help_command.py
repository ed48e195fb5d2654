"""`strop help`: the pages of the documentation, and the help of a command."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from strop.cli.output import echo


def _complete_topic(incomplete: str) -> list[str]:
    from strop.cli.pages import topics

    return [topic for topic in topics() if topic.startswith(incomplete)]


def help_(
    context: typer.Context,
    topic: Annotated[
        str | None,
        typer.Argument(
            help="Page, such as rewards or troubleshooting#out-of-memory, or a command.",
            show_default=False,
            autocompletion=_complete_topic,
        ),
    ] = None,
) -> None:
    """Print a page of the documentation, or the help of a command; without a topic, list the pages."""
    from strop.cli.columns import align_columns
    from strop.cli.pages import page_text, title, topics

    if topic is None:
        rows = [(f"  {name}", title(page)) for name, page in topics().items()]
        rows += [
            ("  run-file", "Every field of the run file"),
            ("  verl, trinity, trl, ...", "Every key of a tool"),
        ]
        echo("Topics of `strop help TOPIC`; `strop help COMMAND` prints the options of a command:")
        echo(align_columns(rows or [("", "the pages are not installed")], max_width=60))
        return
    group: Any = context.parent.command if context.parent else None
    if group is not None and (command := group.get_command(context.parent, topic)) is not None:
        with command.make_context(topic, [], parent=context.parent, resilient_parsing=True) as inner:
            echo(inner.get_help())
        return
    text = page_text(topic)
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.markdown import Markdown

        Console().print(Markdown(text))
    else:
        echo(text)


def add_to(app: typer.Typer) -> None:
    """Add the command to an app."""
    app.command("help")(help_)
