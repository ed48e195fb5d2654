"""Transfer of weights from the trainer's memory to receivers: process groups, packing into buckets, and requests.

The receivers are an explorer, or the processes of one engine; their process group is separate from that of the
trainer's ranks. `broadcast` sends from the trainer (rank 0) to the others; all call it with tensors of one size.

Processes that share one GPU broadcast through a buffer in its memory that all of them open (CUDA IPC). The tests run
the protocol with a buffer in shared memory of the CPU. `_export_cuda` and `_open_cuda` have never been run, for lack
of a GPU.

Weights are packed end to end into few large byte tensors (buckets), each sent at once.
"""

from __future__ import annotations

import json
import os
import socket
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, cast

import torch
from torch import Tensor
from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore  # type: ignore[attr-defined]

from strop.errors import WeightTransferError
from strop.protocols import TrainerAddress
from strop.workers.connection import PEER_TIMEOUT_SECONDS, Address, ConnectionLost, SocketConnection, connect
from strop.workers.shared_file import temporary_parent
from strop.workers.waiting import StopCheck, call_with_checks, never_stop, wait_until

CollectiveBackend = Literal["gloo", "nccl", "cuda_ipc"]
_JOIN_TIMEOUT_SECONDS = 10.0
"""Timeout for the other processes to join."""
BROADCAST_TIMEOUT_SECONDS = 30.0
"""Timeout for one chunk of a transfer."""
_CHUNK_BYTES = 64 << 20
_POLL_SECONDS = 0.001
_ERROR_HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
BUFFER_BYTES = 64 << 20
_HANDLE_BYTES = 4096
"""Size of the message with the buffer's handle."""
_CPU = torch.device("cpu")
BUCKET_BYTES = 64 << 20
_ALIGNMENT_BYTES = 16
ANNOTATION_PREFIX = "strop."
"""Prefix of the names of tensors that accompany the weights of a version and that no engine loads."""


class ProcessGroupBroken(Exception):
    """Another process is gone, or has exceeded a timeout."""


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """The address of the key-value store through which the processes connect; the trainer serves it."""

    host: str
    port: int
    name: str
    """Name of the process group, unique within the store."""
    backend: CollectiveBackend
    world_size: int
    """Number of processes, the trainer included."""


class WeightProcessGroup:
    """This process's membership in the process group."""

    def __init__(self, rendezvous: Rendezvous, rank: int, host: str, device: torch.device) -> None:
        """Join from `host`, an address of this machine. Raises `ProcessGroupBroken` if another process does not.

        `device` is the device of the tensors to broadcast: the CPU under gloo.
        """
        self.device = device
        timeout = timedelta(seconds=_JOIN_TIMEOUT_SECONDS)
        try:
            shared = TCPStore(rendezvous.host, rendezvous.port, timeout=timeout, wait_for_workers=False)
            store = PrefixStore(rendezvous.name, shared)
            if rendezvous.backend == "gloo":
                self._group = _gloo(store, rank, rendezvous.world_size, host)
            else:
                self._group = _nccl(store, rank, rendezvous.world_size, device)
        except RuntimeError as error:  # torch raises it for every failure of the peer or the network
            raise ProcessGroupBroken(str(error)) from error

    def broadcast(self, data: Tensor, check: StopCheck) -> None:
        """Send rank 0's tensor into those of the others. Raises `ProcessGroupBroken`, and what `check` raises."""
        for chunk in torch.split(data, _CHUNK_BYTES):
            try:
                self._wait(self._group.broadcast(chunk, 0), check)
            except RuntimeError as error:
                raise ProcessGroupBroken(str(error)) from error
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def barrier(self, check: StopCheck) -> None:
        """Wait for the other processes. Raises `ProcessGroupBroken`, and what `check` raises."""
        try:
            self._wait(self._group.barrier(), check)
        except RuntimeError as error:
            raise ProcessGroupBroken(str(error)) from error

    def _wait(self, work: Any, check: StopCheck) -> None:
        if not wait_until(
            work.is_completed,
            "a transfer of weights",
            timeout_seconds=BROADCAST_TIMEOUT_SECONDS,
            interval_seconds=_POLL_SECONDS,
            check=check,
        ):
            self._group.abort()
            raise ProcessGroupBroken(
                f"a chunk of the weights was not transferred in {BROADCAST_TIMEOUT_SECONDS:.0f} s"
            )
        work.wait()


def open_rendezvous_store(host: str) -> TCPStore:
    """The store in which process groups find each other, served on a free port at `host`."""
    with socket.create_server((host, 0)) as listening:
        port = listening.getsockname()[1]
        return TCPStore(
            host, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach()
        )


