"""Pool of worker processes that call reward functions in parallel; a failure affects one response only."""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import re
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

from strop.errors import RewardError
from strop.rewards.execution.function_spec import RewardFunctionSpec
from strop.rewards.execution.signature import RewardInput, RewardParts, RewardValue
from strop.rewards.execution.worker import RewardOutcome, WorkerSettings
from strop.rewards.graders import LimitExceeded
from strop.workers.child_process import ErrorReport, ProcessLimits, describe_exit, spawn_module

START_SECONDS = 300.0
"""Time limit for a worker to load its functions; a user's file may have slow imports."""
GRACE_SECONDS = 5.0
"""A worker ends itself at the time limit; one that could not (a stopped process, say) is killed after this."""
_LARGEST_CHUNK = 64
_GATHER_SECONDS = 0.001
"""Time in which further outcomes of a chunk arrive, so that those of quick functions do not wake this process and its
event loops one by one."""
_MAX_WORKER_LOSSES = 10
"""Maximum number of workers in a row that die between two responses, killed from outside."""
FunctionScores = tuple[RewardValue, ...]
"""Value of each function for one response, in the order of the functions."""
_FRAMES_SHOWN = 3
_FRAME = re.compile(r'^  File "(?P<file>.+)", line \d+ in .+$', re.MULTILINE)
_STOP_SECONDS = 5.0
"""Time in which the supervisor kills the worker's descendants, after which it is killed itself."""


@dataclass(frozen=True, slots=True)
class ScoringFailure:
    """Why one response has no score, and which function failed."""

    function: str
    message: str


JobResult = FunctionScores | ScoringFailure
"""Scores of one response, or why it has none."""


