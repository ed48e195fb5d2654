"""`strop serve`: an OpenAI-compatible endpoint of a model, or of the model of a run."""

from __future__ import annotations

import signal
import threading
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from strop.cli.output import echo
from strop.errors import ConfigError


class ServingEngineName(StrEnum):
    """Value of `--engine`."""

    NATIVE = "native"
    VLLM = "vllm"
    SGLANG = "sglang"


def serve(
    model: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="Run folder, model folder, or GGUF file.", show_default=False),
    ],
    adapter: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=PATH",
            help="LoRA adapter in PEFT's format on the same model, chosen by `model: NAME`; may be repeated.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="Name of the model in requests; by default the folder's.", show_default=False),
    ] = None,
    engine: Annotated[ServingEngineName, typer.Option(help="Inference engine.")] = ServingEngineName.NATIVE,
    before: Annotated[
        bool, typer.Option("--before", help="Serve the model that the run started from.")
    ] = False,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 for a free one.", min=0, max=65535)] = 8000,
    token: Annotated[
        list[str] | None,
        typer.Option(
            envvar="STROP_SERVE_TOKEN",
            help="API key that clients send; may be repeated. A new one is made and printed if there is none.",
            show_default=False,
        ),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            help="Maximum tokens of a chat's reply, if a request sets none; by default the run's, or 256.",
            min=1,
            show_default=False,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Seed of requests without one: equal requests then get equal answers; by default they are random.",
            min=0,
            show_default=False,
        ),
    ] = None,
) -> None:
    """Serve a model, or the model of a run, to OpenAI's clients: chats, text completions, log-probs."""
    from strop.run.entry.chat import find_chat_source
    from strop.run.entry.serve import ServiceOptions, open_service

    source = find_chat_source(model, before=before)
    options = ServiceOptions(
        name=name or model.resolve().stem,
        adapters=_adapters(adapter or []),
        engine=engine.value,
        host=host,
        port=port,
        tokens=tuple(token or ()),
        max_tokens=max_tokens,
        seed=seed,
    )
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    with open_service(source, options) as access:
        echo(f"{source.model.path} at {access.url} as {', '.join(access.models)}.")
        if not token:
            typer.echo(f"API key: {access.api_key}")  # `echo` would hide it
        echo("Ctrl-C or SIGTERM ends the service.")
        ended.wait()
    echo("The service has ended.")


def _adapters(given: list[str]) -> dict[str, str]:
    """Paths by name. Raises `ConfigError` for one without a name, and for a name that is there twice."""
    found: dict[str, str] = {}
    for text in given:
        name, separator, path = text.partition("=")
        if not (name and separator and path):
            raise ConfigError(f"--adapter {text}: write NAME=PATH, such as --adapter math=runs/math/adapter")
        if name in found:
            raise ConfigError(f"--adapter {name} is there twice; write another name for one of them")
        found[name] = path
    return found


def add_to(app: typer.Typer) -> None:
    """Add the command to an app."""
    app.command()(serve)
