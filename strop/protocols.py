"""What the parts of the road are to each other: any class with these methods fits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from strop.types import (
    Completion,
    ExperienceGroup,
    GlobalCounts,
    LossOutput,
    MicroBatch,
    Rollout,
    SampleRequest,
    Sampling,
    Task,
    TokenOutputs,
)

if TYPE_CHECKING:
    import torch

LossFn = Callable[[MicroBatch, TokenOutputs, GlobalCounts], LossOutput]
"""A loss is a sum over targets divided by a global count that is passed in."""

Score = Callable[[Task, Rollout], tuple[float, Mapping[str, float]]]
"""A reward: the total, and its named parts."""


class InferenceEngine(Protocol):
    """Runs the model to sample from it."""

    async def sample(self, requests: Sequence[SampleRequest]) -> list[Completion]:
        """Completions in the order of the requests. Raises `StropError` only for all of them."""
        ...

    def load(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Take new weights, named as Hugging Face names them, adapters merged."""
        ...

    def pause(self) -> None:
        """Stop drawing tokens and keep the state of what is under way."""
        ...

    def resume(self) -> None:
        """Go on after `pause`."""
        ...


class TrainingEngine(Protocol):
    """Runs the model to learn. It owns backward and clipping, because DeepSpeed must."""

    def forward_backward(
        self, micro_batch: MicroBatch, loss_fn: LossFn, counts: GlobalCounts, *, entropy: bool
    ) -> Mapping[str, float]:
        """Add one micro-batch's gradient; returns the loss's metrics and `loss` itself."""
        ...

    def set_lr(self, lr: float) -> None:
        """The learning rate of the next update; said before its first `forward_backward`."""
        ...

    def set_weight_decay(self, weight_decay: float) -> None:
        """The same for the weight decay, where it does not stay what the run file says."""
        ...

    def step(self) -> float:
        """Clip, update the weights, forget the gradient; returns the norm before clipping."""
        ...

    def logprobs(self, micro_batch: MicroBatch, *, reference: bool = False) -> torch.Tensor:
        """[T] without gradient, by the current weights or by the reference's."""
        ...

    def iter_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The full weights, adapters merged, named as Hugging Face names them."""
        ...

    def save(self, folder: Path) -> None:
        """Write weights, optimizer and RNG states into an existing folder."""
        ...

    def load(self, folder: Path) -> None:
        """Take back exactly what `save` wrote."""
        ...


class Workflow(Protocol):
    """How a task becomes a rollout."""

    async def run(self, task: Task, group: str, index: int, sampling: Sampling, seed: int) -> Rollout:
        """One unscored rollout. What it raises breaks this rollout only."""
        ...


@dataclass(frozen=True, slots=True)
class BufferCounts:
    """How many groups of a buffer are in which state."""

    queued: int
    """Can be taken, now or after their cooldown."""
    claimed: int
    """Taken and not yet acknowledged."""
    done: int
    """Acknowledged; of these only the ids are kept."""
    evicted: int = 0
    """Dropped for want of room, since the buffer was opened."""


class Buffer(Protocol):
    """Holds experiences between explorer and trainer, by whole groups; any thread may call.

    A group is queued when it is put, claimed when it is taken, and done when it is acknowledged.
    What was claimed and never acknowledged is queued again after a crash.
    """

    def put(self, groups: Sequence[ExperienceGroup]) -> None:
        """Add groups. One whose id was put before is not put again, so work may be redone after a crash.

        Waits while the buffer is full. Raises `StoreError` when that takes too long.
        """
        ...

    def take(self, groups: int, *, timeout_seconds: float | None = None) -> list[ExperienceGroup]:
        """Claim the next so many groups; fewer once the time is up (None: the run file's) or writers ended.

        Raises `BufferEnded` when nothing is left and nobody is left to write.
        """
        ...

    def acknowledge(self, ids: Sequence[str]) -> None:
        """Say that what was learned from these groups is kept, for good: after the checkpoint that has it.

        Raises `StoreError` for a group that this reader does not hold (any more).
        """
        ...

    def finish(self) -> None:
        """Say that no more groups will come from here; readers read what is left and then no longer wait."""
        ...

    def counts(self) -> BufferCounts:
        """How many groups are in which state."""
        ...

    def close(self) -> None:
        """Give back what is claimed and not acknowledged, and let go of files and connections."""
        ...
