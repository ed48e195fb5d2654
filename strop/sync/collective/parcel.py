"""Weights packed end to end into few large tensors of bytes, which go from one process to another at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, cast

import torch
from torch import Tensor

BUCKET_BYTES = 64 << 20
_ALIGNED_BYTES = 16


@dataclass(frozen=True, slots=True)
class Label:
    """Where one weight stands in its bucket."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    """Of its first byte."""

    def of(self, content: Tensor) -> Tensor:
        """The weight, in the bucket's own memory."""
        part = content[self.start : self.start + self.dtype.itemsize * prod(self.shape)]
        return part.view(self.dtype).view(self.shape)

    def to_json(self) -> list[Any]:
        """What `from_json` reads."""
        return [self.name, str(self.dtype).removeprefix("torch."), list(self.shape), self.start]

    @classmethod
    def from_json(cls, values: list[Any]) -> Label:
        """What `to_json` gave."""
        name, dtype, shape, start = values
        return cls(name, cast(torch.dtype, getattr(torch, dtype)), tuple(shape), start)


@dataclass(frozen=True, slots=True)
class Bucket:
    """Some of the weights."""

    labels: tuple[Label, ...]
    content: Tensor
    """[bytes] u8"""

    def to_json(self) -> dict[str, Any]:
        """All but the content: what `empty` reads."""
        return {"bytes": len(self.content), "labels": [label.to_json() for label in self.labels]}

    @classmethod
    def empty(cls, values: dict[str, Any], device: torch.device) -> Bucket:
        """One to be filled."""
        labels = tuple(Label.from_json(label) for label in values["labels"])
        return cls(labels, torch.empty(values["bytes"], dtype=torch.uint8, device=device))

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """In the bucket's own memory."""
        return ((label.name, label.of(self.content)) for label in self.labels)


def pack(weights: Iterable[tuple[str, Tensor]], device: torch.device) -> tuple[Bucket, ...]:
    """Copies of the weights on `device`, in buckets of `BUCKET_BYTES`; a larger weight has one of its own."""
    buckets: list[Bucket] = []
    labels: list[Label] = []
    content, used = torch.empty(0, dtype=torch.uint8), 0
    for name, weight in weights:
        size = weight.numel() * weight.element_size()
        start = -(-used // _ALIGNED_BYTES) * _ALIGNED_BYTES
        if start + size > len(content):
            if labels:
                buckets.append(Bucket(tuple(labels), content[:used]))
            content = torch.empty(max(size, BUCKET_BYTES), dtype=torch.uint8, device=device)
            labels, start = [], 0
        label = Label(name, weight.dtype, tuple(weight.shape), start)
        label.of(content).copy_(weight.detach())
        labels.append(label)
        used = start + size
    if labels:
        buckets.append(Bucket(tuple(labels), content[:used]))
    return tuple(buckets)
