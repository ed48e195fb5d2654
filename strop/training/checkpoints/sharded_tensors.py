"""Reader of a checkpoint's tensors, from one file or from one file per rank, each with parts of them.

A part's place in its tensor is in the file's metadata (`parts_metadata`); files without it, which are those of earlier
versions and of one process, hold rows in the order of the files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.distributed.tensor import DTensor

from strop.errors import CheckpointError
from strop.models.dtensor import Block, distribute_like, local_block
from strop.training.checkpoints.file_writer import shard_file_name

_PARTS_KEY = "strop_parts"
"""Key of a file's metadata: by tensor, the first index of the part in each dimension, and the full shape."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a tensor in an opened file."""

    file: Any
    block: Block


def parts_metadata(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Metadata of a file with this rank's parts of tensors; empty where all are whole."""
    parts = {
        name: {"first": [each.start for each in local_block(tensor)], "shape": list(tensor.shape)}
        for name, tensor in tensors.items()
        if isinstance(tensor, DTensor)
    }
    return {_PARTS_KEY: json.dumps(parts)} if parts else {}


class ShardedTensors:
    """Tensors of a file, or of its shards from any number of ranks; each is read on request.

    Raises CheckpointError for a file that is missing or damaged.
    """

    def __init__(self, folder: Path, file: str) -> None:
        self.path = folder / file
        self.shapes: dict[str, torch.Size] = {}
        """Shapes of the full tensors, by name."""
        self._parts: dict[str, list[_Part]] = {}
        for path in _files(self.path):
            self._open(path)

    def _open(self, path: Path) -> None:
        try:
            opened: Any = safe_open(path, framework="pt")
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from error
        placed = json.loads((opened.metadata() or {}).get(_PARTS_KEY, "{}"))
        for name in opened.keys():  # noqa: SIM118  (not a mapping)
            shape = opened.get_slice(name).get_shape()
            parts = self._parts.setdefault(name, [])
            if name in placed:
                first, full = placed[name]["first"], placed[name]["shape"]
            else:
                rows = sum(part.block[0].stop - part.block[0].start for part in parts) if shape else 0
                first = [rows, *[0] * (len(shape) - 1)][: len(shape)]
                full = [rows + shape[0], *shape[1:]] if shape else []
            block = tuple(slice(start, start + size) for start, size in zip(first, shape, strict=True))
            parts.append(_Part(opened, block))
            self.shapes[name] = torch.Size(full)

    def read(self, name: str) -> Tensor:
        """The full tensor, on the CPU, in its own storage."""
        return self._block(name, tuple(slice(0, size) for size in self.shapes[name]))

    def read_like(self, name: str, like: Tensor) -> Tensor:
        """The tensor in the layout of `like`, if that has its shape; a sharded one reads this rank's part only."""
        if isinstance(like, DTensor) and like.shape == self.shapes[name]:
            return distribute_like(lambda block: self._block(name, block), like)
        return self.read(name)

    def _block(self, name: str, block: Block) -> Tensor:
        parts = self._parts[name]
        if not block:
            number: Tensor = parts[0].file.get_tensor(name)
            return number.clone()
        dtype = parts[0].file.get_slice(name)[0:0].dtype
        result = torch.empty([each.stop - each.start for each in block], dtype=dtype)
        for part in parts:
            pairs = list(zip(block, part.block, strict=True))
            shared = [(max(own.start, of.start), min(own.stop, of.stop)) for own, of in pairs]
            if all(first < end for first, end in shared):
                within = tuple(
                    slice(first - of.start, end - of.start)
                    for (first, end), (_, of) in zip(shared, pairs, strict=True)
                )
                into = tuple(
                    slice(first - own.start, end - own.start)
                    for (first, end), (own, _) in zip(shared, pairs, strict=True)
                )
                result[into] = part.file.get_slice(name)[within]
        return result


def _files(path: Path) -> list[Path]:
    """The file itself, or all its shards."""
    if path.exists():
        return [path]
    found = sorted(path.parent.glob(f"{path.stem}-*-of-*{path.suffix}"))
    complete = [shard_file_name(path.name, rank, len(found)) for rank in range(len(found))]
    if not found or [shard.name for shard in found] != complete:
        existing = ", ".join(shard.name for shard in found) or "none"
        raise CheckpointError(
            f"{path} cannot be read: it does not exist, and of its shards {existing} exist."
        )
    return found
