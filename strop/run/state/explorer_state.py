"""State of an explorer process, stored in the explorer's folder for a restart."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from strop.runs.folder import RunFolder

_OLD_KEYS = {
    "position": "tasks_taken",
    "version": "next_version",
    "groups": "groups_written",
    "measured": "evaluated_version",
}
"""Keys in files of Strop 0.1 -> fields."""


@dataclass(frozen=True, slots=True)
class ExplorerState:
    """State of an explorer between two groups: all that it needs to continue after a kill."""

    step: int = 0
    """Last step of which all groups are in the buffer, as are those of the steps before it."""
    tasks_taken: int = 0
    """Training tasks taken up to that step, over all epochs."""
    next_version: int | None = None
    """Version of the weights that the next step is sampled with, once that is decided; a repetition of the
    step uses the same version and gives the same groups. None under styles other than `fixed`."""
    groups_written: int = 0
    """Number of groups that were put into the buffer."""
    evaluated_version: int | None = None
    """Last version with which the eval tasksets were evaluated; None before the first evaluation."""
    written_ahead: tuple[str, ...] = ()
    """Ids of the groups of later steps that are in the buffer already; empty under the style `fixed`."""

    @classmethod
    def load(cls, folder: RunFolder) -> ExplorerState | None:
        """The last saved state; None if no explorer has run here."""
        path = _file(folder)
        if not path.exists():
            return None
        values = {_OLD_KEYS.get(key, key): value for key, value in json.loads(path.read_text()).items()}
        return cls(**{**values, "written_ahead": tuple(values.get("written_ahead", ()))})

    def save(self, folder: RunFolder) -> None:
        """Write the state into the explorer's folder, atomically."""
        path = _file(folder)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.tmp")
        with temporary.open("w") as file:
            file.write(json.dumps(asdict(self)) + "\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)


def _file(folder: RunFolder) -> Path:
    return folder.path / "explorer.json"
