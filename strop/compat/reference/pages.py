"""Generated pages: the fields of the run file, and the keys of each tool."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from strop.compat.reference import defaults, ledgers
from strop.compat.registry import LEDGERS
from strop.config import reference

PAGES: Mapping[str, Callable[[], str]] = {
    "run-file": reference.page,
    **{name: partial(ledgers.page, ledger) for name, ledger in LEDGERS.items()},
    "defaults": defaults.page,
}
"""Name of each page -> function that writes its text."""


def pages() -> dict[Path, str]:
    """Text of each page, by its path relative to the repository root."""
    return {Path(f"docs/reference/{name}.md"): write() for name, write in PAGES.items()}
