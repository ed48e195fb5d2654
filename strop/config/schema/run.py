"""The run file: its top level with `cluster`, stages and `bench`; traversal of its sections and fields; and quantities
of a run that depend on several sections."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, PrivateAttr
from pydantic.fields import FieldInfo

from strop import in_process
from strop.config.paths import expand_user
from strop.config.schema.algorithm import (
    AlgorithmConfig,
    GrpoConfig,
    OfflineAlgorithmConfig,
    RolloutAlgorithmConfig,
)
from strop.config.schema.base import FileName, Section, type_shorthand
from strop.config.schema.buffer import (
    BufferConfig,
    CheckpointSyncConfig,
    DistributedSyncConfig,
    MemorySyncConfig,
    PriorityBufferConfig,
    QueueBufferConfig,
    SqlBufferConfig,
    SynchronizerConfig,
)
from strop.config.schema.data import DataConfig
from strop.config.schema.model import ModelConfig
from strop.config.schema.record import CheckpointConfig, EvaluateConfig, ExportConfig, RecordConfig
from strop.config.schema.reward import RewardConfig, RewardConfigOrShorthand, RewardFunctionConfig
from strop.config.schema.rollout import RolloutConfig, ServerConnectionConfig, WorkflowConfig
from strop.config.schema.trainer import TrainerConfig
from strop.config.units import MAX_SECONDS, Amount


class LocalClusterConfig(Section):
    """Processes of this machine."""

    type: Literal["local"] = "local"


class RayClusterConfig(Section):
    """Actors of a Ray cluster, placed on nodes with free resources."""

    type: Literal["ray"] = "ray"
    address: str | None = None
    """Address of an existing cluster (`auto` finds the cluster of this machine); null starts a cluster on
    this machine and stops it at the end of the run."""
    namespace: str | None = None
    """Ray namespace of the actors' names; null is `<project>/<name>` of the run."""
    nodes: int = Field(default=1, gt=0)
    """Minimum number of nodes that the cluster must have."""
    gpus_per_node: int = Field(default=0, ge=0)
    """Minimum number of GPUs on each of these nodes; they are divided between explorer and trainer."""
    explorer_name: FileName = "explorer"
    """Name of the explorer's actor."""
    trainer_name: FileName = "trainer"
    """Name of the trainer's actor."""
    start_timeout_seconds: float = Field(default=300.0, gt=0, le=MAX_SECONDS)
    """Maximum wait for the nodes, and for the placement of an actor; after it the run stops with an error
    that names the missing resources."""
    logs_by_node: bool = False
    """Write an actor's log to `log/<node's address>/<name>.log` in the run's folder instead of
    `log/<name>.log`."""
    timeline: bool = False
    """Write Ray's timeline to `monitor/timeline.json` in the run's folder, for chrome://tracing."""

    def faults(self) -> Iterator[str]:
        """Faults between the fields."""
        if self.explorer_name == self.trainer_name:
            yield (
                f"explorer_name and trainer_name are both {self.explorer_name!r}; write two different names"
            )


ClusterConfig = Annotated[
    LocalClusterConfig | RayClusterConfig, Field(discriminator="type"), type_shorthand("local")
]


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
    seed: int = Field(default=1, ge=0)
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
    def tasks_sampled_per_step(self) -> int:
        """Number of tasks that a step takes, without the replacement of filtered groups."""
        preference = self.algorithm.group_preference
        return self.trainer.tasks_per_step * (1 if preference is None else preference.factor)

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


