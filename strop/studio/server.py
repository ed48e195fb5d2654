"""Server of Strop Studio, on this machine's loopback interface."""

from __future__ import annotations

import asyncio
import errno
import secrets
import socket
import sys
import tempfile
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from strop.errors import ConfigError, MissingExtraError
from strop.studio.settings import StudioSettings

_PACKAGES = ("starlette", "uvicorn", "h11", "ruamel.yaml")
_HOST = "127.0.0.1"
_BACKLOG = 128
"""Connections that wait to be accepted; the event loop also tries as often in a row where the table is full."""


def serve(
    runs: Path, port: int, *, open_browser: bool, announce: Callable[[str], None], anywhere: bool = False
) -> None:
    """Serve Studio until an interrupt; `announce` gets the URL with the token as soon as the server accepts requests.

    A port of 0 is a free one; with `anywhere` files outside of the current folder and of `runs` are read and written.
    Raises `MissingExtraError` without the packages, and `ConfigError` if the port is used.
    """
    require_packages()
    import uvicorn

    from strop.studio.app import make_app
    from strop.studio.connections import BrowserConnection, BrowserConnections

    connections = BrowserConnections()

    class Server(uvicorn.Server):
        """Handles the errors of its event loop by `connections`."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            asyncio.get_running_loop().set_exception_handler(connections.handle_loop_error)
            await super().startup(sockets)

    with ExitStack() as stack:
        listener = stack.enter_context(_listen(port))
        settings = StudioSettings(
            runs, secrets.token_urlsafe(24), f"/{secrets.token_urlsafe(9)}", Path.cwd(), anywhere
        )
        address = f"http://{_HOST}:{listener.getsockname()[1]}/?token={settings.token}"
        config = uvicorn.Config(
            make_app(settings, connections.admitted),
            http=partial(BrowserConnection, connections),  # type: ignore[arg-type]
            loop="asyncio",
            ws="none",
            backlog=_BACKLOG,
            access_log=False,
            log_level="error",  # no line for each request that is not HTTP
        )
        announce(address)
        if open_browser:
            webbrowser.open(stack.enter_context(_entrance(address)).as_uri())
        Server(config).run([listener])


@contextmanager
def _entrance(address: str) -> Iterator[Path]:
    """A file of this user that leads a browser to an address: all users can see the arguments of a browser."""
    with tempfile.TemporaryDirectory(prefix="strop-studio-") as folder:  # with mode 0700
        file = Path(folder) / "open.html"
        file.write_text(
            f'<!doctype html><meta http-equiv="refresh" content="0;url={address}"><a href="{address}">Strop Studio</a>'
        )
        yield file


def require_packages() -> None:
    """Raise `MissingExtraError` if a package of Studio is not installed."""
    for name in _PACKAGES:
        try:
            found = find_spec(name)
        except ModuleNotFoundError:
            found = None
        if found is None:
            raise MissingExtraError(
                f"strop studio needs {name}, which is not installed: pip install 'strop[studio]'"
            )


def _listen(port: int) -> socket.socket:
    """A listening socket on the loopback interface. Raises `ConfigError` if the port cannot be used."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if sys.platform != "win32":
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((_HOST, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"Port {port} of this machine is used by another program, perhaps by a Studio that runs already. "
                "Stop that program, or write another port: strop studio --port 0 takes a free one."
            ) from error
        raise ConfigError(
            f"Port {port} cannot be used: {error.strerror}. Write a port from 1024 to 65535, such as --port 8765."
        ) from error
    return listener
