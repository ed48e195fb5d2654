"""`synchronizer`: transfer of weights from the trainer to the explorer, and the limits on their staleness."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from strop.config.schema.base import Section, type_shorthand
from strop.config.units import MAX_SECONDS, Amount, NonNegativeSteps, Steps


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
    timeout_seconds: float = Field(1200.0, gt=0, le=MAX_SECONDS)
    """Maximum time that the explorer waits for weights; after it the run stops with an error."""
    max_restarts: int = Field(3, ge=0)
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
