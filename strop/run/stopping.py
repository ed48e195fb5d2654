"""SIGINT and SIGTERM ask a run to save its state and stop."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, ClassVar

from strop.errors import Interrupted

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignal:
    """Remembers that a signal came; a second one of the same kind ends the process at once.

    Outside the main thread Python gives no signals: there only `ask` asks for a stop.
    """

    _asked: ClassVar[int | None] = None

    def __init__(self) -> None:
        self._received: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        self._received = number
        signal.signal(number, self._before[number])

    @classmethod
    def ask(cls, number: int) -> None:
        """Ask all of this process as the signal would, where signals are somebody else's."""
        cls._asked = number

    @property
    def received(self) -> int | None:
        """The signal's number, once one came."""
        return self._received if self._received is not None else self._asked

    def check(self) -> None:
        """Raises `Interrupted` once a signal came."""
        if self.received is not None:
            name = signal.Signals(self.received).name
            raise Interrupted(f"Stopped by {name}.", self.received)
