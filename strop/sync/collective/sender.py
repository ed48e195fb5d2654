"""The trainer's end of a collective transfer: a server that holds versions of the weights while they are needed.

Versions that a kill would lose are part of the trainer's checkpoints; at the end of the run they are written
into the run's folder.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from strop.config.schema.buffer import CollectiveSyncConfig
from strop.errors import PlacementError
from strop.inference.weight_transfer import (
    ANNOTATION_PREFIX,
    Bucket,
    CollectiveBackend,
    ProcessGroupBroken,
    Rendezvous,
    SharedBufferGroup,
    WeightProcessGroup,
    gpu_uuid,
    join_group,
    open_rendezvous_store,
    pack_buckets,
)
from strop.protocols import FileChecksum
from strop.sync.folder_store import FolderVersionStore
from strop.sync.transport import TRAINER_SIGNALS, SignalName
from strop.workers.connection import (
    PEER_TIMEOUT_SECONDS,
    ConnectionLost,
    Disconnected,
    SocketConnection,
    SocketServer,
)

log = logging.getLogger("strop.sync")
TRAINER_ADDRESS_FILE = "address.json"
"""The file in the synchronizer's folder with the address of the trainer's server."""


class VersionStore:
    """Packed versions of the weights, and signals."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._versions: dict[int, tuple[Bucket, ...]] = {}
        self._signals: dict[SignalName, int] = {}

    def versions(self) -> dict[int, tuple[Bucket, ...]]:
        """The versions, oldest first. Their tensors never change."""
        with self._lock:
            return dict(sorted(self._versions.items()))

    def put(self, version: int, buckets: tuple[Bucket, ...]) -> None:
        """Add a version."""
        with self._lock:
            self._versions[version] = buckets

    def delete(self, versions: Collection[int]) -> None:
        """Delete versions."""
        with self._lock:
            for version in versions:
                del self._versions[version]

    def set_signals(self, signals: Mapping[SignalName, int]) -> None:
        """Set signals to these numbers."""
        with self._lock:
            self._signals.update(signals)

    def get_signal(self, signal: SignalName) -> int:
        """The number of a signal; 0 if it was never set."""
        with self._lock:
            return self._signals.get(signal, 0)

    def signals(self, names: Collection[SignalName]) -> dict[SignalName, int]:
        """The numbers of those of these signals that were set."""
        with self._lock:
            return {name: self._signals[name] for name in names if name in self._signals}


class WeightServer:
    """Serves versions from a `VersionStore` to the explorer and to its engines."""

    def __init__(
        self, versions: VersionStore, section: CollectiveSyncConfig, host: str, device: torch.device
    ) -> None:
        """`device` is the trainer's."""
        self._version_store = versions
        self._section = section
        self._host = host
        self._device = device
        self._rendezvous_store = open_rendezvous_store(host)
        self._group_numbers = itertools.count()
        self.storage_device = self._device_of(section.backend)
        """The device on which versions are stored: the one that the last transfer sent from."""

    def serve(self, connection: SocketConnection) -> None:
        """Serve requests until the connection is lost. Raises PlacementError if the GPUs do not suit the
        configured `backend`."""
        group, current, name = None, None, str(next(self._group_numbers))
        while True:
            request = connection.receive()
            self._version_store.set_signals(request["signals"])
            versions = self._version_store.versions()
            wanted = versions.get(request["version"])
            reply: dict[str, Any] = {
                "signals": self._version_store.signals(TRAINER_SIGNALS),
                "versions": list(versions),
            }
            if (annotated := versions.get(request["annotations_of"])) is not None:
                reply["annotations"] = _annotations(annotated)
            if wanted is None:
                connection.send(reply, timeout_seconds=PEER_TIMEOUT_SECONDS)
                continue
            receivers = request["receivers"]
            backend = self._backend(receivers)
            self.storage_device = self._device_of(backend)
            rendezvous = Rendezvous(
                self._host, self._rendezvous_store.port, name, backend, 1 + len(receivers)
            )
            reply |= {"rendezvous": asdict(rendezvous), "buckets": [bucket.metadata() for bucket in wanted]}
            try:
                connection.send(reply, timeout_seconds=PEER_TIMEOUT_SECONDS)
                if rendezvous != current:
                    group, current = (
                        join_group(rendezvous, 0, self._host, self.storage_device),
                        rendezvous,
                    )
                assert group is not None
                _send_buckets(wanted, group, connection)
            except Disconnected:
                raise
            except (ConnectionLost, ProcessGroupBroken) as error:
                log.warning(
                    "The connection to the explorer was lost during the transfer of version %d of the "
                    "weights; the explorer gets them again when it is back.",
                    request["version"],
                )
                raise ConnectionLost from error

    def _device_of(self, backend: str) -> torch.device:
        """The device from which a backend sends; under `auto` the CPU before the first transfer."""
        return self._device if backend in ("nccl", "cuda_ipc") else torch.device("cpu")

    def _backend(self, receivers: Sequence[str | None]) -> CollectiveBackend:
        gpus = [gpu_uuid(self._device), *receivers]
        both = None not in gpus and len(set(gpus)) == len(gpus)
        match self._section.backend:
            case "auto":
                return "nccl" if both else "gloo"
            case "nccl" if not both:
                raise PlacementError(
                    "synchronizer.backend: nccl needs one GPU for the trainer and another for each process of the "
                    f"explorer's engine; they have {', '.join(gpu or 'none' for gpu in gpus)}. Write gloo or auto."
                )
            case "cuda_ipc" if len(set(gpus)) > 1 or None in gpus:
                raise PlacementError(
                    "synchronizer.backend: cuda_ipc needs the trainer and all processes of the explorer's engine on "
                    f"one GPU; they have {', '.join(gpu or 'none' for gpu in gpus)}. Write gloo or auto."
                )
            case backend:
                return backend


def _send_buckets(
    buckets: Sequence[Bucket], group: WeightProcessGroup | SharedBufferGroup, connection: SocketConnection
) -> None:
    for bucket in buckets:
        group.broadcast(bucket.data.to(group.device), connection.check)
    connection.send(None, timeout_seconds=PEER_TIMEOUT_SECONDS)


def _annotations(buckets: Sequence[Bucket]) -> dict[str, Any]:
    """The values of the tensors that accompany the weights, as lists."""
    weights = (weight for bucket in buckets for weight in bucket.weights())
    return {name: tensor.tolist() for name, tensor in weights if name.startswith(ANNOTATION_PREFIX)}


@dataclass(frozen=True, slots=True)
class PackedVersions:
    """An `EngineSnapshot` of versions. Published versions never change, so nothing is copied."""

    versions: Mapping[int, tuple[Bucket, ...]]

    def begin_write(self, folder: Path, *, copied: bool = False) -> Callable[[], Mapping[str, FileChecksum]]:
        """The returned function writes the versions; a checkpoint lists no checksums of theirs."""

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
