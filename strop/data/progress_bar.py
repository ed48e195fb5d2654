"""A progress bar for iterations that take long."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from strop.config.redact import safe_text

T = TypeVar("T")

SHOW_AFTER_SECONDS = 2.0
"""Elapsed time after which the bar is shown."""
_LINE_SECONDS = 15.0
"""Time between two lines of progress where stderr is not a terminal."""
_UPDATE_SECONDS = 0.1
"""Time between two updates of a bar."""
_MAX_STRIDE = 256
"""Largest number of items between two looks at the clock, where items are fast."""


def with_progress_bar(items: Iterable[T], total: int | None, what: str) -> Iterator[T]:
    """Yield the items, and show the progress on stderr once this takes more than `SHOW_AFTER_SECONDS`.

    A terminal gets a bar; a log gets a line every 15 s. `total` is None where the number of items is not known.
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress

    console = Console(stderr=True)
    started = time.monotonic()
    is_terminal = console.is_terminal
    next_update, next_line = started, started + _LINE_SECONDS
    with Progress(console=console, transient=True, disable=not is_terminal) as progress:
        bar = progress.add_task(escape(safe_text(what)), total=total, visible=False)
        next_look = stride = 1
        looked = started
        for number, item in enumerate(items, start=1):
            yield item
            if number < next_look:
                continue
            now = time.monotonic()
            stride = min(2 * stride, _MAX_STRIDE) if now - looked < _UPDATE_SECONDS / 10 else 1
            next_look, looked = number + stride, now
            if is_terminal and now >= next_update:
                progress.update(bar, completed=number, visible=now - started > SHOW_AFTER_SECONDS)
                next_update = now + _UPDATE_SECONDS
            elif not is_terminal and now >= next_line:
                of = "" if total is None else f" of {total}"
                console.print(f"{safe_text(what)}: {number}{of}", markup=False, highlight=False)
                next_line = now + _LINE_SECONDS
