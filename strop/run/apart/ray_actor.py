"""One half of a run as a Ray actor: what goes on in the actor's own process."""

from __future__ import annotations

import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import TextIOBase
from pathlib import Path
from signal import SIGTERM
from threading import Lock
from typing import TextIO

from strop.errors import StropError
from strop.run.apart.part import Order, run_part
from strop.run.stopping import StopSignal


@dataclass(frozen=True, slots=True)
class Ended:
    """How a part ended: by itself, or by what Strop raised on purpose."""

    error: str | None = None
    exit_code: int = 0


class PartActor:
    """Runs one part in a thread of its own, beside which the other methods are called."""

    def __init__(self, order: Order, logs: Path, name: str, by_node: bool, workdir: Path) -> None:
        """All that the part says goes into `logs/name.log`, or into a folder of this node's there. The run
        file's paths are relative to `workdir`, where this node has it."""
        from ray.util import get_node_ip_address  # here, where Ray is

        self._order = order
        node = str(get_node_ip_address())  # type: ignore[no-untyped-call]
        folder = logs / node if by_node else logs
        folder.mkdir(parents=True, exist_ok=True)
        self._lines = _Lines((folder / f"{name}.log").open("a"))
        if workdir.is_dir():
            os.chdir(workdir)
            sys.path.insert(0, str(workdir))

    def pid(self) -> int:
        """Of this process; an answer says that the actor is there."""
        return os.getpid()

    def run(self) -> Ended:
        """To the end of the part, or until `stop`."""
        with redirect_stdout(self._lines), redirect_stderr(self._lines):
            try:
                run_part(self._order)
            except StropError as error:
                return Ended(str(error), error.exit_code)
        return Ended()

    def stop(self) -> None:
        """Ask the part to save its state and end. A signal would be Ray's."""
        StopSignal.ask(SIGTERM)

    def said(self) -> list[str]:
        """The lines since the last call."""
        return self._lines.taken()


class _Lines(TextIOBase):
    """What is written goes into a file, and waits here to be shown line by line."""

    def __init__(self, log: TextIO) -> None:
        self._log = log
        self._text = ""
        self._lock = Lock()

    def write(self, text: str) -> int:
        with self._lock:
            self._log.write(text)
            self._log.flush()
            self._text += text
        return len(text)

    def taken(self) -> list[str]:
        """The whole lines; what has no end yet stays."""
        with self._lock:
            lines, end, self._text = self._text.rpartition("\n")
        return lines.split("\n") if end else []
