"""`strop studio`: a web page to compose run files, watch runs and browse rollouts."""

from __future__ import annotations

import signal
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer

from strop.cli.output import echo
from strop.errors import Interrupted


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


def add_to(app: typer.Typer) -> None:
    """Add the command to an app."""
    app.command()(studio)
