"""Commands of `strop` in processes of their own, which are forks of a server that has torch and Strop loaded.

Such a process has an id, a session, signals and an exit code of its own, as `python -m strop` has, and starts in a
tenth of a second instead of seconds. There is one server per process of pytest, which ends with it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from strop.workers.child_process import ChildProcess, fork_module, module_path
from strop.workers.fork_server import ForkRequest, fork_server

TIMEOUT_SECONDS = 900.0
"""Only a command that hangs takes this long."""
_IMPORTS = ("strop.run.entry.explore", "strop.run.entry.train")
"""With torch and transformers. `tests/cli/test_processes.py` imports the command line in a new interpreter."""
_MODULE_PATH = module_path()
"""As it is before a test changes it."""


def run_strop(
    *arguments: object,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = TIMEOUT_SECONDS,
) -> subprocess.CompletedProcess[str]:
    """Run `python -m strop arguments...` to its end, and return its exit code and what it wrote.

    `env` has all environment variables; by default those of this process.
    """
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = start_strop(*arguments, cwd=cwd, env=env, stdout=output, stderr=errors)
        try:
            code = process.wait(timeout)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        texts = []
        for file in (output, errors):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    return subprocess.CompletedProcess(["strop", *map(str, arguments)], code, *texts)


def start_strop(
    *arguments: object,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: int | IO[bytes] = subprocess.DEVNULL,
    stdout: int | IO[bytes] | None = None,
    stderr: int | IO[bytes] | None = None,
) -> ChildProcess:
    """Start `python -m strop arguments...`, in a session of its own, with streams as for `subprocess.Popen`."""
    words = [str(argument) for argument in arguments]
    folder = str(cwd or Path.cwd())
    environment = {**(os.environ if env is None else env)}
    streams = [_descriptor(stream) for stream in (stdin, stdout, stderr)]
    server = fork_server(dict(os.environ))
    if server is not None:
        path = [folder, *_MODULE_PATH]
        request = ForkRequest(
            "strop", words, _IMPORTS, environment, path, folder, [0, 1, 2], has_children=True
        )
        forked = fork_module(server, request, (), streams[0] or 0, *streams[1:])
        if forked is not None:
            return forked
    # Another platform, or other variables for the libraries that the server has loaded.
    return subprocess.Popen(
        [sys.executable, "-m", "strop", *words],
        cwd=folder,
        env=environment,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
    )


def _descriptor(stream: int | IO[bytes] | None) -> int | None:
    return stream if stream is None or isinstance(stream, int) else stream.fileno()
