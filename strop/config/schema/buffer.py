"""`buffer`: queue of experiences between explorer and trainer, and the operators on the way to it; `synchronizer`:
transfer of weights from the trainer to the explorer, and the limits on their staleness."""

from __future__ import annotations

from pathlib import PurePath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from strop.config.schema.base import Section, type_shorthand
from strop.config.schema.task_pipeline import DataJuicerSection, EndpointModelConfig, ReplyConfig
from strop.config.units import MAX_SECONDS, Amount, NonNegativeSteps, Steps


class RewardFilterConfig(Section):
    """Removal of rollouts with a low reward; the others of a group are compared with each other."""

    type: Literal["reward_filter"] = "reward_filter"
    min_reward: float = 0.0
    """Minimum reward of the rollouts that are kept."""


class RewardStdFilterConfig(Section):
    """Removal of groups whose rewards hardly differ. They are not replaced, unlike with `dynamic_sampling`."""

    type: Literal["reward_std_filter"] = "reward_std_filter"
    threshold: float = Field(default=0.0, ge=0)
    """Standard deviation up to which a group is removed; a group of one rollout is always removed."""
    deviation: Literal["population", "sample"] = "population"
    """Divisor of the variance: the number of rewards, or one less."""


class CorrectnessFilterConfig(Section):
    """Removal of groups in which all responses are correct, or none is (DAPO, arXiv 2503.14476). They are not replaced,
    unlike with `dynamic_sampling`."""

    type: Literal["correctness_filter"] = "correctness_filter"
    metric: str | None = None
    """Name of a number in the rollout's `info` or of a part of its reward, such as `accuracy`, which also finds
    `math/accuracy`; the total reward if omitted, and for a rollout without it."""
    threshold: float = 0.0
    """Value above which a response is correct; a group of one rollout is always removed."""


class RewardTermConfig(Section):
    """Change of a reward by a statistic of the rollout."""

    stat: str = Field(min_length=1)
    """Name of a number in the rollout's `info`, of a part of its reward, or of a column of the task's row; a rollout
    without it keeps its reward."""
    operation: Literal["add", "subtract", "multiply", "divide"] = "add"
    """Operation on the reward and `weight` times the statistic; a division by 0 keeps the reward."""
    weight: float = 1.0
    """Factor of the statistic."""


class RewardShapingConfig(Section):
    """Change of rewards by statistics of their rollouts, one term after the other."""

    type: Literal["reward_shaping"] = "reward_shaping"
    terms: tuple[RewardTermConfig, ...] = Field(min_length=1)
    """Terms, in order."""


class QualityModelConfig(EndpointModelConfig):
    """Language model behind an OpenAI-compatible endpoint that judges responses."""


class RolloutEngineModelConfig(ReplyConfig):
    """The policy itself, which the inference engine of the rollouts runs with the weights of the step."""

    type: Literal["engine"] = "engine"


JudgeModelConfig = Annotated[
    Annotated[QualityModelConfig | RolloutEngineModelConfig, Field(discriminator="type")],
    type_shorthand("endpoint"),
]


class LlmQualityConfig(Section):
    """Reward for the quality of a response, from 0 to 1, which a language model judges; the score also becomes the
    statistic `llm_quality_score` of the rollout's `info`."""

    type: Literal["llm_quality"] = "llm_quality"
    model: JudgeModelConfig
    """Language model that is asked: one behind an endpoint, whose replies are cached in the run's folder, or the policy
    itself with `type: engine`."""
    weight: float = 1.0
    """Factor of the score; 0 computes the statistic only."""
    attempts: int = Field(default=3, gt=0)
    """Maximum number of requests for a response; further ones sample at temperature 1. A response without a score keeps
    its reward."""
    max_invalid_fraction: float = Field(default=0.1, ge=0, le=1)
    """Maximum fraction of responses without a score, of which one is always allowed; above it the run stops."""


class DiversityRewardConfig(Section):
    """Reward for responses that differ from the others of their group: 1 minus the mean Jaccard similarity of their
    sets of word n-grams, which also becomes the statistic `diversity` of the rollout's `info`."""

    type: Literal["diversity_reward"] = "diversity_reward"
    weight: float = 1.0
    """Factor of the diversity, which is between 0 and 1; 0 computes the statistic only."""
    ngram_words: int = Field(default=2, gt=0)
    """Number of words in an n-gram."""


