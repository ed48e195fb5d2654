"""Threads: an event loop in a thread of its own, and a pool whose threads do not keep the process alive."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import closing
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")
log = logging.getLogger("strop.workers")

_CLOSE_SECONDS = 10.0
"""Time in which cancelled coroutines end."""
_BLOCKED_SECONDS = 20.0
"""Time after which a loop that has not answered counts as blocked, longer than that of its coroutines."""


class EventLoopThread:
    """Runs coroutines in one event loop until it is closed. The thread starts with the first coroutine."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine; for any other thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._running())

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and return its result; for any other thread."""
        return self.submit(coroutine).result()

    def call(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function in the loop's thread, between two steps of the loop, and return its result."""

        async def called() -> T:
            return function(*args)

        return self.run(called())

    async def run_async(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine for another event loop. Canceling the caller cancels the coroutine."""
        return await asyncio.wrap_future(self.submit(coroutine))

    def close(self) -> None:
        """Cancel all running coroutines, and end the thread.

        A coroutine that does not end, or blocks the loop, is abandoned after a time with a warning; it ends with the
        process.
        """
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None:
            return
        cancelled = asyncio.run_coroutine_threadsafe(_cancel_others(), loop)
        try:
            remaining = cancelled.result(_BLOCKED_SECONDS)
        except TimeoutError:
            log.warning("A call blocks the event loop %r; its thread is abandoned.", self._name)
            return
        for name in remaining:
            log.warning(
                "%s ignores its cancellation in the event loop %r; it is abandoned.", name, self._name
            )
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        if not remaining:
            loop.close()

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name=self._name, daemon=True)
                self._thread.start()
            return self._loop


def run_coroutine(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine and return its result, also in a thread whose own event loop runs, such as Jupyter's."""
    with closing(EventLoopThread("coroutine")) as event_loop:
        return event_loop.run(coroutine)


async def gather_or_cancel(coroutines: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Results of coroutines that run concurrently. If one raises, the others are cancelled first."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def _cancel_others() -> list[str]:
    """Cancel all other tasks and close asynchronous generators; returns the names of tasks that have not ended."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    remaining = (await asyncio.wait(others, timeout=_CLOSE_SECONDS))[1] if others else ()
    if not remaining:
        await asyncio.get_running_loop().shutdown_asyncgens()
    return [getattr(task.get_coro(), "__qualname__", task.get_name()) for task in remaining]


class LoopResults:
    """Gives results of other threads to futures of event loops.

    Those that come before a loop has taken the last ones wake it once. A wake-up for each would cost a system call and
    hand the interpreter from thread to thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._untaken: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}

    def put(self, future: asyncio.Future[T], result: T | BaseException) -> None:
        """Resolve a future in its own loop, unless it is done or the loop has been closed; any thread may call."""
        loop = future.get_loop()
        with self._lock:
            untaken = self._untaken.setdefault(loop, [])
            untaken.append((future, result))
            if len(untaken) > 1:
                return
        try:
            loop.call_soon_threadsafe(self._take, loop)
        except RuntimeError:  # the loop has been closed
            self._untaken.pop(loop, None)

    def wrap(self, source: Future[T]) -> asyncio.Future[T]:
        """A future of the running loop with the result of `source`, which is cancelled with it."""
        wrapped: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def put(done: Future[T]) -> None:
            if not done.cancelled():
                self.put(wrapped, done.exception() or done.result())

        source.add_done_callback(put)
        wrapped.add_done_callback(lambda done: done.cancelled() and source.cancel())
        return wrapped

    def _take(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            taken = self._untaken.pop(loop, [])
        for future, result in taken:
            if future.done():
                continue
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)


class DaemonThreadPool:
    """Runs calls in at most `size` threads, for calls that wait for another machine.

    Python joins the threads of its own `ThreadPoolExecutor` at exit, however long their calls take.
    """

    def __init__(self, size: int, name: str) -> None:
        self._size = size
        self._name = name
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads: list[Thread] = []
        self._is_closed = False

    def submit(self, function: Callable[..., T], *args: Any) -> Future[T]:
        """Queue a call, from one thread at a time. A call whose future is cancelled before its start is skipped."""
        future: Future[T] = Future()

        def call() -> None:
            if self._is_closed:
                future.cancel()
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(function(*args))
            except BaseException as error:  # noqa: BLE001  (`result` raises it)
                future.set_exception(error)

        self._calls.put(call)
        if len(self._threads) < self._size:
            thread = Thread(target=self._work, name=f"{self._name}-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        return future

    def close(self) -> None:
        """Cancel the calls that have not begun, and end each thread after its call, without waiting."""
        self._is_closed = True
        for _ in self._threads:
            self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
