"""The run file: its top level with stages and `bench`, the defaults that depend on several sections, and questions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr

from strop.config.names import FileName
from strop.config.paths import expand_user
from strop.config.schema.algorithm import (
    AlgorithmConfig,
    GrpoConfig,
    OfflineAlgorithmConfig,
    PrimeConfig,
    RolloutAlgorithmConfig,
)
from strop.config.schema.base import Section, type_shorthand
from strop.config.schema.buffer import BufferConfig, PriorityBufferConfig, QueueBufferConfig, SqlBufferConfig
from strop.config.schema.checkpoint import CheckpointConfig, ExportConfig
from strop.config.schema.cluster import ClusterConfig, LocalClusterConfig, RayClusterConfig
from strop.config.schema.data import DataConfig
from strop.config.schema.inference_engine import ServerConnectionConfig
from strop.config.schema.model import ModelConfig
from strop.config.schema.policy_gradient import OversamplingConfig
from strop.config.schema.record import EvaluateConfig, RecordConfig
from strop.config.schema.reward import RewardConfig, RewardConfigOrShorthand
from strop.config.schema.rollout import RolloutConfig
from strop.config.schema.synchronizer import (
    CheckpointSyncConfig,
    DistributedSyncConfig,
    MemorySyncConfig,
    SynchronizerConfig,
)
from strop.config.schema.trainer import TrainerConfig

SectionOverride = dict[str, Any] | str | None


class StageConfig(Section):
    """One run of a sequence. Its sections override the rest of the file key by key; null removes a
    section."""

    name: FileName
    """Name of the stage, unique in the file; the stage's run is named `<name>-<stage>`, and its folder is
    `<folder>/<stage>` if the file has a `folder`."""
    mode: str | None = None
    """Override of `mode`."""
    seed: int | None = None
    """Override of `seed`."""
    model: SectionOverride = None
    """Override of `model`; without a `path` the stage starts with the model of the previous stage."""
    data: SectionOverride = None
    """Override of `data`."""
    reward: SectionOverride = None
    """Override of `reward`."""
    algorithm: SectionOverride = None
    """Override of `algorithm`; a different `type` replaces the section, here and in all sections below."""
    rollout: SectionOverride = None
    """Override of `rollout`."""
    synchronizer: SectionOverride = None
    """Override of `synchronizer`."""
    buffer: SectionOverride = None
    """Override of `buffer`."""
    trainer: SectionOverride = None
    """Override of `trainer`."""
    checkpoint: SectionOverride = None
    """Override of `checkpoint`."""
    evaluate: SectionOverride = None
    """Override of `evaluate`."""
    record: SectionOverride = None
    """Override of `record`."""
    bench: SectionOverride = None
    """Override of `bench`."""


class BenchConfig(Section):
    """Weights that mode `bench` evaluates on the eval tasksets."""

    checkpoints: tuple[str, ...] = ()
    """Checkpoint folders, or run folders for all checkpoints in them; empty for all checkpoints of this
    run."""
    initial_model: bool = True
    """Evaluate the initial model too, before the checkpoints."""


SINGLE_ROLE_MODES = ("train", "explore")
"""Modes that run one role, explorer or trainer; the other role is another process."""


def _default_synchronizer(values: dict[str, Any]) -> SynchronizerConfig:
    """The synchronizer of a run file without one: memory, except where the roles are separate processes."""
    offline = getattr(values.get("algorithm"), "is_offline", False)
    distributed = values.get("mode") in SINGLE_ROLE_MODES or isinstance(
        values.get("cluster"), RayClusterConfig
    )
    return CheckpointSyncConfig() if distributed and not offline else MemorySyncConfig()


def _default_buffer(values: dict[str, Any]) -> BufferConfig:
    """The buffer of a run file without one: a database where the roles are separate processes of one machine,
    or are started separately; otherwise a queue, which on Ray is an actor and needs no server."""
    distributed = isinstance(values.get("synchronizer"), DistributedSyncConfig)
    on_ray = (
        isinstance(values.get("cluster"), RayClusterConfig) and values.get("mode") not in SINGLE_ROLE_MODES
    )
    return SqlBufferConfig() if distributed and not on_ray else QueueBufferConfig()


class Run(Section):
    """A run: model, data, reward, algorithm, training, and the files that it writes."""

    project: FileName = "strop"
    """Name of the project; the runs of a project share a folder. Letters (a-z), digits, spaces and `. _ - + = , @`,
    at most 100 characters, as in every name of a file."""
    name: FileName = "run"
    """Name of the run; its folder is `<output>/<project>/<name>`."""
    output: str = "runs"
    """Folder of all projects."""
    folder: str | None = None
    """Folder of the run; `<output>/<project>/<name>` if omitted."""
    seed: int = Field(1, ge=0)
    """Seed of the data order, of sampling and of dropout."""
    resume: str = "auto"
    """Checkpoint to resume from: `auto` for the last valid one of the run's folder, `never` for a new start,
    or a checkpoint's path."""
    mode: Literal["both", "train", "explore", "bench"] = "both"
    """Role of this command: `both` explores and trains; `train` and `explore` run one role, which exchanges
    experiences and weights with the other role through `buffer` and `synchronizer`, on this machine or
    another; `bench` evaluates checkpoints."""
    model: ModelConfig
    """Model that is trained."""
    data: DataConfig
    """Tasksets, and the encoding of their prompts."""
    reward: RewardConfigOrShorthand = RewardConfig()
    """Scoring of responses."""
    algorithm: Annotated[AlgorithmConfig, type_shorthand("grpo")] = GrpoConfig()
    """Algorithm that learns from scored responses, or from demonstrations or pairs."""
    rollout: RolloutConfig = RolloutConfig()
    """Sampling of responses."""
    cluster: ClusterConfig = LocalClusterConfig()
    """Machines of explorer and trainer, if they are separate processes."""
    synchronizer: SynchronizerConfig = Field(default_factory=_default_synchronizer)
    """Transfer of weights from the trainer to the explorer; if omitted, `checkpoint` in the modes train and
    explore and on Ray, otherwise `memory`."""
    buffer: Annotated[BufferConfig, type_shorthand("queue")] = Field(default_factory=_default_buffer)
    """Queue of experiences between explorer and trainer; if omitted, `sql` if they are separate processes of
    one machine or are started separately, otherwise `queue`."""
    trainer: TrainerConfig = TrainerConfig()
    """Training on experiences."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """Saving of checkpoints."""
    export: ExportConfig = ExportConfig()
    """Exported models."""
    evaluate: EvaluateConfig = EvaluateConfig()
    """Evaluation on the eval tasksets."""
    record: RecordConfig = RecordConfig()
    """Monitors, rollout files and report of the run."""
    bench: BenchConfig = BenchConfig()
    """Weights that mode `bench` evaluates."""
    stages: tuple[StageConfig, ...] = ()
    """Sequence of runs, each of which starts from the model of the previous one; empty for a single run."""

    _interpolations: dict[str, str] = PrivateAttr(default_factory=dict)

    @property
    def interpolations(self) -> Mapping[str, str]:
        """Texts with interpolations of environment variables that the run file has, by dotted key."""
        return MappingProxyType(self._interpolations)

    def with_interpolations(self, texts: Mapping[str, str]) -> Run:
        """The same run, which is saved with these texts in place of the values that they gave."""
        run = self.model_copy()
        run._interpolations = dict(texts)
        return run

    @property
    def folder_path(self) -> Path:
        """The folder of all files that the run writes."""
        default = Path(self.output) / self.project / self.name
        return expand_user(Path(self.folder) if self.folder else default)

    @property
    def is_distributed(self) -> bool:
        """Whether explorer and trainer are separate processes."""
        return not isinstance(self.synchronizer, MemorySyncConfig)

    @property
    def is_launched_in_roles(self) -> bool:
        """Whether one command starts explorer and trainer as processes of their own."""
        return self.is_distributed and self.mode == "both"

    @property
    def has_buffer_process(self) -> bool:
        """Whether the buffer is a separate process: an in-memory queue that the roles connect to."""
        return self.is_launched_in_roles and isinstance(self.buffer, QueueBufferConfig | PriorityBufferConfig)

    @property
    def rollout_algorithm(self) -> RolloutAlgorithmConfig:
        """The algorithm of a run that trains on rollouts."""
        assert not isinstance(self.algorithm, OfflineAlgorithmConfig)
        return self.algorithm

    @property
    def oversampling(self) -> OversamplingConfig | None:
        """The choice of a step's groups among more groups; None where a step trains on all that it samples."""
        return self.algorithm.oversampling if isinstance(self.algorithm, PrimeConfig) else None

    @property
    def tasks_sampled_per_step(self) -> int:
        """Number of tasks that a step takes, without the replacement of filtered groups."""
        return self.trainer.tasks_per_step * (self.oversampling.factor if self.oversampling else 1)

    @property
    def releases_engine_memory(self) -> bool:
        """Whether the engines free their memory while the trainer works."""
        released = self.rollout.release_memory
        if released is None:
            released = self.rollout.colocated and not isinstance(self.rollout.engine, ServerConnectionConfig)
        return bool(released) and not self.is_distributed

    @property
    def max_sequence_tokens(self) -> int:
        """Maximum length of a conversation (prompt and all turns), in tokens."""
        return self.rollout.max_sequence_tokens or self.data.max_prompt_tokens + self.data.max_response_tokens
