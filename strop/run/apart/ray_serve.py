"""One half of a run as a Ray actor: what goes on in the actor's own process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import TextIOBase
from pathlib import Path
from signal import SIGTERM
from threading import Lock, Thread

from strop.errors import PlacementError, StropError
from strop.run.apart.part import Order, run_part
from strop.run.stopping import StopSignal
from strop.workers.ray_worker import node_address
from strop.workers.worker import Channel

MARK = ".cluster"
"""The file of the run's folder by which an actor knows it."""


@dataclass(frozen=True, slots=True)
class Errand:
    """What an actor is told to do."""

    order: Order
    folder: Path
    """The run's, absolute."""
    mark: str
    """What the launcher has written there."""

    def check_folder(self) -> None:
        """Raises PlacementError where the run's folder is not the one that the launcher sees."""
        mark = self.folder / MARK
        if not mark.is_file() or mark.read_text() != self.mark:
            raise PlacementError(
                f"The node {node_address()}, where the {self.order.name} was placed, does not see the run's "
                f"folder {self.folder}. All nodes of a cluster must reach it under one name: set `output` to "
                "a folder on a disk that they share."
            )


@dataclass(frozen=True, slots=True)
class Said:
    """What the part has written on its console: whole lines."""

    lines: list[str]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a part ended: by itself, or by what Strop raised on purpose."""

    error: str | None = None
    exit_code: int = 0


class Stop:
    """Save the state, and end."""


def serve(channel: Channel) -> None:
    """Run the part of the `Errand` that comes first, until a `Stop` or its end; say `Said` and `Ended`."""
    errand: Errand = channel.receive()
    Thread(target=_heed, args=(channel,), daemon=True).start()
    channel.send(_done(errand, lambda lines: channel.send(Said(lines))))


def _heed(channel: Channel) -> None:
    """A signal would be Ray's."""
    while True:
        if isinstance(channel.receive(), Stop):
            StopSignal.ask(SIGTERM)


def _done(errand: Errand, show: Callable[[list[str]], None]) -> Ended:
    try:
        errand.check_folder()
        lines = _Lines(show)
        with redirect_stdout(lines), redirect_stderr(lines):
            run_part(errand.order)
    except StropError as error:
        return Ended(str(error), error.exit_code)
    return Ended()


class _Lines(TextIOBase):
    """What is written goes into the actor's log, and line by line to where it is shown."""

    def __init__(self, show: Callable[[list[str]], None]) -> None:
        self._log = sys.stdout
        self._show = show
        self._text = ""
        self._lock = Lock()

    def write(self, text: str) -> int:
        with self._lock:
            self._log.write(text)
            self._log.flush()
            lines, end, self._text = (self._text + text).rpartition("\n")
            if end:
                self._show(lines.split("\n"))
        return len(text)
