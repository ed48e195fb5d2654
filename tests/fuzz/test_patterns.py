"""Every regular expression of the package takes linear time on 100,000 hostile characters, or on the longest text that
its caller gives it."""

from __future__ import annotations

import heapq
import re
import signal
import time
from types import FrameType

import pytest

from tests.fuzz.patterns import Found, HostileText, find_patterns, hostile_texts

LENGTH = 100_000
BOUNDED = {
    # An answer of more than 1,000 characters, or 4 for each of the task's answer beyond, is not read.
    "strop/rewards/mathematics/": 4_000,
}
"""Length of the longest text of the patterns in a folder, where it is not `LENGTH`."""
SLOWEST = 5
CPU_SECONDS = 5
"""Reached by a scan in quadratic time only, which takes a hundred times as long as the slowest of the others."""


class QuadraticError(BaseException):
    """A scan has exceeded `CPU_SECONDS`; no `except Exception` catches this."""


@pytest.fixture(autouse=True)
def limit():
    def give_up(number: int, frame: FrameType | None) -> None:
        raise QuadraticError

    before = signal.signal(signal.SIGPROF, give_up)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, before)


def _scan(found: Found, length: int, seconds: float = CPU_SECONDS) -> None:
    """Scan those texts at their full length that took the longest at a tenth of it."""
    took: dict[HostileText, float] = {}
    for text in hostile_texts(found.pattern):
        began = time.process_time()
        _within(found, text.of(length // 10), seconds)
        took[text] = time.process_time() - began
    for text in heapq.nlargest(SLOWEST, took, key=took.__getitem__):
        _within(found, text.of(length), seconds)


def _within(found: Found, text: str, seconds: float) -> None:
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        found.scan(text)
    except QuadraticError:
        shown = f"{text[:30]!r} ... {text[-5:]!r}, {len(text)} characters"
        pytest.fail(f"{found.place}: {found.pattern.pattern!r} on {shown}")
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


@pytest.mark.slow
def test_every_pattern_takes_linear_time():
    patterns = find_patterns()
    assert len(patterns) > 200
    for found in patterns:
        bounds = [bound for folder, bound in BOUNDED.items() if found.place.startswith(folder)]
        _scan(found, min(bounds, default=LENGTH))


def test_a_quadratic_pattern_is_found():
    quadratic = Found("here", re.compile(r"[a-z]+(?:[._][a-z0-9]+)+"), frozenset({"sub"}))
    with pytest.raises(pytest.fail.Exception, match="here"):
        _scan(quadratic, LENGTH, seconds=0.5)