def gpu_uuid(device: torch.device) -> str | None:
    """The UUID of a GPU; None for the CPU."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else None


def _gloo(store: PrefixStore, rank: int, world_size: int, host: str) -> Any:
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = timedelta(seconds=BROADCAST_TIMEOUT_SECONDS)
    options._devices = [ProcessGroupGloo.create_device(hostname=host)]
    return ProcessGroupGloo(store, rank, world_size, options)


def _nccl(store: PrefixStore, rank: int, world_size: int, device: torch.device) -> Any:
    """NCCL's watchdog would end this process when the peer is gone; here the peer may be restarted."""
    from torch.distributed import ProcessGroupNCCL

    torch.cuda.set_device(device)
    options = ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=BROADCAST_TIMEOUT_SECONDS)
    with _environment_variable(_ERROR_HANDLING, "0"):
        return ProcessGroupNCCL(store, rank, world_size, options)


@contextmanager
def _environment_variable(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


class SharedBufferGroup:
    """This process's membership in a group whose tensors are on one device; see `WeightProcessGroup`."""

    def __init__(self, rendezvous: Rendezvous, rank: int, host: str, device: torch.device) -> None:
        """Join; the trainer (rank 0) allocates the buffer. Raises `ProcessGroupBroken` if another process does not."""
        self.device = device
        self._is_trainer = rank == 0
        self._control = WeightProcessGroup(replace(rendezvous, backend="gloo"), rank, host, _CPU)
        with ExitStack() as exported:
            message = torch.zeros(_HANDLE_BYTES, dtype=torch.uint8)
            if self._is_trainer:
                self._buffer, handle = _export(device, exported)
                text = json.dumps(handle).encode()
                message[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
            self._control.broadcast(message, never_stop)
            if not self._is_trainer:
                self._buffer = _open(json.loads(bytes(message.tolist()).rstrip(b"\0")), device)
            self._control.barrier(never_stop)

    def broadcast(self, data: Tensor, check: StopCheck) -> None:
        """Copy rank 0's tensor into those of the others. Raises `ProcessGroupBroken`, and what `check` raises."""
        for chunk in torch.split(data, BUFFER_BYTES):
            part = self._buffer[: len(chunk)]
            if self._is_trainer:
                self._copy(chunk, part)
            self._control.barrier(check)  # the buffer is filled
            if not self._is_trainer:
                self._copy(part, chunk)
            self._control.barrier(check)  # all have read it

    def _copy(self, source: Tensor, target: Tensor) -> None:
        target.copy_(source)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def join_group(
    rendezvous: Rendezvous, rank: int, host: str, device: torch.device
) -> WeightProcessGroup | SharedBufferGroup:
    """Join the group of a rendezvous with its backend, from `host`; under gloo the tensors are on the CPU."""
    if rendezvous.backend == "cuda_ipc":
        return SharedBufferGroup(rendezvous, rank, host, device)
    return WeightProcessGroup(rendezvous, rank, host, _CPU if rendezvous.backend == "gloo" else device)


def _export(device: torch.device, exported: ExitStack) -> tuple[Tensor, dict[str, Any]]:
    """A buffer with its handle for other processes, which open it before `exported` is closed."""
    if device.type == "cuda":
        return _export_cuda(device)
    folder = exported.enter_context(TemporaryDirectory(prefix="strop-", dir=temporary_parent(BUFFER_BYTES)))
    handle = {"file": str(Path(folder) / "buffer")}
    return _open(handle, device), handle


def _open(handle: dict[str, Any], device: torch.device) -> Tensor:
    """The buffer of a handle."""
    if device.type == "cuda":
        return _open_cuda(handle, device)
    return torch.from_file(handle["file"], shared=True, size=BUFFER_BYTES, dtype=torch.uint8)


def _export_cuda(device: torch.device) -> tuple[Tensor, dict[str, Any]]:
    """The handle has what torch.multiprocessing sends of a CUDA storage, its bytes in base 64."""
    buffer = torch.empty(BUFFER_BYTES, dtype=torch.uint8, device=device)
    _, *values = buffer.untyped_storage()._share_cuda_()  # type: ignore[no-untyped-call]
    encoded = [
        {"bytes": b64encode(value).decode()} if isinstance(value, bytes) else value for value in values
    ]
    return buffer, {"storage": encoded}


def _open_cuda(handle: dict[str, Any], device: torch.device) -> Tensor:
    """The first value of a CUDA storage is the number of the GPU, which each process may give another one."""
    values = [b64decode(value["bytes"]) if isinstance(value, dict) else value for value in handle["storage"]]
    # torch.multiprocessing does so before it opens a storage.
    torch.cuda.init()  # type: ignore[no-untyped-call]
    storage = torch.UntypedStorage._new_shared_cuda(device.index or 0, *values)
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)


@dataclass(frozen=True, slots=True)
class TensorSlot:
    """The position of one weight in its bucket."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int
    """Offset of the first byte."""

    def view(self, content: Tensor) -> Tensor:
        """The weight as a view of the bucket's memory."""
        part = content[self.offset : self.offset + self.dtype.itemsize * prod(self.shape)]
        return part.view(self.dtype).view(self.shape)

    def to_json(self) -> list[Any]:
        """The slot as JSON."""
        return [self.name, str(self.dtype).removeprefix("torch."), list(self.shape), self.offset]

    @classmethod
    def from_json(cls, values: list[Any]) -> TensorSlot:
        """The slot that `to_json` was called on."""
        name, dtype, shape, offset = values
        return cls(name, cast(torch.dtype, getattr(torch, dtype)), tuple(shape), offset)


@dataclass(frozen=True, slots=True)
class Bucket:
    """Some of the weights, in one tensor."""

    slots: tuple[TensorSlot, ...]
    data: Tensor
    """[bytes] u8"""

    def metadata(self) -> dict[str, Any]:
        """All but the data, as JSON for `allocate`."""
        return {"bytes": len(self.data), "slots": [slot.to_json() for slot in self.slots]}

    @classmethod
    def allocate(cls, metadata: Mapping[str, Any], device: torch.device) -> Bucket:
        """A bucket with uninitialized data, to be received."""
        slots = tuple(TensorSlot.from_json(slot) for slot in metadata["slots"])
        return cls(slots, torch.empty(metadata["bytes"], dtype=torch.uint8, device=device))

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """The weights as views of the bucket's memory."""
        return ((slot.name, slot.view(self.data)) for slot in self.slots)


def pack_buckets(weights: Iterable[tuple[str, Tensor]], device: torch.device) -> tuple[Bucket, ...]:
    """Copy weights to `device`, into buckets of `BUCKET_BYTES`; a larger weight has a bucket of its own."""
    buckets: list[Bucket] = []
    slots: list[TensorSlot] = []
    data, used = torch.empty(0, dtype=torch.uint8), 0
    for name, weight in weights:
        size = weight.numel() * weight.element_size()
        offset = -(-used // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        if offset + size > len(data):
            if slots:
                buckets.append(Bucket(tuple(slots), data[:used]))
            data = torch.empty(max(size, BUCKET_BYTES), dtype=torch.uint8, device=device)
            slots, offset = [], 0
        slot = TensorSlot(name, weight.dtype, tuple(weight.shape), offset)
        slot.view(data).copy_(weight.detach())
        slots.append(slot)
        used = offset + size
    if slots:
        buckets.append(Bucket(tuple(slots), data[:used]))
    return tuple(buckets)


class BucketReceiver:
    """Receives weights as one rank of a process group, which it keeps for the next transfer."""

    def __init__(self, rank: int, device: torch.device, check: StopCheck = never_stop) -> None:
        """`device` is that of the weights under NCCL and CUDA IPC; `check` is called during waits."""
        self._rank = rank
        self._device = device
        self._check = check
        self._group: WeightProcessGroup | SharedBufferGroup | None = None
        self._rendezvous: Rendezvous | None = None

    def receive(
        self, rendezvous: Rendezvous, buckets: Sequence[Mapping[str, Any]], host: str
    ) -> Iterator[tuple[str, Tensor]]:
        """The weights of these buckets, as they arrive, at `host`, an address of this machine.

        Raises `ProcessGroupBroken` if the trainer or another receiver is gone.
        """
        if self._group is None or rendezvous != self._rendezvous:
            self.leave()
            self._group = call_with_checks(
                lambda: join_group(rendezvous, self._rank, host, self._device), self._check
            )
            self._rendezvous = rendezvous
        for metadata in buckets:
            bucket = Bucket.allocate(metadata, self._group.device)
            self._group.broadcast(bucket.data, self._check)
            yield from bucket.weights()

    def leave(self) -> None:
        """Leave the process group, if there is one."""
        self._group = self._rendezvous = None


class UntilBroken:
    """Weights up to the end of the transfer, or to its failure.

    An exception in the middle of vLLM's reload would leave half of a layer behind, which the next reload would complete
    with new weights; an end of the weights does not. Tensors that no engine loads are left out.
    """

    def __init__(self, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        self._weights = weights
        self.reason: str | None = None
        """Reason of the failure; None while there is none."""

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        try:
            for name, tensor in self._weights:
                if not name.startswith(ANNOTATION_PREFIX):
                    yield name, tensor
        except ProcessGroupBroken as error:
            self.reason = str(error) or "the trainer is gone"


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
