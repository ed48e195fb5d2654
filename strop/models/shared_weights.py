"""Weights of a loaded model that an inference engine or another process uses in place.

Projections that read the same input are stored in one tensor, q, k, v and gate, up: the native engine multiplies once
where Hugging Face's modules multiply three times or twice. `fuse_storage` makes the trainer's own parameters views of
the fused tensors: publishing copies nothing, and the optimizer updates the separate parameters in place.

Several processes of this machine map one copy of a model's weights (`SharedTensors`). The memory is an anonymous file
of Linux (`memfd_create`): it has no name in any folder, is not limited by the size of /dev/shm, and is freed with the
last process that maps it, however that ends.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from strop.models.quantization import QuantizedWeight
from strop.protocols import ImageProcessor, LowRankUpdate, SharedWeights, UnmergedWeights

_FUSED_PROJECTIONS: tuple[tuple[str, ...], ...] = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Names of sibling linear layers that read the same input."""


def model_weights(
    model: PreTrainedModel,
    *,
    dtype: torch.dtype | None = None,
    image_processor: Callable[[], ImageProcessor] | None = None,
) -> SharedWeights:
    """Handle of a model's weights, without those of its adapters; `dtype` None is the model's own."""
    return SharedWeights(
        config=model.config,
        generation_config=getattr(model, "generation_config", None),
        device=model.device,
        dtype=dtype or model.dtype,
        tensors=partial(named_weights, model),
        image_processor=image_processor,
    )


@dataclass(frozen=True, slots=True)
class MappedWeights:
    """Weights in shared memory, for inference engines in other processes of this machine, to which it can be sent."""

    config: Any
    generation_config: Any
    dtype: torch.dtype
    handle: SharedTensorsHandle
    places: Mapping[str, TensorPlace]
    """Place of each of the model's own weights, by Hugging Face's name."""
    adapter: Mapping[str, tuple[TensorPlace, TensorPlace, float]] | None
    """Places of the two matrices of each `LowRankUpdate`, and its scale; None for a model without an adapter."""
    readers: int
    """Number of engines that have a share of this machine's cores."""
    threads: int
    """Number of threads of each."""

    @classmethod
    def of(
        cls, weights: SharedWeights, shared: SharedTensors, readers: int, threads: int
    ) -> MappedWeights | None:
        """The weights that are in `shared`; None where some are not, as merged ones."""
        own = weights if weights.unmerged is None else weights.unmerged
        places = {name: shared.place_of(tensor) for name, tensor in own.tensors()}
        found = {name: place for name, place in places.items() if place is not None}
        if len(found) < len(places):
            return None
        adapter = None
        if weights.unmerged is not None:
            adapter = {}
            for name, update in weights.unmerged.adapter.items():
                a, b = shared.place_of(update.a), shared.place_of(update.b)
                assert a is not None and b is not None  # all parameters are shared
                adapter[name] = (a, b, update.scale)
        return cls(
            config=weights.config,
            generation_config=weights.generation_config,
            dtype=weights.dtype,
            handle=shared.handle,
            places=found,
            adapter=adapter,
            readers=readers,
            threads=threads,
        )

    def open(self, image_processor: Callable[[], ImageProcessor] | None) -> SharedWeights:
        """The weights in this process, which the trainer changes in place."""
        shared = SharedTensors.open(self.handle)

        def tensors() -> Iterator[tuple[str, torch.Tensor]]:
            return ((name, shared.at(place)) for name, place in self.places.items())

        adapter = None
        if self.adapter is not None:
            adapter = {
                name: LowRankUpdate(shared.at(a), shared.at(b), scale)
                for name, (a, b, scale) in self.adapter.items()
            }
        return SharedWeights(
            config=self.config,
            generation_config=self.generation_config,
            device=torch.device("cpu"),
            dtype=self.dtype,
            tensors=tensors,
            image_processor=image_processor,
            unmerged=None if adapter is None else UnmergedWeights(tensors, adapter),
        )


def named_weights(model: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    """A model's tensors under Hugging Face's names, without those of an adapter."""
    get_base_model = getattr(model, "get_base_model", lambda: model)
    for name, tensor in get_base_model().state_dict().items():
        if ".lora_" not in name:
            yield plain_name(name), tensor


def plain_name(name: str) -> str:
    """Hugging Face's name of a weight that PEFT has wrapped, once or several times."""
    return ".".join(part for part in name.split(".") if part != "base_layer")


def fuse_storage(model: nn.Module) -> None:
    """Make the weights and biases of sibling projections views of one tensor each.

    Values, parameter objects and gradients do not change. Siblings that differ in dtype, device or input
    size are left as they are. Of a projection with an adapter, the base layer is fused.
    """
    for module in model.modules():
        for names in _FUSED_PROJECTIONS:
            siblings = [_linear(getattr(module, name, None)) for name in names]
            linears = [linear for linear in siblings if linear is not None]
            if len(linears) == len(names):
                for kind in ("weight", "bias"):
                    _fuse([getattr(linear, kind) for linear in linears])


def concatenated_view(parts: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """`torch.cat(parts)` without a copy if the parts are consecutive in memory; else None."""
    first = parts[0].detach()
    rows, next_address = 0, first.data_ptr()
    for part in parts:
        fits = part.dtype == first.dtype and part.device == first.device and part.shape[1:] == first.shape[1:]
        same_storage = part.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not (fits and same_storage and part.is_contiguous() and part.data_ptr() == next_address):
            return None
        rows += part.shape[0]
        next_address += part.numel() * part.element_size()
    return first.as_strided((rows, *first.shape[1:]), first.stride())


def _linear(module: object) -> nn.Linear | None:
    inner = getattr(module, "base_layer", module)
    return inner if isinstance(inner, nn.Linear) else None


def _fuse(parameters: Sequence[nn.Parameter | None]) -> None:
    present = [parameter for parameter in parameters if parameter is not None]
    kinds = {(p.dtype, p.device, p.shape[1:]) for p in present}
    if any(isinstance(parameter, QuantizedWeight) for parameter in present):
        return  # the engine stacks their codes
    if len(present) != len(parameters) or len(kinds) != 1 or concatenated_view(present) is not None:
        return
    joined = torch.cat([parameter.detach() for parameter in present])
    for parameter, view in zip(present, torch.split(joined, [len(p) for p in present]), strict=True):
        parameter.data = view


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