class LengthRewardConfig(Section):
    """Reward for short responses in comparison with the others of their group (arXiv 2501.12599): from 0.5 for the
    shortest to -0.5 for the longest; a wrong response gets only the negative part."""

    type: Literal["length_reward"] = "length_reward"
    weight: float = 1.0
    """Factor of the length reward, which is between -0.5 and 0.5."""
    correct_reward: float = 1.0
    """Minimum reward of a correct response."""


class RelabelConfig(Section):
    """Replacement of rewards by one of two values."""

    type: Literal["relabel"] = "relabel"
    threshold: float = 0.5
    """Minimum reward that becomes `above`; lower ones become `below`."""
    above: float = 1.0
    """New reward from `threshold` on."""
    below: float = 0.0
    """New reward under `threshold`."""


class HumanFeedbackConfig(Section):
    """Questions to people about the responses of a group, answered on Strop Studio's page *Rate* or through its HTTP
    interface; a score, from 0 to 1, also becomes the statistic `human_score` of the rollout's `info`."""

    type: Literal["human_feedback"] = "human_feedback"
    question: Literal["score", "preference"] = "score"
    """`score` asks for a score of each response; `preference` asks for the better of two that differ, which gets the
    score 1, and the worse one 0."""
    fraction: float = Field(default=1.0, gt=0, le=1)
    """Fraction of the groups that people are asked about, chosen by a hash of the group's id."""
    operation: Literal["replace", "add"] = "replace"
    """Whether `weight` times the score replaces the reward or is added to it. Responses without a score keep their
    reward."""
    weight: float = 1.0
    """Factor of the score; with `add`, 0 computes the statistic only."""
    timeout_seconds: float = Field(default=3600.0, gt=0, le=MAX_SECONDS)
    """Maximum wait for the answers to the questions of one step. A separate trainer waits at the same time: its own
    limits, such as `buffer.read_timeout_seconds`, must be longer."""
    unanswered: Literal["keep", "drop", "error"] = "keep"
    """Groups whose question nobody answered in time, or was skipped: `keep` leaves their rewards, `drop` removes them,
    `error` stops the run."""


class DataJuicerConfig(DataJuicerSection):
    """Operators of Data-Juicer, which its service runs on the rollouts of each group: filters remove rollouts, and
    statistics become values of the rollouts' `info`, for `reward_shaping`."""

    type: Literal["data_juicer"] = "data_juicer"


class CustomOperatorConfig(Section):
    """Operator of the user: a class whose objects are called with a group and return it, another one, or None."""

    type: Literal["custom"] = "custom"
    operator: str
    """Dotted path or `file.py:Class`."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the class."""


ExperienceOperatorConfig = Annotated[
    RewardFilterConfig
    | RewardStdFilterConfig
    | CorrectnessFilterConfig
    | RewardShapingConfig
    | LlmQualityConfig
    | DiversityRewardConfig
    | LengthRewardConfig
    | RelabelConfig
    | HumanFeedbackConfig
    | DataJuicerConfig
    | CustomOperatorConfig,
    Field(discriminator="type"),
]


DEFAULT_BUFFER_NAME = "experience_buffer"
SQLITE_SUFFIXES = (".db", ".sqlite", ".sqlite3")
JSON_LINES_SUFFIXES = (".jsonl", ".json")


def _known_suffix(path: str) -> str:
    suffixes = SQLITE_SUFFIXES + JSON_LINES_SUFFIXES
    if PurePath(path).suffix.lower() not in suffixes:
        raise ValueError(
            f"the suffix of {path!r} names no file format; end the path with {', '.join(SQLITE_SUFFIXES)} "
            "for "
            f"SQLite, or with {' or '.join(JSON_LINES_SUFFIXES)} for JSON Lines"
        )
    return path


BackupPath = Annotated[str, AfterValidator(_known_suffix)]
"""Path of a backup file; its suffix selects SQLite or JSON Lines."""


class BaseBufferConfig(Section):
    """Fields of every buffer."""

    read_timeout_seconds: float = Field(default=1800.0, ge=0, le=MAX_SECONDS)
    """Maximum wait for a complete batch; after it the trainer reads an incomplete batch."""
    on_timeout: Literal["stop", "train"] = "stop"
    """Treatment of an incomplete batch by a trainer with a separate explorer. `stop` ends the run under the style
    `fixed`, and if no group arrived; `train` trains on the groups that arrived, drops those of the step that come
    later, and waits once more if none arrived. Other styles than `fixed` always train on an incomplete batch."""
    pipeline: tuple[ExperienceOperatorConfig, ...] = ()
    """Operators that change or remove scored rollouts before they enter the buffer, in order; none by default."""


