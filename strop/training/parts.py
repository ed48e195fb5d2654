"""A checkpoint's tensors: whole in one file, or cut along their first dimension into one for each rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.distributed.tensor import DTensor

from strop.errors import CheckpointError
from strop.models.shards import laid_out


def part_name(file: str, rank: int, ranks: int) -> str:
    """The file of one rank's parts, counted as Hugging Face counts: `weights-00001-of-00002.safetensors`."""
    if ranks == 1:
        return file
    path = Path(file)
    return f"{path.stem}-{rank + 1:05d}-of-{ranks:05d}{path.suffix}"


class StoredTensors:
    """What stands in a file, or in its parts, whoever wrote them; a tensor is read when it is asked for.

    Raises CheckpointError for a file that is missing or damaged.
    """

    def __init__(self, folder: Path, file: str) -> None:
        self.path = folder / file
        self.shapes: dict[str, torch.Size] = {}
        """Of the whole tensors."""
        self._files: dict[str, list[tuple[Any, int]]] = {}
        """Those with parts of each tensor in the order of ranks, and how many rows each has."""
        for path in _files(self.path):
            self._open(path)

    def _open(self, path: Path) -> None:
        try:
            opened: Any = safe_open(path, framework="pt")
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from error
        for name in opened.keys():  # noqa: SIM118  (it is no mapping)
            shape = opened.get_slice(name).get_shape()
            rows, rest = (shape[0], shape[1:]) if shape else (1, [])
            parts = self._files.setdefault(name, [])
            parts.append((opened, rows))
            before = sum(rows for _, rows in parts)
            self.shapes[name] = torch.Size([before, *rest] if shape else [])

    def read(self, name: str) -> Tensor:
        """The whole tensor, on the CPU, in storage of its own."""
        if shape := self.shapes[name]:
            return self._rows(name, 0, shape[0])
        number: Tensor = self._files[name][0][0].get_tensor(name)
        return number.clone()

    def read_like(self, name: str, like: Tensor) -> Tensor:
        """The same, laid out as `like` where that has its shape; only this rank's rows are read then."""
        if isinstance(like, DTensor) and like.shape == self.shapes[name]:
            return laid_out(lambda first, end: self._rows(name, first, end), like)
        return self.read(name)

    def _rows(self, name: str, first: int, end: int) -> Tensor:
        parts, start = self._files[name], 0
        found = [parts[0][0].get_slice(name)[0:0]]
        for opened, rows in parts:
            low, high = max(first - start, 0), min(end - start, rows)
            if low < high:
                found.append(opened.get_slice(name)[low:high])
            start += rows
        return torch.cat(found)


def _files(path: Path) -> list[Path]:
    """The file itself, or all its parts."""
    if path.exists():
        return [path]
    found = sorted(path.parent.glob(f"{path.stem}-*-of-*{path.suffix}"))
    whole = [part_name(path.name, rank, len(found)) for rank in range(len(found))]
    if not found or [part.name for part in found] != whole:
        there = ", ".join(part.name for part in found) or "no part of it"
        raise CheckpointError(f"{path} cannot be read: it is not there, and of its parts {there}.")
    return found
