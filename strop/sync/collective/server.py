"""The trainer's server of a collective transfer, and its protocol on one connection.

A request has `signals`, all signals of the explorer; `version`, the version that it wants now, or null; and
`gpu`, the UUID of its GPU, or null. The reply has `signals`, those of the trainer; `versions`, the published
versions; and for a wanted version `rendezvous` and `buckets`. Then both broadcast the buckets, and the
trainer ends the transfer with `null`.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from strop.config.schema.synchronizer import CollectiveSyncConfig
from strop.errors import PlacementError
from strop.sync.collective.buckets import Bucket
from strop.sync.collective.process_group import (
    CollectiveBackend,
    ProcessGroupBroken,
    Rendezvous,
    WeightProcessGroup,
    gpu_uuid,
    open_rendezvous_store,
)
from strop.sync.collective.version_store import VersionStore
from strop.sync.transport import TRAINER_SIGNALS
from strop.workers.connection import PEER_TIMEOUT_SECONDS, ConnectionLost, Disconnected, SocketConnection

log = logging.getLogger("strop.sync")


class WeightServer:
    """Serves versions from a `VersionStore` to the explorer."""

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
        self.storage_device = device if section.backend == "nccl" else torch.device("cpu")
        """The device on which versions are stored: the one that the last transfer sent from."""

    def serve(self, connection: SocketConnection) -> None:
        """Serve requests until the connection is lost. Raises PlacementError if the GPUs do not suit the
        configured `backend`."""
        group, name = None, str(next(self._group_numbers))
        while True:
            request = connection.receive()
            self._version_store.set_signals(request["signals"])
            versions = self._version_store.versions()
            wanted = versions.get(request["version"])
            reply: dict[str, Any] = {
                "signals": self._version_store.signals(TRAINER_SIGNALS),
                "versions": list(versions),
            }
            if wanted is None:
                connection.send(reply, timeout_seconds=PEER_TIMEOUT_SECONDS)
                continue
            backend = self._backend(request["gpu"])
            self.storage_device = self._device if backend == "nccl" else torch.device("cpu")
            rendezvous = Rendezvous(self._host, self._rendezvous_store.port, name, backend)
            reply |= {"rendezvous": asdict(rendezvous), "buckets": [bucket.metadata() for bucket in wanted]}
            try:
                connection.send(reply, timeout_seconds=PEER_TIMEOUT_SECONDS)
                group = group or WeightProcessGroup(rendezvous, 0, self._host, self.storage_device)
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

    def _backend(self, explorer_gpu: str | None) -> CollectiveBackend:
        own = gpu_uuid(self._device)
        both = own is not None and explorer_gpu is not None and own != explorer_gpu
        match self._section.backend:
            case "auto":
                return "nccl" if both else "gloo"
            case "nccl" if not both:
                raise PlacementError(
                    "synchronizer.backend: nccl needs one GPU for the trainer and another for the explorer; "
                    f"they have {own or 'none'} and {explorer_gpu or 'none'}. Write gloo or auto."
                )
            case backend:
                return backend


def _send_buckets(buckets: Sequence[Bucket], group: WeightProcessGroup, connection: SocketConnection) -> None:
    for bucket in buckets:
        group.broadcast(bucket.data.to(group.device), connection.check)
    connection.send(None, timeout_seconds=PEER_TIMEOUT_SECONDS)
