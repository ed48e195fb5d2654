"""Roles of a distributed run: input of a process, its process on this machine, and its restarts after a kill."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO, Literal, Protocol

import cloudpickle

from strop.config.load.loader import LoadedRun
from strop.errors import RankLostError, StropError
from strop.python_rewards import PythonRewards
from strop.workers.child_process import ErrorReport, RestartBudget, describe_exit, start_module
from strop.workers.worker import WorkerTarget

RoleName = Literal["buffer", "explorer", "trainer"]


@dataclass(frozen=True, slots=True)
class RoleSpec:
    """The input of a role's process."""

    name: RoleName
    loaded: LoadedRun
    reward: PythonRewards | None
    """The reward function that was passed to `strop.train`; None if the run file names it."""
    argv: list[str]
    """The command line of the launcher."""


@dataclass(frozen=True, slots=True)
class RoleEntry:
    """The code that runs a role in its own process."""

    module: str
    """Main module of a local process: reads a `RoleSpec` from stdin."""
    imports: Sequence[str]
    """Modules of the roles, which are imported once for all local processes."""
    serve: WorkerTarget
    """Target of a Ray actor: receives a `RayRoleSpec`."""


@dataclass(frozen=True, slots=True)
class RoleExit:
    """The result of a role's process: success, or the error that ended it."""

    error: str | None = None
    """One paragraph that says what ended it; None after success."""
    exit_code: int = 0
    was_killed: bool = False
    """Whether it was killed from outside, so that a restart can succeed."""

    @property
    def is_restartable(self) -> bool:
        """Whether a restart from the last saved state can succeed."""
        return self.was_killed or self.exit_code == RankLostError.exit_code


class RoleProcess(Protocol):
    """One running process of a role, as the launcher sees it."""

    def poll(self) -> RoleExit | None:
        """The result of the process; None while it runs."""
        ...

    def request_stop(self) -> None:
        """Ask the process to save its state and end."""
        ...

    def wait(self) -> RoleExit:
        """Wait until the process has ended and its output is printed."""
        ...


def print_line(role: str, line: str) -> None:
    """Print one line on the console, after the role's name."""
    print(f"{role:8} | {line}", flush=True)


_OUTPUT_GRACE_SECONDS = 5.0
"""Longest wait for the rest of an ended process's output, which one of its own children may keep open."""


class LocalRoleProcess:
    """A `RoleProcess` of this machine. Its output is printed line by line, by a thread."""

    def __init__(self, spec: RoleSpec, entry: RoleEntry, inherited: Sequence[int] = ()) -> None:
        """Start the entry's module, which reads the spec from stdin and inherits the file descriptors `inherited`."""
        self._name = spec.name
        self._report = ErrorReport()
        descriptor = self._report.fileno()
        self._process = start_module(
            entry.module,
            str(descriptor),
            spec.name,
            imports=entry.imports,
            has_children=spec.name != "buffer",
            pass_fds=[descriptor, *inherited],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended already, which `poll` reports
            self._process.stdin.write(cloudpickle.dumps(spec))
            self._process.stdin.flush()  # stdin stays open: its end tells the process that the launcher ended
        self._output_thread = threading.Thread(
            target=_forward_output, args=(self._name, self._process.stdout), daemon=True
        )
        self._output_thread.start()

    def poll(self) -> RoleExit | None:
        """See `RoleProcess`."""
        return None if self._process.poll() is None else self.wait()

    def request_stop(self) -> None:
        """See `RoleProcess`."""
        if self._process.poll() is None:
            self._process.terminate()
            self._process.send_signal(signal.SIGCONT)  # a stopped process handles no signal before

    def wait(self) -> RoleExit:
        """See `RoleProcess`."""
        code = self._process.wait()
        self._output_thread.join(_OUTPUT_GRACE_SECONDS)
        if code == 0:
            return RoleExit()
        error = self._report.read()
        if code > 0:
            text = f"The {self._name} ended {describe_exit(code)}; its output is printed above."
            return RoleExit(error or text, code)
        return RoleExit(f"The {self._name} ended {describe_exit(code)}.", 128 - code, was_killed=True)


def _forward_output(name: str, output: IO[bytes]) -> None:
    for line in output:
        print_line(name, line.decode(errors="replace").rstrip("\n"))


class RoleSupervisor:
    """Starts the process of a role, watches it, and starts another one when it was killed."""

    def __init__(self, name: RoleName, start: Callable[[], RoleProcess], max_restarts: int) -> None:
        self.name = name
        self._start = start
        self._budget = RestartBudget(max_restarts)
        self._exit: RoleExit | None = None
        """The result of the last process; None while it runs."""
        self._process = start()

    @property
    def is_done(self) -> bool:
        """Whether the role has finished its work."""
        return self._exit is not None and self._exit.error is None

    def check(self) -> None:
        """Restart the process if it was killed. Raises the error that ended it, if a restart cannot help."""
        while self._exit is None:
            ended = self._process.poll()
            if ended is None:
                return
            if ended.error is None or not ended.is_restartable or not self._budget.spend():
                self._exit = ended
                break
            print_line("run", f"{ended.error} It is restarted from its last saved state ({self._budget}).")
            self._process = self._start()
        if self._exit.error is not None:
            raise self._error(self._exit)

    def request_stop(self) -> None:
        """Ask the process to save its state and end; it is not restarted afterwards."""
        if self._exit is None:
            self._process.request_stop()

    def wait(self) -> None:
        """Wait until the process has ended and its output is printed."""
        if self._exit is None:
            self._exit = self._process.wait()

    def _error(self, ended: RoleExit) -> StropError:
        text = str(ended.error)
        if ended.is_restartable:
            restarts = self._budget.restarts
            text += f" It had been restarted {restarts} times, which is synchronizer.max_restarts."
        error = StropError(text)
        error.exit_code = ended.exit_code
        return error
