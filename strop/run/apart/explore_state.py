"""Where an explorer that is a process of its own stands."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from strop.run.folder import RunFolder


@dataclass(frozen=True, slots=True)
class ExploreState:
    """Where an explorer stands: all that it needs to go on after a kill."""

    step: int = 0
    """Steps whose groups are in the buffer."""
    position: int = 0
    """Training tasks taken so far, over all epochs."""
    version: int | None = None
    """What the next step is sampled with, once that is settled: if it has to be done again, with the same,
    so that it gives the same groups."""
    groups: int = 0
    """Groups that were put into the buffer so far."""
    measured: int | None = None
    """The last version whose eval tasksets were measured."""

    @classmethod
    def load(cls, folder: RunFolder) -> ExploreState | None:
        """What `save` wrote last; None where an explorer has never been."""
        path = _file(folder)
        return cls(**json.loads(path.read_text())) if path.exists() else None

    def save(self, folder: RunFolder) -> None:
        """Write it into the explorer's folder, whole or not at all."""
        path = _file(folder)
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f".{path.name}.tmp")
        with beside.open("w") as file:
            file.write(json.dumps(asdict(self)) + "\n")
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)


def _file(folder: RunFolder) -> Path:
    return folder.path / "explorer.json"
