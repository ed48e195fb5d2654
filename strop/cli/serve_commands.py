"""`strop serve`, an OpenAI-compatible endpoint of a model or of the model of a run; `strop chat`, a talk with it; and
`strop studio`, a web page to compose run files, watch runs and browse rollouts."""

from __future__ import annotations

import json
import secrets
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from strop.cli.output import echo
from strop.errors import ConfigError, Interrupted, MissingExtraError
from strop.workers.json_text import parse_json

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


def studio(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder that holds runs.", show_default=True)
    ] = Path("runs"),
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1; 0 for a free one.", min=0, max=65535)] = 8765,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    anywhere: Annotated[
        bool,
        typer.Option("--anywhere", help="Read and write files outside of this folder and FOLDER, too."),
    ] = False,
) -> None:
    """Serve a web page: compose and start runs, watch them, browse rollouts, rate responses."""
    from strop.studio.server import serve

    def announce(address: str) -> None:
        typer.echo(f"Strop Studio: {address}")  # with its token, which `echo` would hide
        echo(f"Runs in {folder.resolve()}. Ctrl-C ends Studio; runs that it started continue.")

    def terminate(number: int, _frame: FrameType | None) -> NoReturn:
        raise Interrupted("Stopped by SIGTERM.", number)

    signal.signal(signal.SIGTERM, terminate)  # uvicorn sends itself the signal again after its end
    serve(folder, port, open_browser=open_browser, announce=announce, anywhere=anywhere)
