"""State of an explorer process, stored in the explorer's folder for a restart."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from strop.errors import RunFolderError
from strop.runs.folder import RunFolder
from strop.runs.metrics_file import recorded_steps
from strop.workers.files import atomic_write

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
    task_order: Mapping[str, Any] | None = None
    """State of an order of tasks that follows their results; None for an order without feedback."""
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
        """The last saved state; None if no explorer has run here.

        Raises `RunFolderError` where the file is damaged, or is missing although the explorer has done steps.
        """
        path = _file(folder)
        try:
            saved = json.loads(path.read_text(encoding="utf-8"))
            values = {_OLD_KEYS.get(key, key): value for key, value in saved.items()}
            return cls(**{**values, "written_ahead": tuple(values.get("written_ahead", ()))})
        except FileNotFoundError as error:
            if recorded_steps(folder.metrics) == 0:
                return None
            reason: Exception = error
        except (OSError, ValueError, TypeError, AttributeError) as error:
            reason = error
        raise RunFolderError(
            f"The explorer's state {path} cannot be read ({reason}), so the run cannot continue where it stopped. "
            "Restore the file from a backup, or write `resume: never` to archive the old folder and start from "
            "the beginning."
        ) from reason

    def save(self, folder: RunFolder) -> None:
        """Write the state into the explorer's folder, atomically."""
        path = _file(folder)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(path, json.dumps(asdict(self)) + "\n")
        except OSError as error:
            raise RunFolderError(
                f"The explorer's state cannot be written to {path}: {error.strerror or error}. Free space on that "
                "disk or change `output`; the same command then resumes from the last saved state."
            ) from error


def _file(folder: RunFolder) -> Path:
    return folder.path / "explorer.json"
