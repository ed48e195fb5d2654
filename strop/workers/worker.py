"""What a worker is, seen from the process that started it and from inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Channel(Protocol):
    """A worker's way to the process that started it."""

    def receive(self) -> Any:
        """The next message. Raises EOFError once nobody is there to send one."""
        ...

    def send(self, message: object) -> None:
        """Any object that can be pickled. Raises ConnectionError once nobody is there to receive it."""
        ...


Serve = Callable[[Channel], None]
"""All that a worker does. Importable, so that it can be sent; the worker ends when it returns."""


class Worker(Protocol):
    """A process of its own, that is there for the one that started it and ends with it.

    Messages arrive in the order in which they were sent. One thread at a time may send, and one receive.
    """

    name: str

    def send(self, message: object) -> None:
        """Any object that can be pickled. Raises WorkerDied where nobody is there any more."""
        ...

    def receive(self) -> Any:
        """Its next message, waited for. Raises WorkerDied once it has ended and nothing more comes."""
        ...

    def poll(self, seconds: float) -> bool:
        """Whether `receive` has something to give or to raise, within this time."""
        ...

    def check(self) -> None:
        """Raises WorkerDied where it has ended; any thread may ask."""
        ...

    def end(self) -> None:
        """Kill it, whatever it is doing."""
        ...
