"""A user's code that is not `async`, run beside the event loop; it cannot hold the run up."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import inspect
import threading
from collections.abc import Callable
from typing import Any


class Abandoned(BaseException):
    """Raised inside a thread that nobody waits for any more."""


class Exited(RuntimeError):
    """The code tried to end the process."""


async def call(function: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Await a coroutine function; run any other in a thread of its own."""
    if is_async(function):
        return await function(*args, **named)
    return await in_thread(function, *args, **named)


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it gives something to await: functions, methods, partials and callable objects."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004  (it is inspected, not called)
    )


async def in_thread(function: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """What the function returns or raises. When the wait is cancelled the thread is told to end.

    A thread cannot be killed: one that is in the middle of a call into C goes on until that returns. It
    is a daemon, so the process does not wait for it.
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
        except Abandoned:
            return
        except BaseException as error:  # noqa: BLE001  (a user's code may raise anything)
            raised = error
        with contextlib.suppress(RuntimeError):  # the loop has ended without it
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
    raise Exited(f"{type(error).__name__}: {error}").with_traceback(error.__traceback__) from None


def _abandon(thread: threading.Thread) -> None:
    if thread.ident is not None and thread.is_alive():
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Abandoned))
