"""Pool of new processes of this machine, for work in parallel."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

from strop.errors import PlacementError


def process_pool(
    workers: int, key: str, start: Callable[..., object] | None = None, arguments: tuple[Any, ...] = ()
) -> ProcessPoolExecutor:
    """A pool whose processes call `start` first. Raises PlacementError where this machine has no semaphores for them;
    `key` is the field with the number of workers."""
    try:
        return ProcessPoolExecutor(workers, get_context("spawn"), start, arguments)
    except (OSError, ImportError) as error:  # the latter: Python was built without them
        raise PlacementError(
            f"{key}: processes need semaphores, which this machine does not give ({error}). Mount a tmpfs at /dev/shm "
            f"that this user may write, or write {key}: 1."
        ) from error
