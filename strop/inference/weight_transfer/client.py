"""Requests of a receiver of weights to the trainer's server, see `strop.sync.collective.server`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strop.errors import WeightTransferError
from strop.inference.weight_transfer.process_group import Rendezvous
from strop.protocols import TrainerAddress
from strop.workers.connection import PEER_TIMEOUT_SECONDS, Address, ConnectionLost, SocketConnection, connect
from strop.workers.waiting import never_stop


@dataclass(frozen=True, slots=True)
class WeightOffer:
    """A version that the trainer's server is about to send."""

    rendezvous: Rendezvous
    """Process group over which it sends."""
    buckets: tuple[dict[str, Any], ...]
    """Metadata of the buckets in order, see `Bucket.allocate`."""


def send_request(
    connection: SocketConnection,
    *,
    signals: Mapping[Any, int],
    version: int | None = None,
    receivers: Sequence[str | None] = (),
    annotations_of: int | None = None,
) -> dict[str, Any]:
    """The server's reply to a request. Raises `ConnectionLost`.

    `receivers` has the UUID of the GPU of each process that receives the version, or None for one without a GPU.
    """
    request = {
        "signals": dict(signals),
        "version": version,
        "receivers": list(receivers),
        "annotations_of": annotations_of,
    }
    connection.send(request, timeout_seconds=PEER_TIMEOUT_SECONDS)
    reply: dict[str, Any] = connection.receive(timeout_seconds=PEER_TIMEOUT_SECONDS)
    return reply


class WeightClient:
    """Connection of an engine to the trainer's server. It stays open between two loads, and so does the process group;
    the server may be restarted at another address."""

    def __init__(self) -> None:
        self._address: Address | None = None
        self._connection: SocketConnection | None = None

    def request(self, trainer: TrainerAddress, version: int, receivers: Sequence[str | None]) -> WeightOffer:
        """Ask for a version, which the server then sends. Raises `WeightTransferError` if it cannot."""
        address = trainer()
        if self._connection is not None and address != self._address:
            self.close()
        if self._connection is None:
            self._address, self._connection = address, connect(address, never_stop)
        if self._connection is None:
            raise WeightTransferError("the trainer cannot be reached")
        try:
            reply = send_request(self._connection, signals={}, version=version, receivers=receivers)
        except ConnectionLost as error:
            self.close()
            raise WeightTransferError("the connection to the trainer was lost") from error
        if "buckets" not in reply:
            raise WeightTransferError(f"the trainer has no version {version} of the weights")
        return WeightOffer(Rendezvous(**reply["rendezvous"]), tuple(reply["buckets"]))

    @property
    def host(self) -> str:
        """Address of this machine from which the trainer is reached, while the connection is open."""
        assert self._connection is not None
        return self._connection.local_host

    def finish(self) -> None:
        """Wait until the server has sent everything. Raises `WeightTransferError` if the connection is lost."""
        assert self._connection is not None
        try:
            self._connection.receive(timeout_seconds=PEER_TIMEOUT_SECONDS)
        except ConnectionLost as error:
            self.close()
            raise WeightTransferError("the connection to the trainer was lost") from error

    def close(self) -> None:
        """Close the connection; the server leaves the process group."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None
