"""Curves of finished runs, and programs of the documentation that run in this process."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from unittest.mock import patch

HELD_OUT = "eval/held-out/reward"


def column(run: Path, name: str) -> list[float]:
    """Values of one metric, by step, from the rows that have it."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [row[name] for row in map(json.loads, lines) if name in row]


def run_python(*arguments: str | Path) -> None:
    """`python ARGUMENTS`, a script or `-m MODULE`, in this process."""
    words = [str(argument) for argument in arguments]
    with patch.object(sys, "argv", words[words[0] == "-m" :]), patch.object(sys, "path", list(sys.path)):
        if words[0] == "-m":
            runpy.run_module(words[1], run_name="__main__")
        else:
            sys.path.insert(0, str(Path(words[0]).parent))
            runpy.run_path(words[0], run_name="__main__")
