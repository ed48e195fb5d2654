"""A real PostgreSQL server in a temporary folder, on a Unix socket, as an unprivileged user."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

LIMIT = 600.0
"""Seconds that only a hang reaches."""


def find_binaries() -> Path | None:
    """The folder of `initdb` and `postgres`: on the PATH, or Debian's."""
    on_path = shutil.which("initdb")
    if on_path is not None:
        return Path(on_path).resolve().parent
    return max(Path("/usr/lib/postgresql").glob("*/bin"), default=None)


class Server:
    """Starts, stops and kills one server; its data stays until `remove`."""

    def __init__(self, binaries: Path) -> None:
        self._binaries = binaries
        self._user = _unprivileged_user()
        self._folder = Path(tempfile.mkdtemp(prefix="strop-pg-", dir="/tmp"))  # socket paths must be short
        self._process: subprocess.Popen[bytes] | None = None
        if self._user is not None:
            shutil.chown(self._folder, self._user)
        initdb: list[str | Path] = [
            binaries / "initdb",
            "-D",
            self._folder / "data",
            "-U",
            "strop",
            "-A",
            "trust",
            "-N",
        ]
        initdb += ["--encoding=UTF8", "--locale=C"]  # whatever the locale of the tests
        done = subprocess.run(initdb, capture_output=True, user=self._user, cwd=self._folder, check=False)
        assert done.returncode == 0, done.stderr.decode()

    @property
    def url(self) -> str:
        """The URL for SQLAlchemy."""
        return f"postgresql://strop@/postgres?host={self._folder}"

    def start(self) -> None:
        """Start the server, and wait until it accepts connections."""
        options = ["-c", "listen_addresses=", "-c", "fsync=off", "-k", str(self._folder)]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._binaries / "postgres", "-D", self._folder / "data", *options],
                stdout=log,
                stderr=log,
                user=self._user,
                cwd=self._folder,
                start_new_session=True,
            )
        deadline = time.monotonic() + LIMIT
        while not self._answers():
            assert self._process.poll() is None, (self._folder / "log").read_text()
            assert time.monotonic() < deadline, "the server does not start"
            time.sleep(0.05)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT ends all sessions and stops; SIGQUIT stops at once, as in a crash."""
        assert self._process is not None
        self._process.send_signal(how)
        self._process.wait(LIMIT)
        self._process = None

    def remove(self) -> None:
        """Stop and delete everything."""
        if self._process is not None:
            self.stop(signal.SIGQUIT)
        shutil.rmtree(self._folder)

    def _answers(self) -> bool:
        ready: list[str | Path] = [self._binaries / "pg_isready", "-h", self._folder, "-U", "strop", "-q"]
        return subprocess.run(ready, check=False).returncode == 0


def _unprivileged_user() -> str | None:
    """PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in known else "nobody"


@contextmanager
def running_server() -> Iterator[Server]:
    """A new server; the test is skipped if PostgreSQL is not installed."""
    binaries = find_binaries()
    if binaries is None:
        pytest.skip("no PostgreSQL server is installed here")
    server = Server(binaries)
    try:
        server.start()
        yield server
    finally:
        server.remove()
