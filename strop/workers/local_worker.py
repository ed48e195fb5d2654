"""Workers that are processes of this machine, as the parent sees them."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from strop.errors import WorkerDiedError
from strop.workers.child_process import describe_exit, start_module
from strop.workers.silence import SilenceClock
from strop.workers.worker import WorkerTarget, last_lines

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
        """See `Worker`."""
        self.send_bytes(pickle.dumps(message))

    def send_bytes(self, message: bytes) -> None:
        """Send a message that is pickled already. Raises WorkerDiedError if the process has ended."""
        try:
            self._connection.send_bytes(message)
        except ConnectionError:
            raise self._died() from None

    def receive(self) -> Any:
        """See `Worker`."""
        return pickle.loads(self.receive_bytes())

    def receive_bytes(self) -> bytes:
        """The next message, pickled. Raises WorkerDiedError after the last message of an ended process."""
        try:
            return bytes(self._connection.recv_bytes())
        except (EOFError, ConnectionError):
            raise self._died() from None

    def poll(self, seconds: float) -> bool:
        """See `Worker`."""
        return self._connection.poll(seconds)

    def silent_seconds(self) -> float:
        """See `Worker`."""
        if self._process.poll() is not None:
            raise self._died()
        return self._silence.look(heard=bool(self._heartbeats.read(_PIPE_BYTES)))

    def kill(self) -> None:
        """See `Worker`. Ends the processes that it started, too.

        The pipe stays open until this object is deleted: another thread may still wait in `receive`, and gets
        WorkerDiedError there.
        """
        self._end_group()
        self._process.wait()

    def last_output(self) -> str:
        """See `Worker`."""
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
