"""Saving a run's state in the loop, or beside it from a copy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from strop.protocols import Snapshot


@dataclass(frozen=True, slots=True)
class Snapshots:
    """Those of several engines, each in a folder of its own inside the checkpoint's; `.` is that itself."""

    parts: Mapping[str, Snapshot]

    def copied(self) -> Snapshots:
        """See `strop.protocols.Snapshot`."""
        return Snapshots({name: part.copied() for name, part in self.parts.items()})

    def write(self, folder: Path) -> None:
        """See `strop.protocols.Snapshot`."""
        for name, part in self.parts.items():
            (folder / name).mkdir(exist_ok=True)
            part.write(folder / name)


class Saver:
    """One save at a time. Beside the loop it is written by a thread, and what depends on it waits for that.

    Consumes    what writes a checkpoint, and what may happen once it is there.
    Waits for   the save before, when the next one comes or the run ends.
    Unblocked   by the disk.
    """

    def __init__(self, *, beside: bool) -> None:
        self._threads = ThreadPoolExecutor(1, "strop-save") if beside else None
        self._under_way: tuple[Future[None], Callable[[], None]] | None = None

    def save(self, write: Callable[[], None], then: Callable[[], None]) -> None:
        """Write, and then, in the caller's thread, do the other."""
        self.wait()
        if self._threads is None:
            write()
            then()
        else:
            self._under_way = self._threads.submit(write), then

    def look(self) -> None:
        """Do what a save that has ended allows. Raises what it raised."""
        if self._under_way is not None and self._under_way[0].done():
            self.wait()

    def wait(self) -> None:
        """The same, once the save under way has ended."""
        if self._under_way is not None:
            (saved, then), self._under_way = self._under_way, None
            saved.result()
            then()
