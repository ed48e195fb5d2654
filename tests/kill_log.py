"""Number of the processes that fault tests kill, and a log of the kills, which `benchmarks/kills.py` counts."""

from __future__ import annotations

import os
from pathlib import Path


def kills(default: int, *, sources: int = 1) -> int:
    """Number of kills of one kind in one test, or of the rounds of a test that kills once.

    It is the default, or what is needed for `STROP_KILLS` kills of this kind where `sources` tests, or parameters of
    a test, share them.
    """
    wanted = int(os.environ.get("STROP_KILLS", "0"))
    return max(default, -(-wanted // sources))


def record_kill(kind: str) -> None:
    """Append a kind of kill to the file that `STROP_KILL_LOG` names, if there is one."""
    if path := os.environ.get("STROP_KILL_LOG"):
        with Path(path).open("a", encoding="utf-8") as log:
            log.write(f"{kind}\n")
