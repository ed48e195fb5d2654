"""Broadcast between processes that share one GPU, through a buffer in its memory that all of them open (CUDA IPC).

The tests run the protocol with a buffer in shared memory of the CPU. `_export_cuda` and `_open_cuda` have never been
run, for lack of a GPU.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from strop.inference.weight_transfer.process_group import Rendezvous, WeightProcessGroup
from strop.workers.shared_file import temporary_parent
from strop.workers.waiting import StopCheck, never_stop

BUFFER_BYTES = 64 << 20
_HANDLE_BYTES = 4096
"""Size of the message with the buffer's handle."""
_CPU = torch.device("cpu")


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
