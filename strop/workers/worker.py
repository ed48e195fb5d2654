"""Protocols of a worker process, and workers that are processes of this machine, as the parent sees them."""

from __future__ import annotations

import os
import pickle
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

from strop.errors import StropError, WorkerDiedError
from strop.workers.child_process import describe_exit, start_module


class Channel(Protocol):
    """The worker's connection to the parent process."""

    def receive(self) -> Any:
        """The next message. Raises EOFError if the parent process has ended."""
        ...

    def send(self, message: object) -> None:
        """Send any object that can be pickled. Raises ConnectionError if the parent process has ended."""
        ...


WorkerTarget = Callable[[Channel], None]
"""The function that a worker runs; the worker ends when it returns. It must be importable, to be sent."""


class Worker(Protocol):
    """A process that was started by this one, and ends with it.

    Messages arrive in the order in which they were sent. One thread at a time may send, and one receive.
    """

    name: str

    def send(self, message: object) -> None:
        """Send any object that can be pickled. Raises WorkerDiedError if the process has ended."""
        ...

    def receive(self) -> Any:
        """Wait for the next message. Raises WorkerDiedError after the last message of an ended process."""
        ...

    def poll(self, seconds: float) -> bool:
        """Wait until `receive` would return or raise at once; False if it still would not after `seconds`."""
        ...

    def silent_seconds(self) -> float:
        """Time since the process last gave a sign of life, which it gives at least once in two seconds.

        Time in which nothing calls this counts for two seconds at most. Any thread may call it. Raises WorkerDiedError
        if the process has ended.
        """
        ...

    def kill(self) -> None:
        """Kill the process, whatever it is doing."""
        ...

    def last_output(self) -> str:
        """The last lines of the process's log file; empty if it has none that this process sees."""
        ...


_TAIL_BYTES, _TAIL_LINES = 16384, 20


def last_lines(file: Path | None) -> str:
    """The last lines of a log file; empty without a file."""
    if file is None or not file.is_file():
        return ""
    with file.open("rb") as opened:
        opened.seek(max(0, file.stat().st_size - _TAIL_BYTES))
        lines = opened.read().decode(errors="replace").splitlines()
    return "\n".join(lines[-_TAIL_LINES:])


_LONGEST_GAP_SECONDS = 2.0
"""Longest time between two looks that counts; a longer one means that this process was suspended."""


class SilenceClock:
    """Adds up the time between looks; a machine that was suspended with both processes has missed nothing."""

    def __init__(self) -> None:
        self._silent_seconds = 0.0
        self._looked = time.monotonic()
        self._lock = Lock()

    def look(self, *, heard: bool) -> float:
        """Seconds since the last look at which something was `heard`. Any thread may call it."""
        with self._lock:
            now = time.monotonic()
            gap = min(now - self._looked, _LONGEST_GAP_SECONDS)
            self._silent_seconds = 0.0 if heard else self._silent_seconds + gap
            self._looked = now
            return self._silent_seconds


_CHILD_MODULE = "strop.workers.local_worker_main"
_PIPE_BYTES = 1 << 20
"""At least the size of a pipe, of which each heartbeat takes one byte."""


class LocalWorker:
    """A `Worker` at the other end of a pipe. Only its parent sends it pickles."""

    def __init__(self, name: str, serve: WorkerTarget, log: Path | None = None) -> None:
        """`log` is the file to which the process appends its output; None is this process's console."""
        self.name = name
        self._log = log
        self._connection: Connection[Any, Any]
        self._connection, child_end = Pipe()
        heartbeats, child_heartbeats = os.pipe()
        os.set_blocking(heartbeats, False)
        self._heartbeats = os.fdopen(heartbeats, "rb", buffering=0)
        self._silence = SilenceClock()
        with child_end, os.fdopen(child_heartbeats, "wb"), _opened(log) as output:
            descriptors = [child_end.fileno(), child_heartbeats]
            self._process = start_module(
                _CHILD_MODULE,
                *map(str, descriptors),
                name,
                imports=_slow_imports(serve),
                pass_fds=descriptors,
                stdout=output,
                stderr=output,
            )
        self.pid = self._process.pid
        self._group_ended = False
        self.send(serve)

    def send(self, message: object) -> None:
        self.send_bytes(pickle.dumps(message))

    def send_bytes(self, message: bytes) -> None:
        """Send a message that is pickled already. Raises WorkerDiedError if the process has ended."""
        try:
            self._connection.send_bytes(message)
        except ConnectionError:
            raise self._died() from None

    def receive(self) -> Any:
        return pickle.loads(self.receive_bytes())

    def receive_bytes(self) -> bytes:
        """The next message, pickled. Raises WorkerDiedError after the last message of an ended process."""
        try:
            return bytes(self._connection.recv_bytes())
        except (EOFError, ConnectionError):
            raise self._died() from None

    def poll(self, seconds: float) -> bool:
        return self._connection.poll(seconds)

    def silent_seconds(self) -> float:
        if self._process.poll() is not None:
            raise self._died()
        return self._silence.look(heard=bool(self._heartbeats.read(_PIPE_BYTES)))

    def kill(self) -> None:
        """End the process, with those that it started.

        The pipe stays open until this object is deleted: another thread may still wait in `receive`, and gets
        WorkerDiedError there.
        """
        self._end_group()
        self._process.wait()

    def last_output(self) -> str:
        return last_lines(self._log)

    def _end_group(self) -> None:
        """Kill the process and all that it started, once: later another group may have its number."""
        if not self._group_ended:
            self._group_ended = True
            with suppress(ProcessLookupError):  # all of them have ended
                os.killpg(self.pid, signal.SIGKILL)

    def _died(self) -> WorkerDiedError:
        code = self._process.wait()
        self._end_group()
        return WorkerDiedError(self.name, describe_exit(code), killed=code < 0)


def _slow_imports(serve: WorkerTarget) -> list[str]:
    """The modules that the fork server imports: the target's, with all that it needs, if it is one of Strop's. The
    server would run the module of a user's target only once for all children."""
    module = serve.__module__
    return [module] if module.startswith("strop.") else []


@contextmanager
def _opened(log: Path | None) -> Iterator[int | None]:
    """Descriptor of a log file, opened to append to it; None without a file."""
    if log is None:
        yield None
        return
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        yield file.fileno()


@dataclass(frozen=True, slots=True)
class RemoteFailure:
    """An exception in another process, in a form that can be sent."""

    message: str
    """The text of a `StropError`; the traceback of any other exception."""
    error_type: type[StropError] | None
    """The class of a `StropError`; None for any other exception."""

    @classmethod
    def from_exception(cls, error: BaseException) -> RemoteFailure:
        """The failure to send for an exception."""
        if isinstance(error, StropError):
            return cls(str(error), type(error))
        return cls("".join(traceback.format_exception(error)), None)

    def to_error(self, sender: str, default: type[StropError]) -> StropError:
        """The exception to raise in this process. An exception that was no `StropError` becomes `default`,
        with the sender's name and the traceback as its text."""
        if self.error_type is None:
            return default(f"{sender} failed:\n{self.message}")
        return self.error_type(self.message)
