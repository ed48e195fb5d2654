"""Result of reading one damaged input: read, refused with one paragraph, a traceback, or too slow."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, Literal

from strop.errors import StropError
from strop.printable import MAX_MESSAGE, printable

SECONDS = 5.0
"""Maximum CPU time of one input, outside of the kernel, which takes 2 to 10 s to give 2 GB to a hostile template."""
_DEADLINE = 300
"""Seconds of wall time after which an input is given up."""

Result = Literal["read", "refused", "traceback", "too slow"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of reading one input."""

    result: Result
    detail: str
    seconds: float
    """CPU time outside of the kernel."""

    @property
    def is_good(self) -> bool:
        """Whether the input was read, or refused in one paragraph, in time."""
        return self.result in ("read", "refused")


class TooSlowError(BaseException):
    """An input has exceeded its deadline; no `except Exception` catches this."""


def attempt(read: Callable[[], Any]) -> Outcome:
    """Call a function that reads one input."""
    result: Result
    began = os.times().user
    try:
        with _deadline():
            read()
        result, detail = "read", ""
    except StropError as error:
        result, detail = _judge(error)
    except TooSlowError:
        result, detail = "too slow", f"more than {_DEADLINE} s of wall time"
    except Exception as error:  # noqa: BLE001  (the fuzz looks for them)
        result, detail = (
            "traceback",
            f"{type(error).__name__}: {printable(str(error))[:200]} ({_place(error)})",
        )
    seconds = os.times().user - began
    if seconds > SECONDS and result in ("read", "refused"):
        result, detail = "too slow", f"{seconds:.1f} s"
    return Outcome(result, detail, seconds)


def _judge(error: StropError) -> tuple[Result, str]:
    """A message is one paragraph without control characters; another one counts as a traceback."""
    text = str(error)
    longest = max(map(len, text.splitlines()), default=0)
    if not text.strip() or "\n\n" in text or longest > MAX_MESSAGE + 2 or printable(text) != text:
        return "traceback", f"bad message: {text[:200]!r}"
    return "refused", text


def _place(error: Exception) -> str:
    """Strop's innermost line of a traceback."""
    trace, found = error.__traceback__, ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if "/strop/" in file and "/tests/" not in file:
            found = f"strop/{file.rpartition('/strop/')[2]}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


@contextmanager
def _deadline() -> Iterator[None]:
    def give_up(number: int, frame: FrameType | None) -> None:
        raise TooSlowError

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(_DEADLINE)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
