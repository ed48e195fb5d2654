"""Threads for user code without `async`, so that it does not block the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import inspect
import threading
from collections.abc import Callable
from typing import Any


class WorkflowCancelled(BaseException):
    """Raised inside a workflow's thread whose rollout was cancelled."""


class WorkflowExitError(RuntimeError):
    """User code tried to exit the process."""


async def call_sync_or_async(function: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Await a coroutine function; run any other function in a new thread."""
    if is_async(function):
        return await function(*args, **named)
    return await run_in_thread(function, *args, **named)


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a function, method, partial or callable object returns an awaitable."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004  (inspected, not called)
    )


async def run_in_thread(function: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Run a function in a new thread; returns or raises what it does. Cancellation asks the thread to end.

    A thread cannot be killed: a running call into C continues until it returns. The thread is a daemon, so the
    process does not wait for it at exit.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

    def deliver(result: Any, error: BaseException | None) -> None:
        if not done.done():
            done.set_result((result, error))

    def work() -> None:
        result, raised = None, None
        try:
            result = function(*args, **named)
        except WorkflowCancelled:
            return
        except BaseException as error:  # noqa: BLE001  (user code may raise anything)
            raised = error
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            loop.call_soon_threadsafe(deliver, result, raised)

    thread = threading.Thread(target=work, name=getattr(function, "__name__", "workflow"), daemon=True)
    thread.start()
    try:
        result, error = await done
    except asyncio.CancelledError:
        _abandon(thread)
        raise
    if error is None:
        return result
    if isinstance(error, Exception):
        raise error
    raise WorkflowExitError(f"{type(error).__name__}: {error}").with_traceback(error.__traceback__) from None


def _abandon(thread: threading.Thread) -> None:
    if thread.ident is not None and thread.is_alive():
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread.ident), ctypes.py_object(WorkflowCancelled)
        )
