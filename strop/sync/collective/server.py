"""The trainer's server of a collective transfer, and its protocol on one connection.

A request has `signals`, all signals of the explorer; `version`, the version that the client wants now, or null;
`receivers`, the UUID of the GPU, or null, of each process that receives it; and `annotations_of`, a version, or null.
The reply has `signals`, those of the trainer; `versions`, the published versions; for a wanted version `rendezvous` and
`buckets`; and `annotations`, the values of those tensors of the version that are no weights. Then all broadcast the
buckets, the trainer as rank 0 and the receivers in their order, and the trainer ends the transfer with `null`.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from strop.config.schema.buffer import CollectiveSyncConfig
from strop.errors import PlacementError
from strop.inference.weight_transfer.buckets import ANNOTATION_PREFIX, Bucket
from strop.inference.weight_transfer.process_group import (
    CollectiveBackend,
    ProcessGroupBroken,
    Rendezvous,
    WeightProcessGroup,
    gpu_uuid,
    open_rendezvous_store,
)
from strop.inference.weight_transfer.shared_buffer import SharedBufferGroup, join_group
from strop.sync.collective.version_store import VersionStore
from strop.sync.transport import TRAINER_SIGNALS
from strop.workers.connection import PEER_TIMEOUT_SECONDS, ConnectionLost, Disconnected, SocketConnection

log = logging.getLogger("strop.sync")
TRAINER_ADDRESS_FILE = "address.json"
"""The file in the synchronizer's folder with the address of the trainer's server."""


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
