"""Local server of an environment, which a run starts and ends."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from typing import IO
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

from strop.errors import ConfigError

_START_SECONDS = 120.0
_PAUSE_SECONDS = 0.1
_SHOWN_CHARACTERS = 800
_CHUNK_BYTES = 1 << 16
_TRIES = 3
"""Starts on different ports: another process may take a free port before the server does."""


class LocalServer:
    """A server in a process of its own, which starts again if it has ended. It ends with this object or its process.

    `command` has `{port}` where the server reads its port.
    """

    def __init__(self, command: Sequence[str], where: str) -> None:
        """Start the server. Raises `ConfigError` if it does not answer; `where` is the place that names it."""
        self._command = command
        self._where = where
        self._lock = threading.Lock()
        self._start()

    def url(self) -> str:
        """Address of the server, which starts if it has ended; blocks until it answers. Raises `ConfigError`."""
        with self._lock:
            if self._process.poll() is not None:
                self._start()
            return self._url

    def close(self) -> None:
        """End the server."""
        self._end()

    def _start(self) -> None:
        for attempt in range(_TRIES):
            port = _free_port()
            self._url = f"http://127.0.0.1:{port}"
            command = [argument.replace("{port}", str(port)) for argument in self._command]
            self._process = subprocess.Popen(
                [sys.executable, "-m", "strop.workers.supervised_command", *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            assert self._process.stdout is not None
            self._end = weakref.finalize(self, _terminate, self._process)
            output: deque[bytes] = deque(maxlen=2)
            reader = threading.Thread(target=_drain, args=(self._process.stdout, output), daemon=True)
            reader.start()
            if self._answers():
                return
            ended = self._process.poll()
            self._end()
            reader.join()
            shown = " ".join(b"".join(output).decode(errors="replace").split())[-_SHOWN_CHARACTERS:]
            if ended is None or "in use" not in shown or attempt == _TRIES - 1:
                what = f"has not answered within {_START_SECONDS:.0f} s" if ended is None else "ended"
                code = "" if ended is None else f" with exit code {ended}"
                raise ConfigError(f"{self._where}: the server {command[0]} {what}{code}. Its output: {shown}")

    def _answers(self) -> bool:
        """Whether the server answers before it ends, within the time limit."""
        opener = build_opener(ProxyHandler({}))
        deadline = time.monotonic() + _START_SECONDS
        while self._process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(URLError, OSError), opener.open(f"{self._url}/health", timeout=5):
                return True
            time.sleep(_PAUSE_SECONDS)
        return False


def _terminate(process: subprocess.Popen[bytes]) -> None:
    process.terminate()  # the supervisor kills all descendants
    process.wait()


def _drain(pipe: IO[bytes], output: deque[bytes]) -> None:
    with pipe:
        while chunk := pipe.read1(_CHUNK_BYTES):  # type: ignore[attr-defined]
            output.append(chunk)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
