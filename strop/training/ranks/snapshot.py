"""Snapshots of a model on several ranks, each of which writes its own shard."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from strop.config.schema.record import SaveConcurrency
from strop.protocols import FileChecksum
from strop.training.checkpoints.file_writer import write_order, writes_in_parallel
from strop.training.ranks.group import RankGroup
from strop.training.ranks.messages import SaveCheckpoint


@dataclass(frozen=True, slots=True)
class ShardedSnapshot:
    """The current state of a model on the ranks; no rank ever holds another's shard."""

    group: RankGroup
    model: str
    """Name of the model on the ranks."""
    save_concurrency: SaveConcurrency
    """Which ranks and threads write at the same time."""

    def begin_write(self, folder: Path, *, copied: bool = False) -> Callable[[], Mapping[str, FileChecksum]]:
        """See `strop.protocols.EngineSnapshot`."""
        save = SaveCheckpoint(
            save_id=secrets.token_hex(8),
            folder=folder.absolute(),
            model=self.model,
            copy_tensors=copied,
            parallel_files=writes_in_parallel(self.save_concurrency),
            write_order=write_order(self.save_concurrency, self.group.nodes),
        )
        return self.group.begin_save(save)
