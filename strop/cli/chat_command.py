"""`strop chat`: talk with a model, or with the model of a run."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from strop.cli.output import echo
from strop.errors import ConfigError
from strop.workers.json_text import parse_json

_NEW, _QUIT = "/new", "/quit"


def chat(
    model: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="Run folder, model folder, or GGUF file.", show_default=False),
    ],
    ask: Annotated[
        list[str] | None,
        typer.Option(help="Message to answer, instead of asking for messages; may be repeated."),
    ] = None,
    before: Annotated[
        bool, typer.Option("--before", help="Talk with the model that the run started from.")
    ] = False,
    temperature: Annotated[float, typer.Option(help="Sampling temperature; 0 is greedy.", min=0)] = 0.0,
    max_tokens: Annotated[
        int | None,
        typer.Option(help="Maximum tokens of an answer; by default the run's.", min=1, show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sampling.", min=0)] = 1,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Read messages and print answers as JSON strings, one a line, for programs."
        ),
    ] = False,
) -> None:
    """Talk with a model or with the model of a run; each message is answered after those before it."""
    from strop.run.entry.chat import find_chat_source, open_chat
    from strop.types import SamplingParams

    source = find_chat_source(model, before=before)
    sampling = SamplingParams(temperature=temperature, max_tokens=max_tokens or source.max_tokens)
    with open_chat(source, sampling, seed) as conversation:
        if as_json:
            for line in sys.stdin:
                echo(json.dumps(conversation.ask(_message(line))))
            return
        if ask is None:
            echo(f"{source.model.path}. {_NEW} starts a new conversation, {_QUIT} ends.")
        for message in _typed() if ask is None else ask:
            if message == _NEW or ask is not None:
                conversation.restart()
            if message == _NEW:
                continue
            if ask is not None:
                echo(f"> {message}")
            echo(conversation.ask(message))


def _message(line: str) -> str:
    """The message of a line. Raises `ConfigError` for a line that is no JSON string."""
    try:
        message = parse_json(line)
    except ValueError:
        message = None
    if not isinstance(message, str):
        raise ConfigError(f'--json: {line.strip()[:80]!r} is no JSON string; write "a message" in quotes.')
    return message


def _typed() -> Iterator[str]:
    """Messages of the standard input, up to its end or /quit."""
    while True:
        if sys.stdin.isatty():
            echo("> ", newline=False)
        line = sys.stdin.readline()
        message = line.strip()
        if not line or message == _QUIT:
            return
        if message:
            yield message


def add_to(app: typer.Typer) -> None:
    """Add the command to an app."""
    app.command()(chat)
