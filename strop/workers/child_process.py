"""Child processes on this machine: fresh Python interpreters that run one module, and how they ended.

A fork would not survive torch's threads, and a `multiprocessing` child would run the user's script a second
time; so every child process is a new interpreter.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO


def child_environment(inherited: Sequence[str] = ("*",), **more: str) -> dict[str, str]:
    """Environment variables for a child interpreter: those of this process whose name matches one of the
    `inherited` patterns, its module path, and `more`."""
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    kept = {
        name: value
        for name, value in os.environ.items()
        if any(fnmatchcase(name, pattern) for pattern in inherited)
    }
    return {**kept, "PYTHONPATH": path, **more}


def spawn_module(
    module: str,
    *arguments: str,
    pass_fds: Sequence[int] = (),
    inherited_environment: Sequence[str] = ("*",),
    environment: Mapping[str, str] | None = None,
    stdin: int = subprocess.DEVNULL,
    stdout: int | None = None,
    stderr: int | None = None,
) -> subprocess.Popen[bytes]:
    """Start `python -m module arguments...` in its own session, so that Ctrl-C reaches only this process.

    `pass_fds` are file descriptors that the child inherits; see `child_environment` for its variables.
    """
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module, *arguments],
        pass_fds=pass_fds,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env=child_environment(inherited_environment, **(environment or {})),
        start_new_session=True,
    )


def describe_exit(code: int) -> str:
    """The end of a process, as a continuation of "it ended": `by signal 9 (Killed)`, `with exit code 1`."""
    return f"by signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"with exit code {code}"


class ErrorReport:
    """An anonymous temporary file into which a child process writes the error that ends it."""

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (`close` closes it)

    def fileno(self) -> int:
        """The file descriptor to pass to the child."""
        return self._file.fileno()

    def read(self) -> str:
        """All that the child has written; an empty text if it has written nothing."""
        self._file.seek(0)
        return self._file.read().decode(errors="replace")

    def close(self) -> None:
        """Delete the file."""
        self._file.close()
