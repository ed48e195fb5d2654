"""A worker that is a process of this machine.

A fresh interpreter: a fork would not survive torch's threads, and a `multiprocessing` child would run the
user's script a second time. What it unpickles comes from the process that started it alone.
"""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
from multiprocessing.connection import Connection, Pipe
from typing import Any

from strop.errors import WorkerDied
from strop.interpreter import child_environment
from strop.workers.worker import Serve


class LocalWorker:
    """A `Worker` at the other end of a pipe."""

    def __init__(self, name: str, serve: Serve) -> None:
        self.name = name
        self._connection: Connection[Any, Any]
        self._connection, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "strop.workers.local", str(theirs.fileno()), name],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=child_environment(),
                start_new_session=True,  # so Ctrl-C is this process's alone
            )
        self.pid = self._process.pid
        self.send(serve)

    def send(self, message: object) -> None:
        """Raises WorkerDied where nobody is there any more."""
        try:
            self._connection.send_bytes(pickle.dumps(message))
        except ConnectionError:
            raise self._died() from None

    def receive(self) -> Any:
        """Its next message. Raises WorkerDied once it has ended and nothing more comes."""
        try:
            return pickle.loads(self._connection.recv_bytes())
        except (EOFError, ConnectionError):
            raise self._died() from None

    def poll(self, seconds: float) -> bool:
        """Whether `receive` has something to give or to raise, within this time."""
        return self._connection.poll(seconds)

    def check(self) -> None:
        """Raises WorkerDied where it has ended."""
        if self._process.poll() is not None:
            raise self._died()

    def end(self) -> None:
        """Kill it. A thread that waits in `receive` hears of it, so the pipe goes with this object."""
        self._process.kill()
        self._process.wait()

    def _died(self) -> WorkerDied:
        code = self._process.wait()
        how = f"by signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"with exit code {code}"
        return WorkerDied(self.name, how, killed=code < 0)


class _Pipe:
    """A `Channel`: the worker's end."""

    def __init__(self, connection: Connection[bytes, bytes]) -> None:
        self._connection = connection

    def receive(self) -> Any:
        try:
            return pickle.loads(self._connection.recv_bytes())
        except ConnectionError:
            raise EOFError from None

    def send(self, message: object) -> None:
        self._connection.send_bytes(pickle.dumps(message))


def main() -> None:
    """Serve at the pipe `argv[1]`, until nobody is there; `argv[2]` is for whoever lists processes."""
    channel = _Pipe(Connection(int(sys.argv[1])))
    try:
        channel.receive()(channel)
    except (EOFError, ConnectionError):
        return


if __name__ == "__main__":
    main()
