"""Files of a checkpoint: their names, and writing of them: concurrency, syncing to disk, and checksums."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from strop.config.schema.record import SaveConcurrency
from strop.protocols import FileChecksum
from strop.workers.files import fsync_path

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
