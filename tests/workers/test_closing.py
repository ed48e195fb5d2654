"""Threads and event loops end, or are abandoned, in a limited time."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import CancelledError

import pytest

from strop.workers import threads
from strop.workers.child_process import child_environment
from strop.workers.threads import DaemonThreadPool, EventLoopThread

EXITS = """
import time
from strop.workers.threads import DaemonThreadPool

pool = DaemonThreadPool(2, "waiting")
for seconds in (600, 600, 600):
    pool.submit(time.sleep, seconds)
pool.close()
"""


def test_a_process_does_not_wait_for_calls_of_daemon_threads() -> None:
    subprocess.run([sys.executable, "-c", EXITS], env=child_environment(), timeout=600, check=True)


def test_a_closed_pool_cancels_the_calls_that_have_not_begun() -> None:
    pool, begun, go_on = DaemonThreadPool(1, "test"), threading.Event(), threading.Event()

    def wait() -> str:
        begun.set()
        go_on.wait(600)
        return "done"

    running, queued = pool.submit(wait), pool.submit(wait)
    assert begun.wait(600)
    pool.close()
    go_on.set()
    assert running.result(600) == "done"
    with pytest.raises(CancelledError):
        queued.result(600)


def test_an_error_of_a_call_is_raised_by_its_future() -> None:
    pool = DaemonThreadPool(1, "test")
    with pytest.raises(ZeroDivisionError):
        pool.submit(lambda: 1 // 0).result(600)
    assert pool.submit(lambda: 2).result(600) == 2
    pool.close()


def test_a_coroutine_that_ignores_its_cancellation_is_abandoned(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(threads, "_CLOSE_SECONDS", 0.1)
    monkeypatch.setattr(threads, "_BLOCKED_SECONDS", 600.0)
    loop, begun = EventLoopThread("rollouts"), threading.Event()

    async def stubborn() -> None:
        begun.set()
        while True:
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                continue

    loop.submit(stubborn())
    assert begun.wait(600)
    loop.close()
    assert "stubborn ignores its cancellation in the event loop 'rollouts'" in caplog.text


def test_a_blocked_event_loop_is_abandoned(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(threads, "_BLOCKED_SECONDS", 0.1)
    loop, begun, go_on = EventLoopThread("rollouts"), threading.Event(), threading.Event()

    async def blocking() -> None:
        begun.set()
        go_on.wait(600)

    loop.submit(blocking())
    assert begun.wait(600)
    loop.close()
    go_on.set()
    assert "A call blocks the event loop 'rollouts'; its thread is abandoned." in caplog.text
