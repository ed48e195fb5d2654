"""Sharded checkpoints: each rank writes its shard, and reports through the ranks' key-value store.

A thread writes while the process trains, so collective operations cannot be used.
"""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import takewhile
from pathlib import Path

from torch import Tensor, distributed
from torch.distributed.distributed_c10d import Store
from torch.distributed.tensor import DTensor, Replicate

from strop.errors import CheckpointError, TrainingError
from strop.protocols import FileChecksum
from strop.training.checkpoints.checkpoint import write_error_reason
from strop.training.checkpoints.file_writer import (
    RNG_FILE,
    FileWriters,
    rng_file_name,
    shard_file_name,
    write_files,
)
from strop.training.checkpoints.tensors import LocalSnapshot

SAVE_TIMEOUT_SECONDS = 3600.0
"""Maximum time that a rank waits for another rank's shard of a checkpoint."""
_POLL_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class ShardedSave:
    """A save of one model, of which each rank writes its shard."""

    save_id: str
    """Id of this save in the ranks' key-value store."""
    folder: Path
    """Folder that all ranks write to."""
    model: str
    """Name of the model on the ranks."""
    copy_tensors: bool
    """Whether the state is copied first, because training continues during the write."""
    parallel_files: bool
    """Whether one rank writes its files in parallel."""
    write_order: tuple[frozenset[int], ...]
    """Ranks that write at the same time, in the order of their turns."""


@dataclass(frozen=True, slots=True)
class _SaveStatus:
    """Report of one rank on its shard."""

    written: Mapping[str, FileChecksum] = field(default_factory=dict)
    refused: str | None = None
    """Reason why the disk refused a file."""
    fault: str | None = None
    """Traceback of any other error."""


def shard_writers(save: ShardedSave, snapshot: LocalSnapshot, replica_ranks: int) -> FileWriters:
    """Writers of this rank's files, for the current state; the first `replica_ranks` ranks are one replica.

    Raises CheckpointError if this rank does not see the folder.
    """
    if not save.folder.is_dir():
        raise CheckpointError(
            f"Rank {distributed.get_rank()} of the trainer does not see the folder {save.folder}, which the first "
            "rank created. `output` must be a folder on storage that all nodes of the trainer share."
        )
    return _shard_of(snapshot, replica_ranks).file_writers(copied=save.copy_tensors)


def write_shard(save: ShardedSave, files: FileWriters, store: Store) -> None:
    """Wait for this rank's turn, write, and report the result or the error."""
    rank = distributed.get_rank()
    try:
        _wait_for_turn(save, store, rank)
        status = _SaveStatus(write_files(save.folder, files, parallel=save.parallel_files))
    except Exception as error:  # noqa: BLE001  (the first rank raises it)
        refused = write_error_reason(error)
        status = _SaveStatus(refused=refused, fault=None if refused else traceback.format_exc())
    store.set(_key(save, rank), json.dumps(asdict(status)))


def gather_written_files(
    save: ShardedSave, store: Store, check: Callable[[], None]
) -> dict[str, FileChecksum]:
    """All ranks' files, once they are written; `check` raises if a rank has ended.

    Raises OSError where the disk refused a file, and TrainingError for any other error.
    """
    ranks = range(distributed.get_world_size())
    for rank in ranks:
        _wait(save, store, rank, check)
    written: dict[str, FileChecksum] = {}
    for rank in ranks:
        status = json.loads(store.get(_key(save, rank)))
        if status["fault"]:
            raise TrainingError(f"Rank {rank} of the trainer could not write its shard:\n{status['fault']}")
        if status["refused"]:
            raise OSError(f"{status['refused']} (on rank {rank} of the trainer)")
        written |= {name: FileChecksum(**file) for name, file in status["written"].items()}
    for event in ("begun", *ranks):
        store.delete_key(_key(save, event))
    return written


def _shard_of(snapshot: LocalSnapshot, replica_ranks: int) -> LocalSnapshot:
    """This rank's files: its part of each sharded tensor unless another rank writes the same one, and its random state.
    The first rank also writes what is equal on all ranks."""
    rank = distributed.get_rank()
    tensors = {}
    for file, named in snapshot.tensors.items():
        if file == RNG_FILE:
            tensors[rng_file_name(rank)] = named
        elif rank < replica_ranks:
            is_own = file in snapshot.own_files
            mine = {name: t for name, t in named.items() if is_own or _is_written_here(t, rank)}
            tensors[shard_file_name(file, rank, replica_ranks)] = mine
    return LocalSnapshot(tensors, {} if rank else snapshot.texts, snapshot.save_concurrency)


def _is_written_here(tensor: Tensor, rank: int) -> bool:
    """Whether this rank of the first replica is the first one with its part of a tensor."""
    if not isinstance(tensor, DTensor):
        return rank == 0
    coordinate = tensor.device_mesh.get_coordinate() or ()
    return all(
        place == 0 or not isinstance(placement, Replicate)
        for place, placement in zip(coordinate, tensor.placements, strict=True)
    )


def _wait_for_turn(save: ShardedSave, store: Store, rank: int) -> None:
    """The first rank starts the first turn, since it may have to write another model before."""
    if rank == 0:
        store.set(_key(save, "begun"), "")
        return
    _wait(save, store, "begun")
    for turn in takewhile(lambda turn: rank not in turn, save.write_order):
        for other in turn:
            _wait(save, store, other)


def _key(save: ShardedSave, event: int | str) -> str:
    return f"save-{save.save_id}-{event}"


def _wait(
    save: ShardedSave, store: Store, event: int | str, check: Callable[[], None] = lambda: None
) -> None:
    deadline = time.monotonic() + SAVE_TIMEOUT_SECONDS
    while not store.check([_key(save, event)]):
        check()
        if time.monotonic() > deadline:
            raise TrainingError(
                f"A rank of the trainer has waited {SAVE_TIMEOUT_SECONDS:g} s for another rank to write its shard of "
                f"a checkpoint (event {event}): the disk does not respond, or is too slow."
            )
        time.sleep(_POLL_SECONDS)
