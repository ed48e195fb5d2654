"""Protocols of a worker process: as its parent sees it, and the worker's own channel to the parent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol


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
