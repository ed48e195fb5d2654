"""`strop serve`: an OpenAI-compatible endpoint of a model, or of the model of a run."""

from __future__ import annotations

import secrets
import signal
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strop.cli.output import echo
from strop.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from strop.inference.endpoint.server import FurtherRoutes
    from strop.run.entry.serve import ServedBase


class ServingEngineName(StrEnum):
    """Value of `--engine`."""

    NATIVE = "native"
    VLLM = "vllm"
    SGLANG = "sglang"


class ComputeType(StrEnum):
    """Value of `--dtype`."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


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
    dtype: Annotated[
        ComputeType | None,
        typer.Option(help="Data type of the native engine; by default float32.", show_default=False),
    ] = None,
    before: Annotated[
        bool, typer.Option("--before", help="Serve the model that the run started from.")
    ] = False,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 for a free one.", min=0, max=65535)] = 8000,
    tinker: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Also train adapters for clients of Tinker's SDK, and keep their runs in this folder; a folder of "
            "before goes on.",
            show_default=False,
        ),
    ] = None,
    ranks: Annotated[
        int,
        typer.Option(
            help="Number of processes, or GPUs, over which the model that --tinker trains is sharded (FSDP2).",
            min=1,
        ),
    ] = 1,
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
    if dtype is not None:
        if engine is not ServingEngineName.NATIVE:
            raise ConfigError(
                f"--dtype works with --engine native; {engine.value} has the data type of the model"
            )
        source = replace(source, model=source.model.model_copy(update={"dtype": dtype.value}))
    if tinker is None and ranks > 1:
        raise ConfigError(
            "--ranks divides the model that --tinker trains; write --tinker FOLDER, or leave out --ranks"
        )
    options = ServiceOptions(
        name=name or model.resolve().stem,
        adapters=_adapters(adapter or []),
        engine=engine.value,
        host=host,
        port=port,
        tokens=tuple(token or ()),
        max_tokens=max_tokens,
        seed=seed,
        further=None if tinker is None else _tinker(tinker, name or model.resolve().stem, ranks),
    )
    if tinker is not None and not token:
        options = replace(options, tokens=(f"tml-{secrets.token_urlsafe(24)}",))
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    with open_service(source, options) as access:
        echo(f"{source.model.path} at {access.url} as {', '.join(access.models)}.")
        if not token:
            typer.echo(f"API key: {access.api_key}")  # `echo` would hide it
        if tinker is not None:
            typer.echo(
                f"Tinker's SDK: TINKER_BASE_URL={access.url.removesuffix('/v1')} TINKER_API_KEY={access.api_key}"
            )
        echo("Ctrl-C or SIGTERM ends the service.")
        ended.wait()
    echo("The service has ended.")


def _tinker(
    folder: Path, name: str, ranks: int
) -> Callable[[ServedBase], AbstractContextManager[FurtherRoutes]]:
    """The protocol of Tinker, for a service. Raises `MissingExtraError` without its package."""
    try:
        from strop.compat.tinker.service import open_tinker
    except ImportError as error:
        raise MissingExtraError(
            f"--tinker needs the package tinker, with its types ({error}). Install it: pip install 'strop[tinker]'"
        ) from error
    return partial(open_tinker, folder=folder, name=name, ranks=ranks)


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
