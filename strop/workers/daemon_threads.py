"""Thread pool whose threads are daemons: a process that ends does not wait for their calls."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")


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
