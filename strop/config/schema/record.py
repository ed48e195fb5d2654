"""`evaluate` and `record`: when a run is evaluated, and what is recorded of it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from strop.config.schema.base import Section
from strop.config.schema.tracking import MlflowConfig, SwanlabConfig, WandbConfig
from strop.config.units import Interval

MonitorName = Literal["console", "tensorboard", "wandb", "mlflow", "swanlab"]
"""Receiver of metrics, in addition to `metrics.jsonl`."""


class EvaluateConfig(Section):
    """Evaluation on the eval tasksets."""

    every: Interval = None
    """Interval of evaluations; `never` leaves only those at the start and the end."""
    at_start: bool = True
    """Evaluate the initial model before the first update; not repeated on resume."""
    at_end: bool = True
    """Evaluate the last step, whether or not the interval ends there."""


class RecordConfig(Section):
    """Monitors, rollout files and report of a run."""

    monitors: tuple[MonitorName, ...] = ("console", "tensorboard")
    """Monitors that show metrics, in addition to `metrics.jsonl`, which is always written."""
    tensorboard: str = "tensorboard"
    """Folder of TensorBoard's files; a relative path is relative to the run's folder."""
    wandb: WandbConfig = WandbConfig()
    """Options of the monitor `wandb`."""
    mlflow: MlflowConfig = MlflowConfig()
    """Options of the monitor `mlflow`."""
    swanlab: SwanlabConfig = SwanlabConfig()
    """Options of the monitor `swanlab`."""
    rollouts_every: Interval = Field(default=None)
    """Interval of steps whose rollouts are all written as Parquet; `never` for none but those of
    `first_and_last_rollouts`."""
    first_and_last_rollouts: bool = True
    """Write the rollouts of the first and of the last step as Parquet too."""
    eval_answers: int = Field(0, ge=0)
    """Number of fixed eval tasks whose responses the report and the monitors other than the console show; 0 for
    none."""
    report: bool = True
    """Write `report.html` at the end, also of a run that fails; `strop report` writes it at any time."""
