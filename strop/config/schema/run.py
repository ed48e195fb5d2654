"""The run file, whole."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from strop.config.local import expanded
from strop.config.schema.algorithm import Algorithm, Dpo, Grpo, Sft
from strop.config.schema.base import Section, kind_or
from strop.config.schema.bench import Bench
from strop.config.schema.buffer import Buffer
from strop.config.schema.cluster import Cluster, LocalCluster
from strop.config.schema.data import Data
from strop.config.schema.learning import check_learning
from strop.config.schema.meaning import check_meaning
from strop.config.schema.model import Model
from strop.config.schema.parts import check_parts, default_buffer, default_synchronizer
from strop.config.schema.reward import Reward, RewardOrShort
from strop.config.schema.rollout import Rollout
from strop.config.schema.scoring import check_helpers
from strop.config.schema.stage import Stage
from strop.config.schema.synchronizer import Synchronizer
from strop.config.schema.trainer import Trainer
from strop.config.units import Every


class Best(Section):
    """Which evaluation is the best. Those after a step count, not the one at the start."""

    metric: str | None = None
    """Of the evaluation, such as `eval/gsm8k/reward`; left out, the first eval taskset's reward."""
    mode: Literal["max", "min"] = "max"
    """Whether more of the metric is better, or less."""


Writers = Literal["thread", "process", "node", "all"]


class Checkpoint(Section):
    """What is kept to go on from. The last step is always kept."""

    every: Every = None
    """How often; `never` keeps the last step alone."""
    keep: int | None = Field(3, gt=0)
    """Older ones are deleted; null keeps all."""
    best: Best | None = None
    """The run leaves the model of its best evaluation, not of its last step: each evaluation saves a
    checkpoint then, and `keep` never deletes the best (with `keep: 1`, it stays beside the last)."""
    optimizer: bool = True
    """Keep the optimizer's state too; without it a run cannot be resumed exactly."""
    resume_optimizer: bool = True
    """Take the optimizer's state back where the run goes on; without it the optimizer starts anew."""
    copy_to: str | None = None
    """A second place for checkpoints, a path or any URL of fsspec; an empty run folder goes on from there."""
    beside: bool = False
    """Write them while training goes on, from a copy of the state, which takes the memory of that copy."""
    writers: Writers = "all"
    """Who may write one at the same time: one `thread` of the run, the threads of one `process` (of several
    ranks, they take turns), the processes of one `node`, or `all` that have a part of it."""
    export: bool = False
    """Put a Hugging Face folder, `model`, into each checkpoint too. The end of the run always writes one."""

    @model_validator(mode="after")
    def _exports_what_stands_still(self) -> Checkpoint:
        if self.beside and self.export:
            raise ValueError(
                "export writes the model as it is in memory, and with beside training has gone on by then; "
                "take one of them out (`strop export` makes a model of any checkpoint)"
            )
        return self


class Evaluate(Section):
    """When the eval tasksets are measured. The last step always is."""

    every: Every = None
    """How often; `never` leaves the start and the end."""
    at_start: bool = True
    """Measure the model as it is, before the first update; never again where a run goes on."""


class Record(Section):
    """What is written down of the run."""

    monitors: tuple[Literal["console", "tensorboard"], ...] = ("console", "tensorboard")
    """Where metrics are shown, beside `metrics.jsonl`, which is always written."""
    tensorboard: str = "tensorboard"
    """The folder of TensorBoard's files, in the run's folder unless the path is absolute."""
    rollouts_every: Every = Field(default=None)
    """How often all rollouts of a step are written as Parquet; `never` for none."""
    eval_answers: int = Field(0, ge=0)
    """So many held-out tasks, always the same, with what was answered: in TensorBoard and in the report."""
    report: bool = True
    """Write `report.html` at the end, however the run ends; `strop report` writes it at any time."""


