"""Writing files of a checkpoint: who may at the same time, and how each is brought to the disk."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from strop.config.schema.run import Writers
from strop.protocols import WrittenFile

Files = Mapping[str, Callable[[Path], None]]
"""What writes each file, by its path inside the checkpoint's folder."""
_CHUNK = 1 << 22


def side_by_side(writers: Writers) -> bool:
    """Whether the threads of one process may write at once."""
    return writers != "thread"


def turns(writers: Writers, nodes: tuple[str, ...]) -> tuple[frozenset[int], ...]:
    """The ranks that may write at once, in the order of their turns; `nodes` says where each rank is."""
    ranks = range(len(nodes))
    match writers:
        case "all":
            return (frozenset(ranks),)
        case "node":
            places = dict.fromkeys(nodes)
            return tuple(frozenset(r for r in ranks if nodes[r] == node) for node in places)
        case "process" | "thread":
            return tuple(frozenset({r}) for r in ranks)


def write_files(folder: Path, files: Files, *, together: bool) -> dict[str, WrittenFile]:
    """Write them all, each by a thread of its own where it is `together`; what each is, to know it again.

    Raises what the first of them raised, once none is being written any more.
    """
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(len(files) if together else 1, "strop-save") as threads:
        written = {name: threads.submit(_write, folder / name, write) for name, write in files.items()}
    return {name: future.result() for name, future in written.items()}


def seal(path: Path) -> WrittenFile:
    """See to it that a file is on the disk and not only on its way there; what it is."""
    sync(path)
    return WrittenFile(path.stat().st_size, crc32(path))


def crc32(path: Path) -> str:
    """A file's checksum."""
    total = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            total = zlib.crc32(chunk, total)
    return f"{total:08x}"


def sync(path: Path) -> None:
    """Bring a file, or a folder's list of names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(path: Path, write: Callable[[Path], None]) -> WrittenFile:
    write(path)
    return seal(path)
