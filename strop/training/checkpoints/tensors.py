"""Tensors of a checkpoint: the state of a model and its optimizer in this process, their files, and a reader of these.

The files are safetensors, which are read back bit for bit; there is one, or one per rank with parts of the tensors. A
part's place in its tensor is in the file's metadata (`_parts_metadata`); files without it, which are those of earlier
versions and of one process, hold rows in the order of the files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed.tensor import DTensor

from strop.config.schema.record import SaveConcurrency
from strop.errors import CheckpointError
from strop.models.dtensor import Block, distribute_like, local_block, local_tensor
from strop.models.formats.safetensors_files import save_tensors
from strop.protocols import FileChecksum
from strop.training.checkpoints.file_writer import (
    FileWriters,
    shard_file_name,
    write_files,
    writes_in_parallel,
)

_PARTS_KEY = "strop_parts"
"""Key of a file's metadata: by tensor, the first index of the part in each dimension, and the full shape."""


@dataclass(frozen=True, slots=True)
class LocalSnapshot:
    """Files of a checkpoint before they are written."""

    tensors: Mapping[str, Mapping[str, Tensor]]
    """Tensors of each safetensors file, by name; not copies."""
    texts: Mapping[str, str]
    """Contents of the text files, by file name."""
    save_concurrency: SaveConcurrency
    """Which ranks and threads write at the same time."""
    own_files: frozenset[str] = frozenset()
    """Files of whole tensors that no other rank has, so that this one writes all of them."""

    def begin_write(self, folder: Path, *, copied: bool = False) -> Callable[[], Mapping[str, FileChecksum]]:
        """Copy the tensors if `copied`; the returned function writes all files and returns their checksums."""
        return partial(
            write_files,
            folder,
            self.file_writers(copied=copied),
            parallel=writes_in_parallel(self.save_concurrency),
        )

    def file_writers(self, *, copied: bool) -> FileWriters:
        """Writer of each file, for this process's tensors or shards, or for a copy made now."""
        tensors = {file: _held(named, copied=copied) for file, named in self.tensors.items()}
        return {
            **{file: partial(_write_text, text=text) for file, text in self.texts.items()},
            **{
                file: partial(write_tensors, tensors=named, metadata=_parts_metadata(self.tensors[file]))
                for file, named in tensors.items()
            },
        }


def _write_text(path: Path, text: str) -> None:
    path.write_text(text)


def _held(named: Mapping[str, Tensor], *, copied: bool) -> dict[str, Tensor]:
    return {name: local_tensor(tensor.detach()).to("cpu", copy=copied) for name, tensor in named.items()}


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors by name, and metadata. Of a view of a larger storage, only the view is written."""
    named = {name: _alone(tensor.detach()) for name, tensor in tensors.items()}
    save_tensors(named, path, metadata)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Tensors of a file by name, on the CPU, each in its own storage.

    Raises CheckpointError for a missing or damaged file.
    """
    try:
        return {name: tensor.clone() for name, tensor in load_file(path).items()}
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def get_rng_state(device: torch.device) -> dict[str, Tensor]:
    """States of the torch random generators that training uses."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_rng_state(device: torch.device, states: Mapping[str, Tensor]) -> None:
    """Restore states from `get_rng_state`."""
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)


def _alone(tensor: Tensor) -> Tensor:
    owns_storage = tensor.untyped_storage().nbytes() == tensor.nbytes
    return (
        tensor
        if owns_storage and tensor.is_contiguous()
        else tensor.clone(memory_format=torch.contiguous_format)
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a tensor in an opened file."""

    file: Any
    block: Block


def _parts_metadata(tensors: Mapping[str, Tensor]) -> dict[str, str]:
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
