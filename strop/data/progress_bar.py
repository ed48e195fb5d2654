"""A progress bar for iterations that take long."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from strop.config.redact import safe_text

T = TypeVar("T")

SHOW_AFTER_SECONDS = 2.0
"""Elapsed time after which the bar is shown."""


def with_progress_bar(items: Iterable[T], total: int, what: str) -> Iterator[T]:
    """Yield the items; on a terminal show a bar on stderr once this takes more than `SHOW_AFTER_SECONDS`."""
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress

    console = Console(stderr=True)
    started = time.monotonic()
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task(escape(safe_text(what)), total=total, visible=False)
        for item in items:
            yield item
            late = time.monotonic() - started > SHOW_AFTER_SECONDS
            progress.update(bar, advance=1, visible=late)
