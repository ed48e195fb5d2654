"""Tensors in memory that several processes of this machine map: one copy of a model's weights for all of them.

The memory is an anonymous file of Linux (`memfd_create`): it has no name in any folder, is not limited by the size of
/dev/shm, and is freed with the last process that maps it, however that ends.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Place of one tensor in the shared memory."""

    storage: int
    """Number of its storage."""
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    first: int
    """Index of its first element in the storage."""


@dataclass(frozen=True, slots=True)
class SharedTensorsHandle:
    """Reference with which another process of this user maps the tensors, as long as their owner runs."""

    path: str
    storages: tuple[tuple[int, int], ...]
    """First byte, a multiple of the page size, and number of bytes of each storage."""
    places: Mapping[str, TensorPlace]
    """Place of each tensor, by name."""


class SharedTensors:
    """Tensors by name in shared memory. Tensors that shared a storage still do."""

    def __init__(self, handle: SharedTensorsHandle, file: int) -> None:
        """Maps the tensors of an open file; see `of`, `zeros` and `open`."""
        self.handle = handle
        # One map of all: a map of Python keeps a descriptor of its file, and a process may have 1,024.
        memory = mmap.mmap(file, 0)
        self._storages = [_part(memory, first, size) for first, size in handle.storages]
        self._numbers = {each.data_ptr(): number for number, each in enumerate(self._storages)}
        self.tensors: dict[str, Tensor] = {name: self.at(place) for name, place in handle.places.items()}

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> SharedTensors:
        """Copies of CPU tensors. Other processes can map them as long as this object exists."""
        storages = [tensor.untyped_storage() for tensor in tensors.values()]
        sizes = {each.data_ptr(): each.nbytes() for each in storages}
        numbers = {address: number for number, address in enumerate(sizes)}
        places = {
            name: _place(tensor, numbers[storage.data_ptr()])
            for (name, tensor), storage in zip(tensors.items(), storages, strict=True)
        }
        shared = cls._new(tuple(sizes.values()), places)
        for name, tensor in tensors.items():
            shared.tensors[name].copy_(tensor.detach())
        return shared

    @classmethod
    def zeros(cls, like: Mapping[str, Tensor]) -> SharedTensors:
        """Contiguous zeros with the shapes and data types of tensors, each in a storage of its own."""
        empty = {name: torch.empty(t.shape, dtype=t.dtype, device="meta") for name, t in like.items()}
        places = {name: _place(tensor, number) for number, (name, tensor) in enumerate(empty.items())}
        return cls._new(tuple(tensor.nbytes for tensor in empty.values()), places)

    @classmethod
    def _new(cls, sizes: Sequence[int], places: Mapping[str, TensorPlace]) -> SharedTensors:
        """Zeros in storages of these numbers of bytes."""
        starts, end = [], 0
        for size in sizes:
            starts.append(end)
            end += -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        file = os.memfd_create("strop")
        os.ftruncate(file, max(end, mmap.PAGESIZE))
        path = f"/proc/{os.getpid()}/fd/{file}"
        shared = cls(SharedTensorsHandle(path, tuple(zip(starts, sizes, strict=True)), places), file)
        weakref.finalize(shared, os.close, file)
        return shared

    @classmethod
    def open(cls, handle: SharedTensorsHandle) -> SharedTensors:
        """The tensors of another process."""
        file = os.open(handle.path, os.O_RDWR)
        try:
            return cls(handle, file)
        finally:
            os.close(file)

    def at(self, place: TensorPlace) -> Tensor:
        """The tensor at a place."""
        storage = self._storages[place.storage]
        return storage.view(place.dtype).as_strided(place.shape, place.stride, place.first)

    def place_of(self, tensor: Tensor) -> TensorPlace | None:
        """The place of a tensor; None for one that is not in this memory."""
        number = self._numbers.get(tensor.untyped_storage().data_ptr())
        if number is None:
            return None
        return _place(tensor, number)


def module_tensors(modules: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    """Parameters and saved buffers of modules, by the module's key and their name."""
    return {
        f"{key}/{name}": tensor
        for key, module in modules.items()
        for name, tensor in module.state_dict(keep_vars=True).items()
    }


def use_tensors(tensors: Mapping[str, Tensor], shared: SharedTensors) -> None:
    """Let tensors use the shared memory of the same names, with the values there."""
    for name, tensor in tensors.items():
        tensor.data = shared.tensors[name]


def _place(tensor: Tensor, storage: int) -> TensorPlace:
    return TensorPlace(
        storage, tensor.dtype, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())
    )


def _part(memory: mmap.mmap, first: int, size: int) -> Tensor:
    """[bytes] uint8"""
    if size == 0:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(memory, dtype=torch.uint8, count=size, offset=first)
