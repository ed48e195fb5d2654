"""A process group of the trainer and the receivers of its weights, separate from that of the trainer's ranks.

`broadcast` sends from the trainer (rank 0) to the others; all call it with tensors of one size. The receivers are an
explorer, or the processes of one engine.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import torch
from torch import Tensor
from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore  # type: ignore[attr-defined]

from strop.workers.waiting import StopCheck, wait_until

CollectiveBackend = Literal["gloo", "nccl", "cuda_ipc"]
JOIN_TIMEOUT_SECONDS = 10.0
"""Timeout for the other processes to join."""
BROADCAST_TIMEOUT_SECONDS = 30.0
"""Timeout for one chunk of a transfer."""
_CHUNK_BYTES = 64 << 20
_POLL_SECONDS = 0.001
_ERROR_HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"


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
        timeout = timedelta(seconds=JOIN_TIMEOUT_SECONDS)
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
