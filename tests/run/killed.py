"""A process that kills itself in a chosen call of a function, so that no other process has to meet the moment."""

from __future__ import annotations

import json
import os
import pkgutil
import signal
import sys
from pathlib import Path
from typing import Any

import strop
from strop.workers.child_process import start_module

IMPORTS = ("strop.run.entry.train",)
"""Modules that the fork server imports once for all such processes."""
TIMEOUT_SECONDS = 900


def train_killed_at(place: str, call: int, values: dict[str, Any]) -> None:
    """Train in a process that kills itself in a call of `place`, as `module:Class.method`, before its effect."""
    _kill_at(place, call, "train", values)


def export_killed_at(place: str, call: int, run: Path, to: Path) -> None:
    """Export in such a process."""
    _kill_at(place, call, "export", str(run), str(to))


def _kill_at(place: str, call: int, *work: Any) -> None:
    process = start_module("tests.run.killed", place, str(call), json.dumps(work), imports=IMPORTS)
    code = process.wait(TIMEOUT_SECONDS)
    assert code == -signal.SIGKILL, f"exit code {code}: {place} was not called {call} times"


def main(place: str, call: str, work: str) -> None:
    """Do the work, and kill this process in the call."""
    module, _, path = place.partition(":")
    *classes, name = path.split(".")
    owner = pkgutil.resolve_name(".".join((module, *classes)))
    function, calls = getattr(owner, name), 0

    def counted(*args: Any, **keywords: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == int(call):
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **keywords)

    setattr(owner, name, counted)
    match json.loads(work):
        case ["train", values]:
            strop.train(strop.load(values))
        case ["export", run, to]:
            strop.export(Path(run), Path(to))


if __name__ == "__main__":
    main(*sys.argv[1:])
