"""The trainer's end of a collective: versions of the weights in its own memory, while they are wanted.

What its memory would lose when it is killed goes into its checkpoints, and at the run's end into the run's
folder.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor

from strop.config.schema.synchronizer import CollectiveSync
from strop.protocols import WrittenFile
from strop.sync.collective.parcel import Bucket, pack
from strop.sync.collective.session import Sessions
from strop.sync.collective.shelf import Shelf
from strop.sync.folder import FolderVersions
from strop.sync.versions import Word
from strop.workers.server import Server

ADDRESS = "address.json"
"""The file by which the explorer finds the trainer."""


@dataclass(frozen=True, slots=True)
class Packed:
    """Versions, to be written: a `Snapshot`. They never change, so nothing is copied."""

    versions: Mapping[int, tuple[Bucket, ...]]

    def begin(self, folder: Path, *, copied: bool = False) -> Callable[[], Mapping[str, WrittenFile]]:
        """See `strop.protocols.Snapshot`."""

        def write() -> Mapping[str, WrittenFile]:
            self.write(folder)
            return {}

        return write

    def write(self, folder: Path) -> None:
        """Put them into an existing folder."""
        files = FolderVersions(folder)
        for version, buckets in self.versions.items():
            files.write(version, chain.from_iterable(bucket.weights() for bucket in buckets))


class CollectiveOutbox:
    """An `Outbox`."""

    def __init__(
        self, folder: Path, section: CollectiveSync, host: str, device: torch.device, saved: Path | None
    ) -> None:
        """`folder` is where the explorer finds the address, `host` one of this machine's that it can reach;
        `saved` is what a snapshot has written into the checkpoint that the trainer goes on from."""
        self._shelf = Shelf()
        self._sessions = Sessions(self._shelf, section, host, device)
        self._left = FolderVersions(folder)
        self._left.delete(self._left.all())  # an earlier end's: those that still count are in the checkpoint
        if saved is not None and saved.is_dir():
            files = FolderVersions(saved)
            for version in files.all():
                self._shelf.put(version, pack(files.read(version), self._sessions.home))
        self._server = Server(host, self._sessions.serve, "strop-sync")

    def all(self) -> list[int]:
        """Those that are there, oldest first."""
        return list(self._shelf.all())

    def write(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Copy them. Raises what has befallen a thread that serves the explorer."""
        self._server.look()
        home = self._sessions.home
        buckets = pack(weights, home)
        if home.type == "cuda":
            torch.cuda.synchronize(home)  # another thread sends them, on another stream
        self._shelf.put(version, buckets)

    def delete(self, versions: Collection[int]) -> None:
        """Make room: nobody wants these any more."""
        self._shelf.drop(versions)

    def say(self, word: Word, number: int) -> None:
        """Leave a number for the explorer."""
        self._shelf.say({word: number})

    def said(self, word: Word) -> int:
        """What the explorer has left under this word; 0 where that is nothing."""
        self._server.look()
        return self._shelf.said(word)

    def snapshot(self, step: int) -> Packed | None:
        """All versions but that of `step`, which is the checkpoint itself."""
        others = {version: buckets for version, buckets in self._shelf.all().items() if version != step}
        return Packed(others) if others else None

    def begin(self) -> None:
        """From now on the explorer finds this trainer; an earlier end's word is taken back."""
        self._left.begin()
        self._server.address.save(self._left.folder / ADDRESS)

    def finish(self, version: int) -> None:
        """Leave the versions in the folder, and the word there."""
        Packed(self._shelf.all()).write(self._left.folder)
        self._left.finish(version)

    def close(self) -> None:
        """End the threads."""
        self._server.close()
