"""Child processes on this machine that run one module: their start, limits, restarts, and how they ended.

A fork of this process would not survive torch's threads, and a `multiprocessing` child would run the user's script a
second time; so a child process is a new interpreter, or a fork of the fork server, which equals one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase
from multiprocessing import get_context
from pathlib import Path
from typing import IO, Any

from strop.errors import PlacementError
from strop.workers.fork_server import ForkedProcess, ForkRequest, ForkServer, fork_server

ChildProcess = subprocess.Popen[bytes] | ForkedProcess


def child_environment(inherited: Sequence[str] = ("*",), **more: str) -> dict[str, str]:
    """Environment variables for a child interpreter: those of this process whose name matches one of the
    `inherited` patterns, its module path, and `more`."""
    path = os.pathsep.join(module_path())
    kept = {
        name: value
        for name, value in os.environ.items()
        if any(fnmatchcase(name, pattern) for pattern in inherited)
    }
    return {**kept, "PYTHONPATH": path, **more}


def module_path() -> list[str]:
    """The module path of this process, for a child in any folder."""
    return [entry or str(Path.cwd()) for entry in sys.path]


def start_module(
    module: str,
    *arguments: str,
    imports: Sequence[str],
    has_children: bool = False,
    pass_fds: Sequence[int] = (),
    stdin: int = subprocess.DEVNULL,
    stdout: int | None = None,
    stderr: int | None = None,
) -> ChildProcess:
    """Start a child as `spawn_module` does, as a fork of the fork server where that is possible.

    `imports` are the modules, slow to import, that the server imports once for all children. `has_children` says that
    the child may start such children itself.
    """
    environment = child_environment()
    server = fork_server(environment) if imports else None
    if server is not None:
        request = ForkRequest(
            module,
            arguments,
            imports,
            environment,
            module_path(),
            str(Path.cwd()),
            [0, 1, 2, *pass_fds],
            has_children,
        )
        forked = fork_module(server, request, pass_fds, stdin, stdout, stderr)
        if forked is not None:
            return forked
    return spawn_module(module, *arguments, pass_fds=pass_fds, stdin=stdin, stdout=stdout, stderr=stderr)


def prepare_imports(modules: Sequence[str], **more: str) -> None:
    """Let the fork server, where there is one, begin to import modules for children that will start soon; `more` are
    their variables that this process does not have."""
    environment = child_environment(**more)
    server = fork_server(environment)
    if server is not None:
        server.prepare(ForkRequest("", (), modules, environment, module_path(), str(Path.cwd()), ()))


def fork_module(
    server: ForkServer,
    request: ForkRequest,
    pass_fds: Sequence[int] = (),
    stdin: int = subprocess.DEVNULL,
    stdout: int | None = None,
    stderr: int | None = None,
) -> ForkedProcess | None:
    """Fork a child with streams as `subprocess.Popen` understands them; None where `ForkServer.fork` returns None."""
    with contextlib.ExitStack() as child_ends, contextlib.ExitStack() as own_ends:
        input_end, own_input = _stream(0, stdin, child_ends, own_ends)
        output_end, own_output = _stream(1, stdout, child_ends, own_ends)
        error_end, own_errors = output_end, None
        if stderr != subprocess.STDOUT:
            error_end, own_errors = _stream(2, stderr, child_ends, own_ends)
        process = server.fork(request, [input_end, output_end, error_end, *pass_fds])
        if process is not None:
            process.stdin, process.stdout, process.stderr = own_input, own_output, own_errors
            own_ends.pop_all()
        return process


def _stream(
    number: int, wanted: int | None, child_ends: contextlib.ExitStack, own_ends: contextlib.ExitStack
) -> tuple[int, IO[bytes] | None]:
    """A child's descriptor for stdin, stdout or stderr, as `subprocess.Popen` understands it, and our end of a pipe."""
    if wanted is None:
        return number, None
    if wanted == subprocess.DEVNULL:
        null = os.open(os.devnull, os.O_RDWR)
        child_ends.callback(os.close, null)
        return null, None
    if wanted != subprocess.PIPE:
        return wanted, None
    reading, writing = os.pipe()
    child_end, own_end = (reading, writing) if number == 0 else (writing, reading)
    child_ends.callback(os.close, child_end)
    return child_end, own_ends.enter_context(os.fdopen(own_end, "wb" if number == 0 else "rb"))


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


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """Limits that a process applies to itself; None leaves a resource unlimited."""

    memory_bytes: int | None = None
    """Maximum private memory of one process (`RLIMIT_DATA`; enforced on Linux only)."""
    file_bytes: int | None = None
    """Maximum size of a file that a process writes."""
    processes: int | None = None
    """Maximum number of processes and threads of this user above the number at the time of `apply`; the
    kernel exempts root."""

    def apply(self) -> None:
        """Apply the limits to this process. A hard limit that is already lower stays; no core is dumped."""
        try:
            import resource
        except ImportError:  # no POSIX system
            return
        wanted = {
            resource.RLIMIT_CORE: 0,
            resource.RLIMIT_DATA: self.memory_bytes,
            resource.RLIMIT_FSIZE: self.file_bytes,
            resource.RLIMIT_NPROC: None if self.processes is None else _user_threads() + self.processes,
        }
        for kind, limit in wanted.items():
            if limit is not None:
                _, hard = resource.getrlimit(kind)
                limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
                resource.setrlimit(kind, (limit, limit))


def _user_threads() -> int:
    """Number of threads of this user, in all processes that `/proc` shows; 0 on a system without it."""
    user, count = os.getuid(), 0
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has ended
            if folder.stat().st_uid == user:
                count += sum(1 for _ in (folder / "task").iterdir())
    return count


class RestartBudget:
    """The restarts that one supervised process has left."""

    def __init__(self, max_restarts: int) -> None:
        self.max_restarts = max_restarts
        self.restarts = 0
        """Restarts so far."""

    def spend(self) -> bool:
        """Count one restart. Returns False, and counts nothing, when none is left."""
        if self.restarts >= self.max_restarts:
            return False
        self.restarts += 1
        return True

    def __str__(self) -> str:
        """`restart 1 of at most 3`"""
        return f"restart {self.restarts} of at most {self.max_restarts}"


def process_pool(
    workers: int, key: str, start: Callable[..., object] | None = None, arguments: tuple[Any, ...] = ()
) -> ProcessPoolExecutor:
    """A pool whose processes call `start` first. Raises PlacementError where this machine has no semaphores for them;
    `key` is the field with the number of workers."""
    try:
        return ProcessPoolExecutor(workers, get_context("spawn"), start, arguments)
    except (OSError, ImportError) as error:  # the latter: Python was built without them
        raise PlacementError(
            f"{key}: processes need semaphores, which this machine does not give ({error}). Mount a tmpfs at /dev/shm "
            f"that this user may write, or write {key}: 1."
        ) from error
