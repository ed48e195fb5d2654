"""The trainer's end of a collective transfer: holds versions of the weights in memory while they are needed.

Versions that a kill would lose are part of the trainer's checkpoints; at the end of the run they are written
into the run's folder.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor

from strop.config.schema.buffer import CollectiveSyncConfig
from strop.inference.weight_transfer.buckets import Bucket, pack_buckets
from strop.protocols import FileChecksum
from strop.sync.collective.server import TRAINER_ADDRESS_FILE, WeightServer
from strop.sync.collective.version_store import VersionStore
from strop.sync.folder_store import FolderVersionStore
from strop.sync.transport import SignalName
from strop.workers.server import SocketServer


@dataclass(frozen=True, slots=True)
class PackedVersions:
    """An `EngineSnapshot` of versions. Published versions never change, so nothing is copied."""

    versions: Mapping[int, tuple[Bucket, ...]]

    def begin_write(self, folder: Path, *, copied: bool = False) -> Callable[[], Mapping[str, FileChecksum]]:
        """See `strop.protocols.EngineSnapshot`."""

        def write() -> Mapping[str, FileChecksum]:
            self.write(folder)
            return {}

        return write

    def write(self, folder: Path) -> None:
        """Write the versions into an existing folder."""
        files = FolderVersionStore(folder)
        for version, buckets in self.versions.items():
            files.write(version, chain.from_iterable(bucket.weights() for bucket in buckets))


class CollectiveSender:
    """A `WeightSender` that serves the explorer from memory."""

    def __init__(
        self, folder: Path, section: CollectiveSyncConfig, host: str, device: torch.device, saved: Path | None
    ) -> None:
        """`folder` is where the explorer looks for the address; `host` is an address of this machine that the
        explorer can reach; `saved` is a snapshot's folder in the checkpoint that the trainer resumes from."""
        self._store = VersionStore()
        self._weight_server = WeightServer(self._store, section, host, device)
        self._folder_store = FolderVersionStore(folder)
        # Versions in the folder are those of a finished run; the checkpoint has those that are still needed.
        self._folder_store.delete(self._folder_store.versions())
        if saved is not None and saved.is_dir():
            files = FolderVersionStore(saved)
            for version in files.versions():
                buckets = pack_buckets(files.read(version), self._weight_server.storage_device)
                self._store.put(version, buckets)
        self._socket_server = SocketServer(host, self._weight_server.serve, "strop-sync")

    def versions(self) -> list[int]:
        """See `WeightSender`."""
        return list(self._store.versions())

    def write(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> None:
        """See `WeightSender`. Copies the weights; raises errors of the server's threads."""
        self._socket_server.raise_errors()
        device = self._weight_server.storage_device
        buckets = pack_buckets(weights, device)
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # another thread sends the buckets, on another stream
        self._store.put(version, buckets)

    def delete(self, versions: Collection[int]) -> None:
        """See `WeightSender`."""
        self._store.delete(versions)

    def set_signal(self, signal: SignalName, number: int) -> None:
        """See `WeightSender`."""
        self._store.set_signals({signal: number})

    def get_signal(self, signal: SignalName) -> int:
        """See `WeightSender`. Raises errors of the server's threads."""
        self._socket_server.raise_errors()
        return self._store.get_signal(signal)

    def snapshot(self, step: int) -> PackedVersions | None:
        """All versions except that of `step`, which the checkpoint's weights are."""
        others = {version: buckets for version, buckets in self._store.versions().items() if version != step}
        return PackedVersions(others) if others else None

    def announce_start(self) -> None:
        """See `WeightSender`. From now on the explorer finds this trainer's address."""
        self._folder_store.announce_start()
        self._socket_server.address.save(self._folder_store.folder / TRAINER_ADDRESS_FILE)

    def finish(self, version: int) -> None:
        """See `WeightSender`. Writes the versions and the final version's number into the folder."""
        PackedVersions(self._store.versions()).write(self._folder_store.folder)
        self._folder_store.finish(version)

    def close(self) -> None:
        """See `WeightSender`. Ends the server's threads."""
        self._socket_server.close()
