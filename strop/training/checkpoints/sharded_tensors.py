"""Reader of a checkpoint's tensors, from one file or from one file per rank, split along the first dimension."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.distributed.tensor import DTensor

from strop.errors import CheckpointError
from strop.models.dtensor import distribute_like
from strop.training.checkpoints.file_names import shard_file_name


class ShardedTensors:
    """Tensors of a file, or of its shards from any number of ranks; each is read on request.

    Raises CheckpointError for a file that is missing or damaged.
    """

    def __init__(self, folder: Path, file: str) -> None:
        self.path = folder / file
        self.shapes: dict[str, torch.Size] = {}
        """Shapes of the full tensors, by name."""
        self._files: dict[str, list[tuple[Any, int]]] = {}
        """Opened files with shards of each tensor, in the order of ranks, and the number of rows in each."""
        for path in _files(self.path):
            self._open(path)

    def _open(self, path: Path) -> None:
        try:
            opened: Any = safe_open(path, framework="pt")
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from error
        for name in opened.keys():  # noqa: SIM118  (not a mapping)
            shape = opened.get_slice(name).get_shape()
            rows, rest = (shape[0], shape[1:]) if shape else (1, [])
            shards = self._files.setdefault(name, [])
            shards.append((opened, rows))
            total = sum(rows for _, rows in shards)
            self.shapes[name] = torch.Size([total, *rest] if shape else [])

    def read(self, name: str) -> Tensor:
        """The full tensor, on the CPU, in its own storage."""
        if shape := self.shapes[name]:
            return self._rows(name, 0, shape[0])
        number: Tensor = self._files[name][0][0].get_tensor(name)
        return number.clone()

    def read_like(self, name: str, like: Tensor) -> Tensor:
        """The tensor in the layout of `like`, if that has its shape; a sharded one reads this rank's rows only."""
        if isinstance(like, DTensor) and like.shape == self.shapes[name]:
            return distribute_like(lambda first, end: self._rows(name, first, end), like)
        return self.read(name)

    def _rows(self, name: str, first: int, end: int) -> Tensor:
        shards, start = self._files[name], 0
        found = [shards[0][0].get_slice(name)[0:0]]
        for opened, rows in shards:
            low, high = max(first - start, 0), min(end - start, rows)
            if low < high:
                found.append(opened.get_slice(name)[low:high])
            start += rows
        return torch.cat(found)


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