def section_types(annotation: Any) -> tuple[type[Section], ...]:
    """Return the section classes in a field's type, through `Annotated`, unions and tuples."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return (annotation,)
    return tuple(found for part in get_args(annotation) for found in section_types(part))


def section_types_at(keys: tuple[str, ...], values: Any) -> tuple[type[Section], ...]:
    """Return the possible classes of the section at `keys` for these values; none if it is not a section."""
    kinds: tuple[type[Section], ...] = (Run,)
    for key in keys:
        if key.isdigit() or isinstance(values, list):  # an item has the type of its list
            is_item = isinstance(values, list) and key.isdigit() and int(key) < len(values)
            values = values[int(key)] if is_item else None
        else:
            fields = [kind.model_fields[key] for kind in kinds if key in kind.model_fields]
            kinds = tuple(found for field in fields for found in section_types(field.annotation))
            values = values.get(key) if isinstance(values, dict) else None
        if isinstance(values, dict) and "type" in values and len(kinds) > 1:
            kinds = tuple(
                kind
                for kind in kinds
                if "type" not in kind.model_fields or kind.model_fields["type"].default == values["type"]
            )
    return kinds


def field_at(keys: tuple[str, ...], values: Any) -> FieldInfo | None:
    """Return the field at `keys`; None if the schema has none."""
    for kind in section_types_at(keys[:-1], values):
        if keys[-1] in kind.model_fields:
            return kind.model_fields[keys[-1]]
    return None


@cache
def all_keys(kind: type[Section] = Run) -> tuple[str, ...]:
    """Return every dotted key of the run file, for all types of all unions; items of lists have no number."""
    return tuple(dict.fromkeys(_all_keys(kind, ())))


def _all_keys(kind: type[Section], above: tuple[str, ...]) -> Iterator[str]:
    for name, field in kind.model_fields.items():
        yield ".".join((*above, name))
        for inside in section_types(field.annotation):
            yield from _all_keys(inside, (*above, name))


@dataclass(frozen=True, slots=True)
class Leaf:
    """Value of a loaded run."""

    keys: tuple[str, ...]
    """Path to the value."""
    value: Any
    effect: str
    """Docstring of the field; for a `type`, the first line of the class's docstring."""

    def texts(self) -> Iterator[str]:
        """Every text of the value, such as those of a workflow's arguments."""
        pending = [self.value]
        while pending:
            value = pending.pop(0)
            if isinstance(value, str):
                yield value
            elif isinstance(value, Mapping):
                pending[:0] = value.values()
            elif isinstance(value, list | tuple):
                pending[:0] = value


def leaves(section: Section, above: tuple[str, ...] = ()) -> Iterator[Leaf]:
    """Yield every value of a loaded section, in the run file's order."""
    for name, field in type(section).model_fields.items():
        value, keys = getattr(section, name), (*above, name)
        if isinstance(value, Section):
            yield from leaves(value, keys)
        elif isinstance(value, tuple) and value and all(isinstance(item, Section) for item in value):
            for index, item in enumerate(value):
                yield from leaves(item, (*keys, str(index)))
        else:
            yield Leaf(keys, value, field.description or (type(section).__doc__ or "").split("\n")[0])


def in_process_functions(run: Run) -> Iterator[tuple[str, str]]:
    """Each value of a run that names a function of this Python program only: its dotted key, and the name."""
    for leaf in leaves(run):
        for text in leaf.texts():
            if text.startswith(in_process.PREFIX):
                yield ".".join(leaf.keys), text.removeprefix(in_process.PREFIX)


def configured_rewards(run: Run) -> Mapping[str, RewardConfig]:
    """Return every `reward` section of the run file by its key."""
    own = {
        f"data.eval.{index}.reward": taskset.reward
        for index, taskset in enumerate(run.data.eval)
        if taskset.reward is not None
    }
    return {"reward": run.reward, **own}


def workflow_rewards(workflow: WorkflowConfig) -> tuple[RewardFunctionConfig, ...]:
    """Return the default reward functions of a workflow, for a run file without a reward."""
    if workflow.name != "math":
        return ()
    math, form = RewardFunctionConfig(function="math"), RewardFunctionConfig(function="format", weight=0.1)
    return (math, form) if workflow.args.get("style") == "tags" else (math,)


def effective_reward(run: Run) -> RewardConfig:
    """Return `reward`, or the workflow's default reward if the run file has none."""
    if not run.reward.is_empty:
        return run.reward
    return run.reward.model_copy(update={"functions": workflow_rewards(run.rollout.workflow)})


def lacks_reward(run: Run) -> bool:
    """Return whether nothing scores the training rollouts, which distillation alone does not need: no part of
    `reward`, and no workflow that may."""
    if not run.algorithm.trains_on_reward:
        return False
    return effective_reward(run).is_empty and run.rollout.workflow.name in ("single_turn", "tools")


def updates_per_step(run: Run) -> int | None:
    """Return the number of updates of every step; None if steps differ in it."""
    trainer = run.trainer
    if run.algorithm.critic_warmup_steps > 0 or run.data.incomplete_batch == "keep":
        return None
    return (
        trainer.tasks_per_step
        // (trainer.tasks_per_update or trainer.tasks_per_step)
        * trainer.epochs_per_step
    )


def to_steps(run: Run, amount: Amount | None) -> Amount | None:
    """Convert updates to steps if they make whole steps; return any other amount unchanged."""
    each = updates_per_step(run)
    if amount is None or amount.unit != "updates" or each is None or amount.count % each:
        return amount
    return Amount(amount.count // each, "steps")
