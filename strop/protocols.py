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
    Task,
    TokenOutputs,
)

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

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


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """What a file is that was written, to know it again."""

    bytes: int
    crc32: str
    """Eight hexadecimal digits."""


class Snapshot(Protocol):
    """A training engine's state between two updates, not yet on disk."""

    def begin(self, folder: Path, *, copied: bool = False) -> Callable[[], Mapping[str, WrittenFile]]:
        """Begin to write into an existing folder. What is returned does the rest, in any thread, and says by
        their paths what those files are that it has checked; with `copied`, training may go on before."""
        ...


class TrainingEngine(Protocol):
    """Runs the model to learn. It owns backward and clipping, because DeepSpeed must."""

    device: torch.device
    """Where micro-batches are packed to."""
    shares_prompts: bool
    """Whether a micro-batch may hold a group's prompt once."""
    why_not_shared: str
    description: str
    """Where it computes, in words."""

    @property
    def computing(self) -> PreTrainedModel:
        """The model that computes: its configuration is whole, its weights may be parts of themselves."""
        ...

    @property
    def compute_dtype(self) -> torch.dtype:
        """Of the model's arithmetic, and of `iter_weights`."""
        ...

    def forward_backward(
        self,
        micro_batches: Sequence[MicroBatch],
        loss_fn: LossFn,
        counts: GlobalCounts,
        *,
        entropy: bool,
        divergence: bool = False,
    ) -> Mapping[str, float]:
        """Add the micro-batches' gradients; returns the sums of the loss's metrics, and of `loss` itself.
        `entropy` and `divergence` say which of these the loss takes beside log-probs."""
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

    def logprobs(
        self,
        micro_batches: Sequence[MicroBatch],
        *,
        reference: bool = False,
        check: Callable[[], None] = lambda: None,
    ) -> list[torch.Tensor]:
        """[T] of each, without gradient, by the current weights or by the reference's; `check` is called
        between them, and may raise."""
        ...

    def lay_out_for_sampling(self) -> None:
        """Lay the weights out as the native sampler wants them, where that lets it share them."""
        ...

    def divergences(self, micro_batches: Sequence[MicroBatch]) -> list[torch.Tensor]:
        """[T] of each, KL(current weights || reference) over the whole vocabulary, without gradient."""
        ...

    def iter_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The full weights, adapters merged, named as Hugging Face names them; to be used to the end."""
        ...

    def export(self, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
        """Write a Hugging Face folder: config, tokenizer and full weights; an adapter beside them."""
        ...

    def snapshot(self) -> Snapshot:
        """Weights, optimizer and random states, as a checkpoint holds them."""
        ...

    def load(self, folder: Path) -> None:
        """Take back exactly what a snapshot wrote."""
        ...


ValueLossFn = Callable[[MicroBatch, "torch.Tensor", GlobalCounts], LossOutput]
"""A loss of values [T], as `LossFn` is of log-probs."""


class CriticEngine(Protocol):
    """Runs a value model to learn: what `TrainingEngine` is to a policy."""

    device: torch.device
    """Where micro-batches are packed to."""
    shares_prompts: bool
    """Whether a micro-batch may hold a group's prompt once."""

    def forward_backward(
        self, micro_batches: Sequence[MicroBatch], loss_fn: ValueLossFn, counts: GlobalCounts
    ) -> Mapping[str, float]:
        """Add the micro-batches' gradients; returns the sums of the loss's metrics, and of `loss` itself."""
        ...

    def set_lr(self, lr: float) -> None:
        """The learning rate of the next update; said before its first `forward_backward`."""
        ...

    def step(self) -> float:
        """Clip, update the weights, forget the gradient; returns the norm before clipping."""
        ...

    def values(self, micro_batches: Sequence[MicroBatch]) -> list[torch.Tensor]:
        """[T] of each, without gradient, by the current weights."""
        ...

    def snapshot(self) -> Snapshot:
        """Weights and optimizer, as a checkpoint holds them."""
        ...

    def load(self, folder: Path) -> None:
        """Take back exactly what a snapshot wrote."""
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

    def discard(self, ids: Sequence[str]) -> None:
        """Take groups out for good, whether they wait, cool down, or were taken from here: they are done.

        For those too old to learn from; and for those learned from by an earlier reader, which was killed
        after the checkpoint that has them, before it could acknowledge them. Others are passed over.
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
