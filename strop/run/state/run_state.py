"""State of a run between two steps, saved in each checkpoint as `state.json`, and that of an explorer process, stored
in the explorer's folder for a restart."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from strop.algorithms.reference_point import RunningMean
from strop.algorithms.schedules import PlateauState
from strop.config.aliases import current_metric
from strop.errors import RunFolderError
from strop.run.state.tracked_metric import BestCheckpoint, EvaluationRecord
from strop.runs.folder import RunFolder
from strop.runs.metrics_file import recorded_steps
from strop.workers.files import atomic_write
from strop.workers.json_text import parse_json

_STATE_FILE = "state.json"

_FORMER_KEYS = {
    "position": "tasks_taken",
    "taken": "unacknowledged",
    "shift": "group_offset",
    "owes_evaluation": "evaluation_pending",
}
"""Keys of `state.json` in checkpoints of earlier versions, and their present names."""


@dataclass(frozen=True, slots=True)
class RunState:
    """State of a run between two steps; with the engines' own states, all that a resume needs."""

    step: int = 0
    """Number of completed steps."""
    updates: int = 0
    """Number of completed optimizer updates."""
    tasks_taken: int = 0
    """Number of training tasks taken so far, over all epochs."""
    task_order: Mapping[str, Any] | None = None
    """State of an order of tasks that follows their results (`data.order`); None for an order without feedback."""
    kl_coef: float | None = None
    """Current coefficient of the KL penalty in the reward; None where there is no penalty."""
    mean_log_ratio: RunningMean | None = None
    """Running mean of the responses' log-ratios to the reference, under bco; None for another algorithm."""
    expert_position: int = 0
    """Number of expert demonstrations taken so far, over all epochs, under mix."""
    plateau: PlateauState | None = None
    """State of the schedule `reduce_lr_on_plateau`."""
    best: BestCheckpoint | None = None
    """The best evaluation so far, where `checkpoint.best` is set."""
    evaluations: EvaluationRecord = field(default_factory=EvaluationRecord)
    """The evaluations so far, for `evaluate.stop_when`."""
    unacknowledged: tuple[str, ...] = ()
    """Ids of the groups trained on since the previous checkpoint, where the explorer is a separate process.
    Once this checkpoint is complete, they are acknowledged in the buffer."""
    group_offset: int = 0
    """Groups that the steps so far lacked, minus the groups that the buffer evicted or
    `trainer.batch_selection` dropped. The explorer adds it when it computes which step of the trainer will
    take a group."""
    evaluation_pending: bool = False
    """Whether the run was stopped in the evaluation after this step; a resumed run evaluates first."""

    def save(self, folder: Path) -> None:
        """Write `state.json` into a checkpoint's folder."""
        (folder / _STATE_FILE).write_text(json.dumps(asdict(self)) + "\n")

    @classmethod
    def load(cls, folder: Path) -> RunState:
        """Read what `save` wrote, now or in an earlier version."""
        saved = parse_json((folder / _STATE_FILE).read_text())
        values = {_FORMER_KEYS.get(key, key): value for key, value in saved.items()}
        if values["plateau"] is not None:
            values["plateau"] = PlateauState(**values["plateau"])
        if values.get("mean_log_ratio") is not None:
            values["mean_log_ratio"] = RunningMean(**values["mean_log_ratio"])
        values["evaluations"] = EvaluationRecord(**values.get("evaluations", {}))
        values["unacknowledged"] = tuple(values.get("unacknowledged", ()))
        if values.get("best") is not None:
            best = values["best"]
            values["best"] = BestCheckpoint(**best | {"metric": current_metric(best["metric"])})
        return cls(**values)


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
            saved = parse_json(path.read_text(encoding="utf-8"))
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
