"""Buckets: weights packed end to end into few large byte tensors, each sent at once; their receiver."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, cast

import torch
from torch import Tensor

from strop.inference.weight_transfer.process_group import ProcessGroupBroken, Rendezvous, WeightProcessGroup
from strop.inference.weight_transfer.shared_buffer import SharedBufferGroup, join_group
from strop.workers.waiting import StopCheck, call_with_checks, never_stop

BUCKET_BYTES = 64 << 20
_ALIGNMENT_BYTES = 16
ANNOTATION_PREFIX = "strop."
"""Prefix of the names of tensors that accompany the weights of a version and that no engine loads."""


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
