"""Executor whose calls are tasks of a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future
from types import ModuleType
from typing import Any, TypeVar

T = TypeVar("T")
_RETRIES = 3
"""Repetitions of a task whose process or node is lost."""


class RayExecutor(Executor):
    """Runs functions on any node of the cluster that this process belongs to, each on one CPU."""

    def __init__(self, ray: ModuleType) -> None:
        self._ray = ray
        self._pending: set[Any] = set()

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Start a task. Its future raises `BrokenExecutor` for one that fails or is lost."""
        reference = self._ray.remote(fn).options(num_cpus=1, max_retries=_RETRIES).remote(*args, **kwargs)
        self._pending.add(reference)
        result: Future[T] = Future()

        def finish(found: Future[T]) -> None:
            self._pending.discard(reference)
            error = found.exception()
            if error is None:
                result.set_result(found.result())
            else:
                result.set_exception(BrokenExecutor(str(error).strip().splitlines()[-1]))

        reference.future().add_done_callback(finish)
        return result

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Cancel the tasks that have no result."""
        for reference in list(self._pending):
            self._ray.cancel(reference, force=True)