class QueueBufferConfig(BaseBufferConfig):
    """First-in, first-out queue in memory; a separate process if explorer and trainer are separate
    processes."""

    type: Literal["queue"] = "queue"
    name: str = Field(default=DEFAULT_BUFFER_NAME, min_length=1)
    """Name of the buffer's actor on Ray."""
    capacity_groups: int = Field(default=4096, gt=0)
    """Maximum number of groups in the queue; when it is full, writers wait."""
    write_timeout_seconds: float = Field(default=1800.0, ge=0, le=MAX_SECONDS)
    """Maximum time that a writer waits for free capacity; after it the run stops with an error."""
    backup: BackupPath | None = None
    """Backup file (`.db` for SQLite, `.jsonl` for JSON Lines), from which an interrupted run restores the
    groups that were not yet trained on; a relative path is relative to the run's folder. If null, there is no
    backup in a single process, and `buffer.db` if explorer and trainer are separate processes."""


class PriorityBufferConfig(BaseBufferConfig):
    """Priority queue in memory. The priority of a group is its weights version minus `use_penalty` times its
    number of uses."""

    type: Literal["priority"] = "priority"
    name: str = Field(default=DEFAULT_BUFFER_NAME, min_length=1)
    """Name of the buffer's actor on Ray."""
    capacity_groups: int = Field(default=4096, gt=0)
    """Maximum number of groups; when it is exceeded, the group of lowest priority is dropped."""
    reuse_cooldown_seconds: float | None = Field(default=None, ge=0, le=MAX_SECONDS)
    """Time after a read until the same group can be read again; null reads each group once."""
    use_penalty: float = Field(default=2.0, ge=0)
    """Reduction of the priority per use, in versions of the weights."""
    noise: float = Field(default=0.0, ge=0)
    """Standard deviation of the noise in the priority of each use; 0 for none."""
    max_uses: int | None = Field(default=None, gt=0)
    """Maximum number of reads of a group; null for no maximum."""
    backup: BackupPath | None = None
    """Backup file (`.db` for SQLite, `.jsonl` for JSON Lines), from which an interrupted run restores the
    groups that were not yet trained on; a relative path is relative to the run's folder. If null, there is no
    backup in a single process, and `buffer.db` if explorer and trainer are separate processes."""


class SqlBufferConfig(BaseBufferConfig):
    """Table of a SQLite or PostgreSQL database; writers and readers may be any process on any machine."""

    type: Literal["sql"] = "sql"
    url: str | None = None
    """Database URL: `sqlite:///file.db` (`relative_to` says what a relative path is relative to) or
    `postgresql://user:password@host/database`; null is `buffer.db` in the run's folder."""
    relative_to: Literal["run", "working_directory"] = "run"
    """Folder that a relative path in `url` is relative to: the run's, or the one in which the command runs."""
    name: str | None = Field(default=None, min_length=1)
    """Name of the buffer in the database, which belongs to one run; null is `<project>/<name>` of the run."""
    capacity_groups: int = Field(default=4096, gt=0)
    """Maximum number of groups in the queue; when it is full, writers wait."""
    write_timeout_seconds: float = Field(default=1800.0, ge=0, le=MAX_SECONDS)
    """Maximum time that a writer waits for free capacity; after it the run stops with an error."""
    lease_seconds: float = Field(default=60.0, gt=0, le=MAX_SECONDS)
    """Time without a heartbeat after which a process counts as dead, and its unfinished groups return to the
    queue."""
    reconnect_timeout_seconds: float = Field(default=600.0, ge=0, le=MAX_SECONDS)
    """Maximum time to reconnect to an unavailable database; after it the run stops with an error."""


class FileBufferConfig(BaseBufferConfig):
    """Folder with one readable file per write, for inspection; it only grows, and supports one reader."""

    type: Literal["file"] = "file"
    path: str = "experiences"
    """Folder of the files; a relative path is relative to the run's folder."""
    format: Literal["jsonl", "parquet"] = "jsonl"
    """File format: one group per line (`jsonl`) or per row (`parquet`)."""


BufferConfig = Annotated[
    QueueBufferConfig | PriorityBufferConfig | SqlBufferConfig | FileBufferConfig, Field(discriminator="type")
]


class BaseStyleConfig(Section):
    """Fields of the styles in which the trainer decides when to publish weights."""

    every: Steps = Amount(1, "steps")
    """Interval, in trainer steps, at which the trainer publishes its weights. It also publishes after the
    last step."""


