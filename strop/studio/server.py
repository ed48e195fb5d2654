"""Server of Strop Studio, on this machine's loopback interface."""

from __future__ import annotations

import errno
import secrets
import socket
import sys
import webbrowser
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from strop.errors import ConfigError, MissingExtraError
from strop.studio.settings import StudioSettings

_PACKAGES = ("starlette", "uvicorn", "ruamel.yaml")
_HOST = "127.0.0.1"


def serve(runs: Path, port: int, *, open_browser: bool, announce: Callable[[str], None]) -> None:
    """Serve Studio until an interrupt; `announce` gets the URL with the token as soon as the server accepts requests.

    A port of 0 is a free one. Raises `MissingExtraError` without the packages, and `ConfigError` if the port is used.
    """
    require_packages()
    import uvicorn

    from strop.studio.app import make_app

    with _listen(port) as listener:
        settings = StudioSettings(runs, secrets.token_urlsafe(24), listener.getsockname()[1])
        address = f"http://{_HOST}:{settings.port}/?token={settings.token}"
        config = uvicorn.Config(make_app(settings), log_level="warning", access_log=False, ws="none")
        announce(address)
        if open_browser:
            webbrowser.open(address)
        uvicorn.Server(config).run([listener])


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
        listener.listen(128)
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
