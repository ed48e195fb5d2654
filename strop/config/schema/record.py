"""`evaluate`, `record`, `checkpoint` and `export`: when a run is evaluated and saved, what is recorded of it, and
options of tracking services."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from strop.config.schema.base import Section
from strop.config.units import Interval

TRACKING_SERVICES = ("wandb", "mlflow", "swanlab", "trackio")
"""Monitors that have a section of options, and a package and an extra of their name."""


class WandbConfig(Section):
    """Weights & Biases. The API key is the environment variable `WANDB_API_KEY`, or that of `wandb login`."""

    entity: str | None = None
    """User or team; the account's default entity if null."""
    group: str | None = None
    """Group of the run in the project; none if null."""
    tags: tuple[str, ...] = ()
    """Tags of the run."""
    mode: Literal["online", "offline"] | None = None
    """`offline` writes into the run folder for `wandb sync`; null takes `WANDB_MODE`, else `online`."""
    base_url: str | None = None
    """URL of a server of your own; wandb.ai if null."""


class MlflowConfig(Section):
    """MLflow Tracking. Users and passwords are MLflow's own environment variables."""

    tracking_uri: str | None = None
    """Tracking server or database; null takes `MLFLOW_TRACKING_URI`, else `mlflow.db` in the `output` folder."""
    experiment: str | None = None
    """Name of the experiment; `project` if null."""
    tags: dict[str, str] = Field(default_factory=dict)
    """Tags of the run."""


class SwanlabConfig(Section):
    """SwanLab. The API key is the environment variable `SWANLAB_API_KEY`, or that of `swanlab login`."""

    workspace: str | None = None
    """User or organization; the account's default workspace if null."""
    group: str | None = None
    """Group of the run in the project; none if null."""
    tags: tuple[str, ...] = ()
    """Tags of the run."""
    mode: Literal["online", "offline", "local"] | None = None
    """`offline` and `local` write into the run folder, for `swanlab sync` and `swanlab watch`; null takes
    `SWANLAB_MODE`, else `online`."""


class TrackioConfig(Section):
    """Trackio. Without a place of the two below, its database is on this machine, in `TRACKIO_DIR`."""

    group: str | None = None
    """Group of the run in the project; none if null."""
    space_id: str | None = None
    """Hugging Face Space that receives the run, such as `user/name`, by the login of `hf`; null for none."""
    server_url: str | None = None
    """URL of a Trackio server of your own, whose token is in `TRACKIO_WRITE_TOKEN`; null for none."""

    def faults(self) -> Iterator[str]:
        """Two places for one run."""
        if self.space_id and self.server_url:
            yield "space_id and server_url are two places for the run; remove one of them"


MonitorName = Literal["console", "tensorboard", "wandb", "mlflow", "swanlab", "trackio"]
"""Receiver of metrics, in addition to `metrics.jsonl`."""


class StopWhenConfig(Section):
    """Early end of a run by an evaluation metric."""

    metric: str | None = None
    """Evaluation metric, such as `eval/gsm8k/reward`; the first eval taskset's reward if omitted."""
    mode: Literal["max", "min"] = "max"
    """Direction of improvement: `max` for a metric that should increase, `min` for one that should decrease."""
    value: float | None = None
    """Value at which the run ends, once an evaluation reaches it; null for none."""
    patience: int | None = Field(default=None, gt=0)
    """Number of consecutive evaluations without an improvement after which the run ends; null for no limit."""

    def faults(self) -> Iterator[str]:
        """A section that never ends a run."""
        if self.value is None and self.patience is None:
            yield "write value, patience or both, such as `stop_when: {value: 0.95}` or `stop_when: {patience: 5}`"


class EvaluateConfig(Section):
    """Evaluation on the eval tasksets."""

    every: Interval = None
    """Interval of evaluations; `never` leaves only those at the start and the end."""
    at_start: bool = True
    """Evaluate the initial model before the first update; not repeated on resume."""
    at_end: bool = True
    """Evaluate the last step, whether or not the interval ends there."""
    stop_when: StopWhenConfig | None = None
    """Early end of the run by its evaluations; null for none. Schedules still span `trainer.duration`."""


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
    trackio: TrackioConfig = TrackioConfig()
    """Options of the monitor `trackio`."""
    rollouts_every: Interval = Field(default=None)
    """Interval of steps whose rollouts are all written as Parquet; `never` for none but those of
    `first_and_last_rollouts`."""
    first_and_last_rollouts: bool = True
    """Write the rollouts of the first and of the last step as Parquet too."""
    sampled_groups: int = Field(default=4, ge=0)
    """Number of groups, the first ones of the step, that every tenth step writes as Parquet if it does not write all; 0
    for none."""
    rollout_tokens: bool = False
    """Write the sampled tokens of these rollouts too, with their log-probs and, where the process that samples also
    trains, their advantages: about 12 bytes per token."""
    eval_answers: int = Field(default=0, ge=0)
    """Number of fixed eval tasks whose responses the report and the monitors other than the console show; 0 for
    none."""
    report: bool = True
    """Write `report.html` at the end, also of a run that fails; `strop report` writes it at any time."""


SaveConcurrency = Literal["thread", "process", "node", "all"]


class BestCheckpointConfig(Section):
    """Choice of the best checkpoint by an evaluation metric. The evaluation before the first step does not
    count."""

    metric: str | None = None
    """Evaluation metric, such as `eval/gsm8k/reward`; the first eval taskset's reward if omitted."""
    mode: Literal["max", "min"] = "max"
    """Direction of improvement: `max` for a metric that should increase, `min` for one that should
    decrease."""


class CheckpointConfig(Section):
    """Saving of checkpoints. The last step always has a checkpoint."""

    every: Interval = None
    """Interval of checkpoints; `never` saves only the last step."""
    keep: int | None = Field(default=3, gt=0)
    """Number of latest checkpoints to keep; older ones are deleted. Null keeps all."""
    best: BestCheckpointConfig | None = None
    """Choice of the best checkpoint as the run's final model; null for the last step. With it each evaluation
    saves a checkpoint, and `keep` never deletes the best one (with `keep: 1`, the best and the last
    remain)."""
    save_optimizer: bool = True
    """Save the optimizer's state; without it a run cannot be resumed exactly."""
    resume_optimizer: bool = True
    """Restore the optimizer's state on resume; otherwise the optimizer starts with an empty state."""
    mirror: str | None = None
    """Second location of the checkpoints, a path or an fsspec URL; a run with an empty folder resumes from
    it. A remote store that refuses is asked again for about a minute. Null for none."""
    async_save: bool = False
    """Write checkpoints in the background while training continues, from a copy of the state in memory."""
    save_concurrency: SaveConcurrency = "all"
    """Writers of a checkpoint that may run at the same time: one `thread` of the run, the threads of one
    `process` (several ranks take turns), the processes of one `node`, or `all`."""
    export: bool = False
    """Write a Hugging Face model folder, `model`, into each checkpoint. The end of a run always writes
    one."""

    def faults(self) -> Iterator[str]:
        """Faults between the fields."""
        if self.async_save and self.export:
            yield (
                "export writes the weights in memory, which training changes during an async_save; write "
                "export: false or async_save: false (`strop export` exports any checkpoint later)"
            )


class ExportConfig(Section):
    """Hugging Face folders that a run writes: `model` at its end, those of `checkpoint.export`, and those of
    `strop export`."""

    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Data type of the weights. If omitted, that of the trained parameters; with an adapter that of the base model's
    files, whose weights are read again if the run holds them in a shorter type (`model.compute_dtype`). The adapter
    in the folder `adapter` of a merged model keeps its own."""
