"""One rank's part of a checkpoint, and how ranks tell each other that theirs are written.

A thread writes it while others of its process train, so no collective may be used: each rank leaves word
in the store by which the group has met.
"""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import takewhile

from torch import distributed
from torch.distributed.distributed_c10d import Store
from torch.distributed.tensor import DTensor

from strop.errors import CheckpointError, TrainingError
from strop.protocols import WrittenFile
from strop.training.checkpoint import why_not_written
from strop.training.learner import Learner
from strop.training.parts import part_name
from strop.training.ranks.messages import Save
from strop.training.single import RNG
from strop.training.snapshot import Snapshot
from strop.training.writing import Files, write_files

SAVE_SECONDS = 3600.0
"""So long one rank waits for another's part of a checkpoint."""
_LOOK_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class _Word:
    """What a rank says of its part."""

    written: Mapping[str, WrittenFile] = field(default_factory=dict)
    refused: str | None = None
    """Why the disk did not take it."""
    fault: str | None = None
    """The traceback of anything else."""


def files_of(save: Save, engine: Learner) -> Files:
    """What writes this rank's files, of the state of now. Raises CheckpointError where the folder is not
    there for this rank."""
    if not save.folder.is_dir():
        raise CheckpointError(
            f"Rank {distributed.get_rank()} of the trainer does not see the folder {save.folder} of the "
            "first one. `output` must name a folder that all its nodes share."
        )
    return _part_of(engine.snapshot()).files(copied=save.copied)


def write_part(save: Save, files: Files, store: Store) -> None:
    """Wait for this rank's turn, write, and leave word, whatever comes of it."""
    rank = distributed.get_rank()
    try:
        _wait_for_turn(save, store, rank)
        word = _Word(write_files(save.folder, files, together=save.together))
    except Exception as error:  # noqa: BLE001  (the first rank is told, and raises it)
        refused = why_not_written(error)
        word = _Word(refused=refused, fault=None if refused else traceback.format_exc())
    store.set(_key(save, rank), json.dumps(asdict(word)))


def gather(save: Save, store: Store, check: Callable[[], None]) -> dict[str, WrittenFile]:
    """All ranks' files, once they are written; `check` raises where one of them has ended.

    Raises OSError where the disk did not take a part, and TrainingError for any other fault.
    """
    ranks = range(distributed.get_world_size())
    for rank in ranks:
        _wait(save, store, rank, check)
    written: dict[str, WrittenFile] = {}
    for rank in ranks:
        word = json.loads(store.get(_key(save, rank)))
        if word["fault"]:
            raise TrainingError(f"Rank {rank} of the trainer could not write its part:\n{word['fault']}")
        if word["refused"]:
            raise OSError(f"{word['refused']}, says rank {rank} of the trainer")
        written |= {name: WrittenFile(**file) for name, file in word["written"].items()}
    for word in ("begun", *ranks):
        store.delete_key(_key(save, word))
    return written


def rng_name(rank: int) -> str:
    """The file of a rank's random state."""
    return f"rank-{rank}-{RNG}" if rank else RNG


def _part_of(snapshot: Snapshot) -> Snapshot:
    """What this rank writes: its rows of each tensor, and its random state. What all have alike is the first
    one's to write."""
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    tensors = {}
    for file, named in snapshot.tensors.items():
        if file == RNG:
            tensors[rng_name(rank)] = named
        else:
            mine = {name: t for name, t in named.items() if isinstance(t, DTensor) or rank == 0}
            tensors[part_name(file, rank, ranks)] = mine
    return Snapshot(tensors, {} if rank else snapshot.texts, snapshot.writers)


def _wait_for_turn(save: Save, store: Store, rank: int) -> None:
    """The first rank says when the first turn is, since it may have another engine to write before."""
    if rank == 0:
        store.set(_key(save, "begun"), "")
        return
    _wait(save, store, "begun")
    for turn in takewhile(lambda turn: rank not in turn, save.turns):
        for other in turn:
            _wait(save, store, other)


def _key(save: Save, word: int | str) -> str:
    return f"save-{save.key}-{word}"


def _wait(save: Save, store: Store, word: int | str, check: Callable[[], None] = lambda: None) -> None:
    deadline = time.monotonic() + SAVE_SECONDS
    while not store.check([_key(save, word)]):
        check()
        if time.monotonic() > deadline:
            raise TrainingError(
                f"A rank of the trainer has waited {SAVE_SECONDS:g} s for word of another that its part of a "
                f"checkpoint is written ({word}): a disk hangs, or is far too slow."
            )
        time.sleep(_LOOK_SECONDS)
