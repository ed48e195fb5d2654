"""Runs built in Python: the run file with typed sections, and its public names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from strop import in_process
from strop.config.save import minimal_values, yaml_text
from strop.config.schema.algorithm import AlgorithmConfig
from strop.config.schema.base import Section, type_shorthand
from strop.config.schema.buffer import BufferConfig, SynchronizerConfig
from strop.config.schema.data import DataConfig, EvalTasksetConfig, TrainTasksetConfig, TrainTasksetOrList
from strop.config.schema.model import ModelConfig
from strop.config.schema.record import CheckpointConfig, EvaluateConfig, ExportConfig, RecordConfig
from strop.config.schema.reward import RewardConfig
from strop.config.schema.rollout import RolloutConfig
from strop.config.schema.run import ClusterConfig
from strop.config.schema.trainer import TrainerConfig
from strop.errors import ConfigError
from strop.library.callables import split_rewards
from strop.printable import did_you_mean
from strop.python_rewards import PythonReward
from strop.workers.files import atomic_write

_MEMORY = "memory"
"""Path of what `strop.train` gets from memory."""


class Model(ModelConfig):
    """Section `model`; without a path, for a model that `strop.train` gets."""

    path: str = _MEMORY
    """Hugging Face model folder, GGUF file, or name on the Hub."""


class Taskset(TrainTasksetConfig):
    """Taskset for training; without a path, for the columns of rows that `strop.train` gets."""

    path: str | tuple[str, ...] = _MEMORY
    """File, folder, Hub name, database or generator of the rows."""


class EvalTaskset(EvalTasksetConfig):
    """Taskset for evaluation; without a path, for rows that `strop.train` gets."""

    path: str | tuple[str, ...] = _MEMORY
    """File, folder, Hub name, database or generator of the rows."""


class Data(DataConfig):
    """Section `data`; without `train`, for rows that `strop.train` gets."""

    train: TrainTasksetOrList = Taskset()
    """Taskset for training."""


RewardFunctions = Callable[..., Any] | PythonReward | Sequence[Callable[..., Any] | PythonReward]


class RunDefinition(BaseModel):
    """A run built in Python, for `strop.train` and `save`. A section that is omitted has the defaults of the run file.

    Raises ConfigError for a value that is not accepted; faults between sections are found by `strop.train`.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        protected_namespaces=(),
        arbitrary_types_allowed=True,
    )

    project: str | None = None
    """Name of the project; the runs of a project share a folder."""
    name: str | None = None
    """Name of the run."""
    output: str | None = None
    """Folder of all projects."""
    folder: str | None = None
    """Folder of the run; by default `<output>/<project>/<name>`."""
    seed: int | None = None
    """Seed of the data order, of sampling and of dropout."""
    resume: str | None = None
    """`auto` to continue the run of the folder, `never` for a new start, or a checkpoint's path."""
    mode: Literal["both", "train", "explore", "bench"] | None = None
    """Role of the process."""
    model: ModelConfig | None = None
    """Model that is trained."""
    data: DataConfig | None = None
    """Tasksets, and the encoding of their prompts."""
    reward: RewardConfig | RewardFunctions | None = None
    """Scoring of responses: the section, or functions."""
    algorithm: Annotated[AlgorithmConfig, type_shorthand("grpo")] | None = None
    """Algorithm, such as `strop.Grpo(rollouts_per_task=8)`."""
    rollout: RolloutConfig | None = None
    """Sampling of responses."""
    cluster: ClusterConfig | None = None
    """Machines of explorer and trainer."""
    synchronizer: SynchronizerConfig | None = None
    """Transfer of weights from the trainer to the explorer."""
    buffer: Annotated[BufferConfig, type_shorthand("queue")] | None = None
    """Queue of experiences between explorer and trainer."""
    trainer: TrainerConfig | None = None
    """Training on experiences."""
    checkpoint: CheckpointConfig | None = None
    """Saving of checkpoints."""
    export: ExportConfig | None = None
    """Exported models."""
    evaluate: EvaluateConfig | None = None
    """Evaluation on the eval tasksets."""
    record: RecordConfig | None = None
    """Monitors, rollout files and report of the run."""

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            fields = type(self).model_fields
            faults = (
                f"there is no field {each['loc'][0]!r}{did_you_mean(str(each['loc'][0]), fields) or '.'}"
                if each["type"] == "extra_forbidden" and len(each["loc"]) == 1
                else f"{'.'.join(map(str, each['loc']))}: {each['msg']}."
                for each in error.errors()
            )
            raise ConfigError(*(f"strop.Run: {fault}" for fault in dict.fromkeys(faults))) from None

    @property
    def reward_functions(self) -> RewardFunctions | None:
        """The reward functions; None for a section."""
        return None if isinstance(self.reward, RewardConfig) else self.reward

    def values(self) -> dict[str, Any]:
        """The values of the run file that differ from the defaults, without reward functions and paths in memory."""
        found: dict[str, Any] = {}
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, Section):
                found[name] = _without_memory(minimal_values(value))
            elif value is not None and name != "reward":
                found[name] = value
        return found

    def save(self, path: str | Path) -> Path:
        """Write a run file that `strop train` runs.

        Raises ConfigError for what no path names: rows and a model that are still in memory, and functions that
        cannot be imported.
        """
        faults = []
        values = self.values()
        if "path" not in values.get("model", {}):
            faults.append("model has no path. Write model=strop.Model(path=...).")
        if "path" not in values.get("data", {}).get("train", {}):
            faults.append("data.train has no path. Write data=strop.Data(train=strop.Taskset(path=...)).")
        entries, others = split_rewards(self.reward_functions)
        for reward in others:
            name = getattr(reward.function, "__qualname__", type(reward.function).__name__)
            faults.append(
                f"the reward {name} cannot be imported. Move it into a file, and import it from there."
            )
        if in_process.PREFIX in (text := yaml_text(values)):
            name = text.partition(in_process.PREFIX)[2].split()[0]
            faults.append(
                f"the function {name} cannot be imported. Move it into a file, and import it from there."
            )
        if faults:
            raise ConfigError(*(f"Run.save: {fault}" for fault in faults))
        if entries:
            values["reward"] = {"functions": entries}
        atomic_write(Path(path), yaml_text(values))
        return Path(path)


def _without_memory(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_memory(item) for key, item in value.items() if (key, item) != ("path", _MEMORY)}
    if isinstance(value, list):
        return [_without_memory(item) for item in value]
    return value
