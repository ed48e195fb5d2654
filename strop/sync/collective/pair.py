"""Trainer and explorer as a process group of two, which is no one else's: not that of the trainer's ranks.

`broadcast` from the trainer (rank 0) to the explorer (rank 1); both call it with tensors of one size.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import torch
from torch import Tensor
from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore  # type: ignore[attr-defined]

from strop.buffer.wait import Check

Backend = Literal["gloo", "nccl"]
JOIN_SECONDS = 10.0
"""So long one waits for the other to join."""
PART_SECONDS = 30.0
"""So long a part of a transfer may take."""
_PART_BYTES = 64 << 20
_PAUSE_SECONDS = 0.001
_ERROR_HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"


class PairBroken(Exception):
    """The other one is gone, or has been silent for too long."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where the two find each other: a store of torch's, kept by the trainer."""

    host: str
    port: int
    name: str
    """No two pairs have one name."""
    backend: Backend


class Pair:
    """One of the two."""

    def __init__(self, meeting: Meeting, rank: Literal[0, 1], host: str, device: torch.device) -> None:
        """Join, from `host`, an address of this machine. Raises `PairBroken` where the other one does not.

        `device` is where tensors must be that are broadcast: the CPU under gloo.
        """
        self.device = device
        limit = timedelta(seconds=JOIN_SECONDS)
        try:
            met = TCPStore(meeting.host, meeting.port, timeout=limit, wait_for_workers=False)
            store = PrefixStore(meeting.name, met)
            gloo = meeting.backend == "gloo"
            self._group = _gloo(store, rank, host) if gloo else _nccl(store, rank, device)
        except RuntimeError as error:  # torch's for all that has to do with the other one
            raise PairBroken(str(error)) from error

    def broadcast(self, content: Tensor, check: Check) -> None:
        """From rank 0's tensor into rank 1's. Raises `PairBroken`, and what `check` raises."""
        for part in torch.split(content, _PART_BYTES):
            try:
                self._broadcast(part, check)
            except RuntimeError as error:
                raise PairBroken(str(error)) from error
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _broadcast(self, part: Tensor, check: Check) -> None:
        work = self._group.broadcast(part, 0)
        until = time.monotonic() + PART_SECONDS
        while not work.is_completed():
            if time.monotonic() > until:
                self._group.abort()
                raise PairBroken(f"no part of a transfer has come through in {PART_SECONDS:.0f} s")
            check()
            time.sleep(_PAUSE_SECONDS)
        work.wait()


def open_store(host: str) -> TCPStore:
    """The store where pairs meet, on a port of its own at `host`."""
    with socket.create_server((host, 0)) as listening:
        port = listening.getsockname()[1]
        return TCPStore(
            host, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach()
        )


def gpu_of(device: torch.device) -> str | None:
    """The GPU's own number in the world; None for the CPU."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else None


def _gloo(store: PrefixStore, rank: int, host: str) -> Any:
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = timedelta(seconds=PART_SECONDS)
    options._devices = [ProcessGroupGloo.create_device(hostname=host)]
    return ProcessGroupGloo(store, rank, 2, options)


def _nccl(store: PrefixStore, rank: int, device: torch.device) -> Any:
    """NCCL's watchdog would end the process when the other one is gone; here that is not the end."""
    from torch.distributed import ProcessGroupNCCL

    torch.cuda.set_device(device)
    options = ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=PART_SECONDS)
    with _environment(_ERROR_HANDLING, "0"):
        return ProcessGroupNCCL(store, rank, 2, options)


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
