"""Files of a checkpoint: their names, writing with checksums, and tensors that are read back bit for bit."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from strop.config.schema.checkpoint import SaveConcurrency
from strop.errors import CheckpointError
from strop.models.formats.safetensors_file import save_tensors
from strop.protocols import FileChecksum
from strop.workers.files import fsync_path


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


WEIGHTS_FILE = "weights.safetensors"
"""Trained weights: all of them, or with LoRA the adapter's."""
OPTIMIZER_TENSORS_FILE = "optimizer.safetensors"
"""Tensors of the optimizer's state."""
OPTIMIZER_SCALARS_FILE = "optimizer.json"
"""Numbers of the optimizer's state."""
REFERENCE_FILE = "reference.safetensors"
"""Weights of a reference model that changes (`algorithm.reference_sync`)."""
RNG_FILE = "rng.safetensors"
"""States of torch's random generators."""


def shard_file_name(file: str, rank: int, ranks: int) -> str:
    """File of one rank's shards, numbered like Hugging Face's: `weights-00001-of-00002.safetensors`."""
    if ranks == 1:
        return file
    path = Path(file)
    return f"{path.stem}-{rank + 1:05d}-of-{ranks:05d}{path.suffix}"


def rng_file_name(rank: int) -> str:
    """File of a rank's random state."""
    return f"rank-{rank}-{RNG_FILE}" if rank else RNG_FILE


FileWriters = Mapping[str, Callable[[Path], None]]
"""Writer of each file, by the file's path in the checkpoint's folder."""
_CHUNK_BYTES = 1 << 22


def writes_in_parallel(writers: SaveConcurrency) -> bool:
    """Whether one process writes several files at the same time."""
    return writers != "thread"


def write_order(writers: SaveConcurrency, nodes: tuple[str, ...]) -> tuple[frozenset[int], ...]:
    """Sets of ranks that write at the same time, in the order of their turns; `nodes` is the node of each rank."""
    ranks = range(len(nodes))
    match writers:
        case "all":
            return (frozenset(ranks),)
        case "node":
            names = dict.fromkeys(nodes)
            return tuple(frozenset(r for r in ranks if nodes[r] == node) for node in names)
        case "process" | "thread":
            return tuple(frozenset({r}) for r in ranks)


def write_files(folder: Path, files: FileWriters, *, parallel: bool) -> dict[str, FileChecksum]:
    """Write all files, with `parallel` each in its own thread; returns size and checksum of each.

    Raises the first error, after all writes have ended.
    """
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
    # A rank that holds no part of any tensor has no file to write.
    n_threads = max(1, len(files)) if parallel else 1
    with ThreadPoolExecutor(n_threads, "strop-save") as threads:
        written = {name: threads.submit(_write, folder / name, write) for name, write in files.items()}
    return {name: future.result() for name, future in written.items()}


def fsync_and_checksum(path: Path) -> FileChecksum:
    """Sync a file to disk; returns its size and checksum."""
    fsync_path(path)
    return FileChecksum(path.stat().st_size, crc32(path))


def crc32(path: Path) -> str:
    """CRC-32 of a file, as eight hexadecimal digits."""
    total = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            total = zlib.crc32(chunk, total)
    return f"{total:08x}"


def _write(path: Path, write: Callable[[Path], None]) -> FileChecksum:
    write(path)
    return fsync_and_checksum(path)