class RewardWorkerPool:
    """Calls all functions on each submitted response.

    Workers start with the first response and are replaced when they die. Any thread may call `submit`; one
    thread of the pool talks to the workers.
    """

    def __init__(
        self,
        functions: Sequence[RewardFunctionSpec],
        *,
        workers: int,
        timeout_seconds: float,
        isolation: WorkerIsolation,
    ) -> None:
        self._functions = tuple(functions)
        self._size = workers
        self._timeout_seconds = timeout_seconds
        self._isolation = isolation
        self._lock = threading.Lock()
        self._submitted: deque[_Job] = deque()
        self._waiting: deque[_Job] = deque()
        self._workers: list[_Worker] = []
        self._losses = 0
        self._closed = False
        self._thread: threading.Thread | None = None
        self._wake_receiver: Connection[object, object]
        self._wake_receiver, self._wake_sender = Pipe(duplex=False)

    def submit(self, response: RewardInput) -> Future[JobResult]:
        """Queue one response. A function that raises, hangs or ends its process gives a `ScoringFailure`.

        A function with `on_timeout="zero"` that exceeds the time limit gives a zero `LimitExceeded`, and the
        functions after it are still called.

        The future raises RewardError if the workers cannot load the functions or receive the response. A
        future that is cancelled before a worker has the response costs nothing.
        """
        job = _Job(response)
        with self._lock:
            if self._closed:
                raise RewardError("The reward worker pool is closed; no response can be scored.")
            self._submitted.append(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="reward pool", daemon=True)
                self._thread.start()
            if len(self._submitted) == 1:
                self._wake_sender.send_bytes(b"\0")
        return job.future

    def close(self) -> None:
        """Kill all workers and all processes that they started."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._wake_sender.send_bytes(b"\0")
        if self._thread is not None:
            for worker in tuple(self._workers):
                worker.process.kill()  # a send to a worker that hangs returns now
            self._thread.join()
        self._wake_sender.close()
        self._wake_receiver.close()

    def _run(self) -> None:
        """Body of the pool's thread."""
        while True:
            with self._lock:
                self._waiting.extend(self._submitted)
                self._submitted.clear()
                closed = self._closed
            if closed:
                break
            try:
                self._hire()
                for worker in tuple(self._workers):
                    if worker.is_ready and not worker.chunk and self._waiting:
                        self._give(worker)
                self._listen()
            except Exception as error:  # noqa: BLE001  (every caller that waits gets it)
                self._end_workers(error)
        self._end_workers(RewardError("The run ended before this response was scored."))

    def _end_workers(self, error: Exception) -> None:
        """End all workers at once; every response without a score gets the error."""
        unfinished = [*self._waiting, *(job for worker in self._workers for job in worker.chunk)]
        for worker in self._workers:
            worker.process.end()
        self._workers, self._losses = [], 0
        self._waiting.clear()
        for job in unfinished:
            if job.start():
                job.future.set_exception(error)

    def _hire(self) -> None:
        unoccupied = sum(not worker.chunk for worker in self._workers)
        for _ in range(min(self._size - len(self._workers), len(self._waiting) - unoccupied)):
            process = RewardWorkerProcess(self._functions, self._timeout_seconds, self._isolation)
            self._workers.append(_Worker(process, time.monotonic() + START_SECONDS))

    def _give(self, worker: _Worker) -> None:
        """Chunks shrink as the queue does, so that all workers finish at about the same time."""
        size = min(_LARGEST_CHUNK, -(-len(self._waiting) // (2 * self._size)))
        jobs = [self._waiting.popleft() for _ in range(size)]
        chunk = [job for job in jobs if job.start()]  # without the cancelled ones
        if not chunk:
            return
        worker.chunk.extend(chunk)
        worker.is_ready = False
        self._extend_deadline(worker)
        if not worker.process.send([(job.response, len(job.scores)) for job in chunk]):
            self._replace(worker)

    def _listen(self) -> None:
        """Wait for a message of a busy worker, the next deadline, or a new response."""
        busy = [worker for worker in self._workers if worker.chunk or not worker.is_ready]
        patience = None
        if busy:
            patience = max(0.0, min(worker.deadline for worker in busy) - time.monotonic())
        elif self._waiting:
            patience = 0.0
        readable = wait([self._wake_receiver, *(worker.process.connection for worker in busy)], patience)
        if self._wake_receiver in readable:
            self._wake_receiver.recv_bytes()
        for worker in busy:
            if worker.process.connection in readable:
                self._receive(worker)
            elif time.monotonic() > worker.deadline:
                self._replace(worker, is_late=True)

    def _receive(self, worker: _Worker) -> None:
        """Handle the messages that a worker has sent."""
        if len(worker.chunk) > 1:
            time.sleep(_GATHER_SECONDS)
        completed: list[tuple[_Job, JobResult]] = []
        has_ended = False
        try:
            self._handle(worker, worker.process.connection.recv(), completed)
            while worker.chunk and worker.process.connection.poll():
                self._handle(worker, worker.process.connection.recv(), completed)
        except (EOFError, ConnectionError):
            has_ended = True
        finally:
            for job, result in completed:
                job.future.set_result(result)
        if has_ended:
            self._replace(worker)

    def _handle(self, worker: _Worker, message: Any, completed: list[tuple[_Job, JobResult]]) -> None:
        self._extend_deadline(worker)
        if worker.is_ready:
            self._losses = 0
            job = worker.chunk[0]
            if (result := self._result(job, message)) is not None:
                completed.append((job, result))
                worker.chunk.popleft()
        elif message is None:
            worker.is_ready = worker.has_loaded = True
        else:
            raise RewardError(message)

    def _result(self, job: _Job, outcome: RewardOutcome) -> JobResult | None:
        """The job's result after the outcome of its next function; None if there is a function to call after it."""
        if isinstance(outcome, str):
            return ScoringFailure(self._functions[len(job.scores)].name, outcome)
        job.scores.append(outcome)
        return tuple(job.scores) if len(job.scores) == len(self._functions) else None

    def _replace(self, worker: _Worker, *, is_late: bool = False) -> None:
        """Only the response that was being scored is affected; the rest of the chunk goes to other workers.

        `is_late` says that the worker has missed its deadline; any other one has ended by itself, whatever the time.
        """
        limit = self._timeout_seconds if worker.has_loaded else START_SECONDS
        self._workers.remove(worker)
        death = worker.process.end()
        if is_late and not death.timed_out:
            death = WorkerDeath(f"took longer than {limit:g} s and was killed", timed_out=True)
        remaining, worker.chunk = worker.chunk, deque()
        self._waiting.extendleft(reversed(remaining))
        if not worker.has_loaded:
            names = ", ".join(function.name for function in self._functions)
            raise RewardError(f"The reward worker process, while it loaded {names}, {death.cause}.")
        if worker.is_ready:
            self._end_call(self._waiting[0], death)
        else:  # it was killed before it began: not the fault of any response
            self._losses += 1
            if self._losses > _MAX_WORKER_LOSSES:
                raise RewardError(
                    f"{self._losses} reward worker processes died between two responses; the last one {death.cause}."
                )

    def _end_call(self, job: _Job, death: WorkerDeath) -> None:
        """Record the outcome of the call that ended the worker; the job is the first one that waits."""
        function = self._functions[len(job.scores)]
        is_zero = death.timed_out and function.on_timeout == "zero"
        result = self._result(job, (LimitExceeded(0.0), RewardParts()) if is_zero else death.cause)
        if result is not None:
            self._waiting.popleft()
            job.future.set_result(result)

    def _extend_deadline(self, worker: _Worker) -> None:
        worker.deadline = time.monotonic() + self._timeout_seconds + GRACE_SECONDS


@dataclass(eq=False, slots=True)
class _Job:
    """One submitted response."""

    response: RewardInput
    future: Future[JobResult] = field(default_factory=Future)
    scores: list[RewardValue] = field(default_factory=list)
    """Values of the functions that have returned."""
    is_started: bool = False

    def start(self) -> bool:
        """From now on the future cannot be cancelled. Returns False if it was."""
        if not self.is_started:
            self.is_started = self.future.set_running_or_notify_cancel()
        return self.is_started


@dataclass(eq=False, slots=True)
class _Worker:
    """A process and its current work."""

    process: RewardWorkerProcess
    deadline: float
    """Time by which the next message is due."""
    has_loaded: bool = False
    """Whether the process has loaded the functions."""
    is_ready: bool = False
    """Whether the process has confirmed the last message that was sent to it."""
    chunk: deque[_Job] = field(default_factory=deque)
    """Responses that were sent and have no result yet."""


_INTERNAL_FILES = tuple(str(Path(__file__).with_name(f"{name}.py")) for name in ("signature", "worker"))


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
