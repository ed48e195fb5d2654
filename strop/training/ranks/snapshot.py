"""The state of an engine on several ranks, each of which writes its own part."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from strop.config.schema.run import Writers
from strop.protocols import WrittenFile
from strop.training.ranks.group import RankGroup
from strop.training.ranks.messages import Save
from strop.training.writing import side_by_side, turns


@dataclass(frozen=True, slots=True)
class RankedSnapshot:
    """What is on the ranks now: no rank ever holds another's part."""

    group: RankGroup
    engine: str
    """Its name on each of them."""
    writers: Writers
    """Who may write at the same time."""

    def begin(self, folder: Path, *, copied: bool = False) -> Callable[[], Mapping[str, WrittenFile]]:
        """See `strop.protocols.Snapshot`."""
        save = Save(
            key=secrets.token_hex(8),
            folder=folder.absolute(),
            engine=self.engine,
            copied=copied,
            together=side_by_side(self.writers),
            turns=turns(self.writers, self.group.nodes),
        )
        return self.group.begin(save)
