"""State of a run between two steps, saved in each checkpoint as `state.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from strop.algorithms.reference_point import RunningMean
from strop.algorithms.schedules import PlateauState
from strop.config.aliases import current_metric
from strop.run.state.tracked_metric import BestCheckpoint, EvaluationRecord

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
        saved = json.loads((folder / _STATE_FILE).read_text())
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
