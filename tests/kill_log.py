"""Log of the kills that fault tests carried out, which `benchmarks/kills.py` counts."""

from __future__ import annotations

import os
from pathlib import Path


def record_kill(kind: str) -> None:
    """Append a kind of kill to the file that `STROP_KILL_LOG` names, if there is one."""
    if path := os.environ.get("STROP_KILL_LOG"):
        with Path(path).open("a", encoding="utf-8") as log:
            log.write(f"{kind}\n")
