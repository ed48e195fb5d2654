"""Parent side of one reward worker: start the process, send to it, end it, and describe why it died."""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import re
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from strop.errors import RewardError
from strop.rewards.execution.function_spec import RewardFunctionSpec
from strop.rewards.execution.worker import WorkerSettings
from strop.workers.child_process import ErrorReport, ProcessLimits, describe_exit, spawn_module

_FRAMES_SHOWN = 3
_FRAME = re.compile(r'^  File "(?P<file>.+)", line \d+ in .+$', re.MULTILINE)
_INTERNAL_FILES = tuple(str(Path(__file__).with_name(f"{name}.py")) for name in ("signature", "worker"))
_STOP_SECONDS = 5.0
"""Time in which the supervisor kills the worker's descendants, after which it is killed itself."""


@dataclass(frozen=True, slots=True)
class WorkerIsolation:
    """Resources and environment variables of a reward worker."""

    limits: ProcessLimits
    environment: tuple[str, ...]
    """Patterns of the environment variables that the worker inherits."""


@dataclass(frozen=True, slots=True)
class WorkerDeath:
    """Why a worker process died."""

    cause: str
    timed_out: bool
    """Whether a function exceeded its time limit."""


class RewardWorkerProcess:
    """A worker process that calls `functions`, each call under a limit of `timeout_seconds`.

    The process that is started supervises the worker: when the worker ends, it kills all processes that the
    worker has started. Until then they may hold the worker's end of the pipe, so the pipe closes with them.
    """

    def __init__(
        self, functions: Sequence[RewardFunctionSpec], timeout_seconds: float, isolation: WorkerIsolation
    ) -> None:
        self.connection: Connection[Any, Any]
        self.connection, child_end = Pipe()
        self._timeout_seconds = timeout_seconds
        self._fault_report = ErrorReport()
        inherited = (child_end.fileno(), self._fault_report.fileno())
        with child_end:
            self._process = spawn_module(
                "strop.rewards.execution.worker_main",
                *map(str, inherited),
                pass_fds=inherited,
                inherited_environment=isolation.environment,
                # one thread per worker, and the same iteration order of sets in every run
                environment={"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"},
            )
        self.send(WorkerSettings(tuple(functions), timeout_seconds, isolation.limits))

    def send(self, message: object) -> bool:
        """Returns False if the worker is dead. Raises RewardError for a message that cannot be pickled."""
        try:
            self.connection.send(message)
        except ConnectionError:
            return False
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise RewardError(
                f"A column of the tasks cannot be sent to the reward worker processes: {error}. "
                "Remove the column from the dataset, or store it as plain data."
            ) from error
        return True

    def kill(self) -> None:
        """Have the supervisor kill the worker and all processes that it started; any thread may call."""
        # Until the process is waited for, its id cannot be reused.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self._process.pid, signal.SIGTERM)

    def end(self) -> WorkerDeath:
        """Kill the worker and close its connection; returns why it had died or hung before."""
        if self.connection.closed:
            return WorkerDeath("", timed_out=False)
        self.kill()
        try:
            code = self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            code = self._process.wait()
        self.connection.close()
        faults = self._fault_report.read()
        self._fault_report.close()
        cause = _cause_of_death(code, faults, self._timeout_seconds)
        return WorkerDeath(cause, timed_out=_is_timeout(faults))


def _is_timeout(faults: str) -> bool:
    return faults.startswith("Timeout")


def _cause_of_death(code: int, faults: str, timeout_seconds: float) -> str:
    # `faults` is faulthandler's output; with several threads, the main thread, which calls rewards, is last.
    frames = _FRAME.finditer(faults.rpartition("Thread 0x")[2])
    user_frames = itertools.takewhile(lambda frame: frame["file"] not in _INTERNAL_FILES, frames)
    where = "".join(f"\n{frame[0]}" for frame in itertools.islice(user_frames, _FRAMES_SHOWN))
    if _is_timeout(faults):
        return f"took longer than {timeout_seconds:g} s and was stopped, at{where}"
    if code < 0:
        return f"ended its process {describe_exit(code)}{', at' if where else ''}{where}"
    return f"ended its process {describe_exit(code)}"
