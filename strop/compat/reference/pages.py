"""Registry of the generated pages: the fields of the run file, and the keys of each tool."""

from __future__ import annotations

from pathlib import Path

from strop.compat.reference import defaults, ledgers
from strop.compat.registry import LEDGERS
from strop.config.reference import run_file

FOLDER = Path("docs/reference")


def pages() -> dict[Path, str]:
    """Text of each generated page, by its path relative to the repository root."""
    return {
        FOLDER / "run-file.md": run_file.page(),
        **{FOLDER / f"{name}.md": ledgers.page(ledger) for name, ledger in LEDGERS.items()},
        FOLDER / "defaults.md": defaults.page(),
    }
