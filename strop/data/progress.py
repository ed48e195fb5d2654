"""A progress bar for work that turns out to be long."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

PATIENCE_SECONDS = 2.0


def watched(items: Iterable[T], total: int, what: str) -> Iterator[T]:
    """The items, and on a terminal a bar on stderr for what takes more than `PATIENCE_SECONDS`."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    started = time.monotonic()
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task(what, total=total, visible=False)
        for item in items:
            yield item
            late = time.monotonic() - started > PATIENCE_SECONDS
            progress.update(bar, advance=1, visible=late)