class FixedStyleConfig(BaseStyleConfig):
    """The step number determines the weights version that samples it, so results do not depend on timing."""

    type: Literal["fixed"] = "fixed"
    max_lead: NonNegativeSteps = Amount(0, "steps")
    """Steps that the explorer may sample before the weights for them are published; 0 makes explorer and
    trainer take turns."""

    @property
    def max_buffered_steps(self) -> int | None:
        """Maximum number of steps in the buffer; the explorer waits before it samples more."""
        return int(self.max_lead.count + self.every.count)


PauseMode = Literal["keep", "abort", "restart", "finish"]


class RunningCompletionsConfig(Section):
    """Fields of the styles under which completions are running when new weights are loaded."""

    pause_mode: PauseMode = "keep"
    """Treatment of completions that are running when new weights are loaded: `keep` holds them in the engine, and they
    continue with the new weights; `abort` ends them in the engine, and their tokens are the beginning of a new request
    for the rest; `restart` ends them and samples them again from their beginning; `finish` waits for them."""


class LatestStyleConfig(RunningCompletionsConfig, BaseStyleConfig):
    """The explorer takes the latest published weights at each step, and never waits for newer ones."""

    type: Literal["latest"] = "latest"

    @property
    def max_buffered_steps(self) -> int | None:
        """None: only the buffer's capacity limits how far the explorer is ahead."""
        return None


class OnRequestStyleConfig(RunningCompletionsConfig):
    """The explorer requests new weights, and waits until the trainer has finished its current step."""

    type: Literal["on_request"] = "on_request"
    every: Steps = Amount(1, "steps")
    """Interval, in explorer steps, at which the explorer requests new weights."""

    @property
    def max_buffered_steps(self) -> int | None:
        """None: only the buffer's capacity limits how far the explorer is ahead."""
        return None


class BoundedStyleConfig(RunningCompletionsConfig, BaseStyleConfig):
    """The explorer takes the latest published weights, and waits only if they exceed `max_staleness`."""

    type: Literal["bounded"] = "bounded"
    max_staleness: NonNegativeSteps = Amount(2, "steps")
    """Maximum age of the sampling weights, in trainer steps, at the step that trains on the rollouts."""

    @property
    def max_buffered_steps(self) -> int | None:
        """Maximum number of steps in the buffer; the explorer waits before it samples more."""
        return int(self.max_staleness.count) + 1


StyleConfig = Annotated[
    FixedStyleConfig | LatestStyleConfig | OnRequestStyleConfig | BoundedStyleConfig,
    Field(discriminator="type"),
    type_shorthand("fixed"),
]


class MemorySyncConfig(Section):
    """Explorer and trainer take turns in one process and share the weights in memory."""

    type: Literal["memory"] = "memory"


class DistributedSyncConfig(Section):
    """Fields of the synchronizers between an explorer process and a trainer process."""

    style: StyleConfig = FixedStyleConfig()
    """Choice of the weights version that samples a step, and of the process that waits for the other."""
    timeout_seconds: float = Field(default=1200.0, gt=0, le=MAX_SECONDS)
    """Maximum time that the explorer waits for weights; after it the run stops with an error."""
    max_restarts: int = Field(default=3, ge=0)
    """Maximum number of restarts of each killed process, in mode `both`."""


class CheckpointSyncConfig(DistributedSyncConfig):
    """Explorer and trainer are separate processes that exchange weights through a shared folder."""

    type: Literal["checkpoint"] = "checkpoint"
    folder: str = "sync"
    """Folder of the exchanged weights; a relative path is relative to the run's folder."""


class CollectiveSyncConfig(DistributedSyncConfig):
    """Explorer and trainer are separate processes of one command; weights are broadcast from memory to
    memory."""

    type: Literal["collective"] = "collective"
    backend: Literal["auto", "gloo", "nccl", "cuda_ipc"] = "auto"
    """Backend of the broadcast: `gloo` copies from host memory; `nccl` copies from GPU to GPU and requires a
    GPU for each of the two processes; `cuda_ipc` copies within one GPU that both use, and has never been run on one;
    `auto` is nccl if there are two GPUs, otherwise gloo."""


SynchronizerConfig = Annotated[
    MemorySyncConfig | CheckpointSyncConfig | CollectiveSyncConfig,
    Field(discriminator="type"),
    type_shorthand("checkpoint"),
]