class Run(Section):
    """One run: what is trained, on what, how, and what is kept of it."""

    project: str = Field("strop", pattern=r"^[^/\\]+$")
    """Runs of one project stand in one folder."""
    name: str = Field("run", pattern=r"^[^/\\]+$")
    """The run's folder is `<output>/<project>/<name>`."""
    output: str = "runs"
    """The folder under which all is written."""
    folder: str | None = None
    """The run's folder itself, in place of `<output>/<project>/<name>`."""
    seed: int = Field(1, ge=0)
    """Fixes the order of the data, every draw, and dropout."""
    resume: str = "auto"
    """`auto` goes on from the run folder's last good checkpoint, `never` starts anew, a path from there."""
    mode: Literal["both", "train", "explore", "bench"] = "both"
    """`both` explores and trains; `train` and `explore` are one half each, which meet in `buffer` and
    `synchronizer` with the other, on this machine or another; `bench` measures checkpoints."""
    model: Model
    """What is trained."""
    data: Data
    """Where tasks come from."""
    reward: RewardOrShort = Reward()
    """How an answer is scored."""
    algorithm: Annotated[Algorithm, kind_or("grpo")] = Grpo()
    """What is learned from scored answers."""
    rollout: Rollout = Rollout()
    """How answers are sampled."""
    cluster: Cluster = LocalCluster()
    """Where explorer and trainer run when they are processes of their own."""
    synchronizer: Synchronizer = Field(default_factory=default_synchronizer)
    """How new weights come to the explorer, and who waits for whom; left out, `memory`, but `checkpoint` in
    the modes train and explore, and on Ray."""
    buffer: Annotated[Buffer, kind_or("queue")] = Field(default_factory=default_buffer)
    """Where experiences wait between explorer and trainer; left out, `queue`, but `sql` where they are
    processes of their own."""
    trainer: Trainer = Trainer()
    """How experiences become new weights."""
    checkpoint: Checkpoint = Checkpoint()
    """What is kept to go on from."""
    evaluate: Evaluate = Evaluate()
    """When the eval tasksets are measured."""
    record: Record = Record()
    """What is written down of the run."""
    bench: Bench = Bench()
    """What mode bench measures."""
    stages: tuple[Stage, ...] = ()
    """Runs one after the other, each from the model of the one before; none for a single run."""

    @property
    def folder_path(self) -> Path:
        """The folder of all that the run writes."""
        whole = Path(self.folder) if self.folder else Path(self.output) / self.project / self.name
        return expanded(whole)

    @model_validator(mode="after")
    def _consistent(self) -> Run:
        names = [taskset.name for taskset in self.data.eval]
        doubled = sorted({name for name in names if names.count(name) > 1})
        if doubled:
            raise ValueError(f"data.eval: the name {doubled[0]!r} is given to two tasksets")
        for where, sampling in (
            ("rollout.sampling", self.rollout.sampling),
            *((f"data.eval ({t.name}).sampling", t.sampling) for t in self.data.eval),
        ):
            if sampling.min_response_tokens >= self.data.max_response_tokens:
                raise ValueError(
                    f"{where}.min_response_tokens ({sampling.min_response_tokens}) must be below "
                    f"data.max_response_tokens ({self.data.max_response_tokens})"
                )
        if self.rollout.sampling.temperature == 0:
            raise ValueError(
                "rollout.sampling.temperature is 0: all rollouts of a task would be the same and "
                "nothing could be learned; write a temperature above 0"
            )
        check_meaning(self)
        check_learning(self)
        check_parts(self)
        overlong = None if isinstance(self.algorithm, Sft | Dpo) else self.algorithm.overlong_penalty
        if overlong is not None and overlong.buffer_tokens > self.data.max_response_tokens:
            raise ValueError(
                f"algorithm.overlong_penalty.buffer_tokens ({overlong.buffer_tokens}) is the last part of "
                f"data.max_response_tokens ({self.data.max_response_tokens}), and cannot be more"
            )
        capacity = getattr(self.buffer, "capacity_groups", None)
        if capacity is not None and capacity < self.trainer.tasks_per_step:
            raise ValueError(
                f"buffer.capacity_groups ({capacity}) holds not even one step "
                f"(trainer.tasks_per_step is {self.trainer.tasks_per_step})"
            )
        check_helpers(self)
        longest, of_what = self.max_sequence_tokens, "rollout.max_sequence_tokens"
        if self.rollout.max_sequence_tokens is None:
            of_what = "data.max_prompt_tokens + data.max_response_tokens"
        elif longest <= self.data.max_prompt_tokens:
            raise ValueError(
                f"rollout.max_sequence_tokens ({longest}) leaves no room for an answer after a prompt of "
                f"data.max_prompt_tokens ({self.data.max_prompt_tokens})"
            )
        if longest > self.rollout.engine.kv_cache_tokens:
            raise ValueError(
                f"rollout.engine.kv_cache_tokens ({self.rollout.engine.kv_cache_tokens}) holds not "
                f"even one longest sequence ({longest} = {of_what})"
            )
        return self

    @property
    def max_sequence_tokens(self) -> int:
        """The longest conversation, prompt and all turns."""
        return self.rollout.max_sequence_tokens or self.data.max_prompt_tokens + self.data.max_response_tokens
