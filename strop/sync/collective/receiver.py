"""The explorer's end of a collective transfer: requests versions from the trainer, also after its restarts.

While the trainer cannot be reached there are no versions; the signals that were set are sent again to a
restarted trainer. A trainer that has finished has written its last versions into the run's folder.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from strop.inference.weight_transfer import (
    BucketReceiver,
    ProcessGroupBroken,
    Rendezvous,
    gpu_uuid,
    send_request,
)
from strop.sync.collective.sender import TRAINER_ADDRESS_FILE
from strop.sync.folder_store import FolderVersionStore
from strop.sync.transport import PublishedVersion, SignalName, VersionGone
from strop.workers.connection import (
    PEER_TIMEOUT_SECONDS,
    Address,
    ConnectionLost,
    SocketConnection,
    connect,
)
from strop.workers.waiting import StopCheck

log = logging.getLogger("strop.sync")


class CollectiveReceiver:
    """A `WeightReceiver` that is connected to the trainer's `WeightServer`."""

    location = "in the trainer's memory"

    def __init__(self, folder: Path, host: str, device: torch.device, check: StopCheck) -> None:
        """`folder` has the trainer's address; `host` is an address of this machine that the trainer can
        reach; `device` is the sampler's. `check` is called during waits."""
        self._folder = folder
        self._folder_store = FolderVersionStore(folder)
        self._host = host
        self._device = device
        self._check = check
        self._sent_signals: dict[SignalName, int] = {}
        self._received_signals: dict[SignalName, int] = {}
        self._connection: SocketConnection | None = None
        self._buckets = BucketReceiver(1, device, check)

    def versions(self) -> list[int]:
        """See `WeightReceiver`."""
        reply = self._request()
        return sorted({*self._folder_store.versions(), *(reply["versions"] if reply else ())})

    def read(self, version: int) -> Iterator[tuple[str, Tensor]]:
        """See `WeightReceiver`."""
        if version in self._folder_store.versions():
            yield from self._folder_store.read(version)
            return
        reply = self._request(version)
        if reply is None or "buckets" not in reply:
            raise VersionGone
        is_complete = False
        try:
            yield from self._receive(reply)
            is_complete = True
        except (ConnectionLost, ProcessGroupBroken) as error:
            log.warning(
                "The connection to the trainer was lost during the transfer of version %d of the weights; "
                "the explorer waits until the trainer is back.",
                version,
            )
            raise VersionGone from error
        finally:
            if not is_complete:
                self.close()

    def published(self, version: int) -> PublishedVersion | None:
        """See `WeightReceiver`."""
        if version in self._folder_store.versions():
            return None
        reply = self._request(annotations_of=version)
        if reply is None or "annotations" not in reply:
            raise VersionGone
        annotations = {name: torch.tensor(values) for name, values in reply["annotations"].items()}
        return PublishedVersion(self._trainer_address, annotations)

    def _trainer_address(self) -> Address | None:
        return Address.load(self._folder / TRAINER_ADDRESS_FILE)

    def set_signal(self, signal: SignalName, number: int) -> None:
        """See `WeightReceiver`. The signal is also sent to every restarted trainer."""
        self._sent_signals[signal] = number
        self._request()

    def get_signal(self, signal: SignalName) -> int:
        """See `WeightReceiver`."""
        self._request()
        return self._received_signals.get(signal, 0)

    def final_version(self) -> int:
        """See `WeightReceiver`. The trainer writes it into the folder."""
        return self._folder_store.final_version()

    def close(self) -> None:
        """See `WeightReceiver`."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None
        self._buckets.leave()

    def _request(
        self, version: int | None = None, annotations_of: int | None = None
    ) -> dict[str, Any] | None:
        """The trainer's reply, see `WeightServer`; None if the trainer cannot be reached."""
        if self._connection is None:
            self._connection = connect(self._trainer_address(), self._check)
        if self._connection is None:
            return None
        try:
            reply = send_request(
                self._connection,
                signals=self._sent_signals,
                version=version,
                receivers=[gpu_uuid(self._device)],
                annotations_of=annotations_of,
            )
        except ConnectionLost:
            self.close()
            return None
        self._received_signals |= reply["signals"]
        return reply

    def _receive(self, reply: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
        assert self._connection is not None
        yield from self._buckets.receive(Rendezvous(**reply["rendezvous"]), reply["buckets"], self._host)
        self._connection.receive(timeout_seconds=PEER_TIMEOUT_SECONDS)
