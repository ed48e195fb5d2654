"""Handling of SIGINT and SIGTERM: a run saves its state and stops."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, ClassVar

from strop.errors import Interrupted

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignal:
    """Records that a signal arrived; a second signal of the same kind ends the process at once.

    Python delivers signals to the main thread only: in other threads only `request` asks for a stop.
    """

    _requested: ClassVar[int | None] = None

    def __init__(self) -> None:
        self._received: int | None = None
        self._requested_by_code = False
        self._previous_handlers: dict[int, Any] = {}

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                self._previous_handlers[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)
        self._previous_handlers = {}

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        self._received = number
        signal.signal(number, self._previous_handlers[number])

    @classmethod
    def request(cls, number: int) -> None:
        """Ask the whole process to stop as this signal would; for processes whose signals Ray handles."""
        cls._requested = number

    def request_stop(self, number: int | None = None) -> None:
        """Stop this run only; any thread may call. `number` is the signal to report; None reports a call."""
        self._requested_by_code = number is None
        self._received = signal.SIGTERM if number is None else number

    @property
    def requested_by_code(self) -> bool:
        """Whether the stop came from `request_stop` and not from a signal."""
        return self._requested_by_code

    @property
    def reason(self) -> str:
        """`SIGTERM`, for example, or `a call of stop()`."""
        assert self.received is not None
        return "a call of stop()" if self._requested_by_code else signal.Signals(self.received).name

    @property
    def received(self) -> int | None:
        """The number of the signal that arrived or was requested; None before."""
        return self._received if self._received is not None else self._requested

    def check(self) -> None:
        """Raise `Interrupted` if a signal has arrived."""
        if self.received is not None:
            raise Interrupted(f"Stopped by {self.reason}.", self.received)
