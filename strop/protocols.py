"""Protocols between packages: inference and training engines, buffers, losses and rewards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from strop.types import (
    Completion,
    EngineStatistics,
    Experience,
    ExperienceGroup,
    FloatArray,
    GlobalCounts,
    ImageReference,
    IntArray,
    LossOutput,
    MicroBatch,
    SampleRequest,
    TokenOutputs,
    TrainingBatch,
    VisionInputs,
)
from strop.workers.connection import Address

if TYPE_CHECKING:
    import torch

    from strop.algorithms.registry import AnyLossSpec
    from strop.models.shared_weights import MappedWeights

LossFn = Callable[[MicroBatch, TokenOutputs, GlobalCounts], LossOutput]
"""Loss of one micro-batch: a sum over targets, divided by the update's global counts."""
ValueLossFn = Callable[[MicroBatch, "torch.Tensor", GlobalCounts], LossOutput]
"""Loss of a critic on one micro-batch, from its values [T]."""


WeightTransport = Literal["tensors", "path", "process_group"]
"""Way for weights to reach an inference engine: `load`, `load_path` or `load_process_group`."""

TrainerAddress = Callable[[], Address | None]
"""Returns the address of the trainer's server of weights, which changes with a restart; None while there is none."""

Determinism = Literal["none", "same_batch", "batch_invariant"]
"""Level of reproducibility of a seeded request.

`none`: repeated requests may get different tokens. `same_batch`: the same requests, submitted together in
the same order, get the same tokens and log-probs bit for bit; other requests in the batch may change
roundings. `batch_invariant`: a request gets the same bits whatever else is in the batch.
"""


@dataclass(frozen=True, slots=True)
class EngineCapabilities:
    """Features of an inference engine; callers ask for these instead of the engine's class."""

    weight_transports: frozenset[WeightTransport]
    """Supported ways to load weights; the other `load` methods raise `InferenceError`."""
    determinism: Determinism
    """Reproducibility of a seeded request."""
    filtered_policy_logprobs: bool
    """Whether `Completion.policy_logprobs` are computed where penalties or filters change the distribution that
    is sampled from; without it they are None there."""
    converts_weights: bool
    """Whether loaded weights are converted to a layout of the engine's own; the run then compares its log-probs
    with the trainer's after every load."""
    adapters: bool
    """Whether `load_adapter` is supported; without it `load` takes merged weights only."""
    images: bool
    """Whether prompts may contain images."""
    memory_release: bool
    """Whether `release_memory` and `restore_memory` are supported; without it both raise `InferenceError`."""
    token_versions: bool
    """Whether `Completion.token_versions` distinguishes tokens before and after a load; without it a completion has the
    version of its start."""
    prompt_logprobs: bool = False
    """Whether `SampleRequest.prompt_logprobs` is supported; without it such a request raises `InferenceError`."""
    top_logprobs: bool = False
    """Whether `SampleRequest.top_logprobs` is supported; without it such a request raises `InferenceError`."""
    weights_in_place: bool = False
    """Whether the engine reads all of the trainer's weights in place, so that a load needs no tensors."""
    adapter_in_place: bool = False
    """Whether the engine reads the trainer's weights and its adapter in place, so that a load needs no tensors."""
    keeps_prefixes: bool = False
    """Whether the KV cache of a prompt and its completion is kept for later requests that begin alike, such as the next
    turn of a conversation."""


class ImageProcessor(Protocol):
    """Turns images into tokens, positions and pixels for one model.

    Token ids are expanded everywhere: an image is as many pad tokens as it has features, with the tokens that its
    family writes between them. `expand` makes them of a prompt in which each image is one pad token.
    """

    image_token_id: int
    """Id of the pad token."""

    def token_count(self, width: int, height: int) -> int:
        """Number of tokens of an image in the expanded prompt. Raises `DataError` for a size that cannot be used."""
        ...

    def feature_count(self, width: int, height: int) -> int:
        """Number of pad tokens among them."""
        ...

    def write_images(self, text: str) -> str:
        """Rendered messages with one pad token per image; chat templates of some families do not write it."""
        ...

    def expand(self, token_ids: IntArray, media: Sequence[ImageReference]) -> IntArray:
        """Replace each image's one pad token by its tokens. Raises `DataError` if their numbers differ."""
        ...

    def positions(self, token_ids: IntArray, media: Sequence[ImageReference]) -> IntArray:
        """[L] or [3, L] Positions of an expanded sequence."""
        ...

    def process(self, media: Sequence[ImageReference]) -> VisionInputs:
        """Pixels of the images, in this order. Raises `DataError` for a file that is missing or damaged."""
        ...

    def placeholder(self) -> VisionInputs:
        """A small black image, with which a rank without images takes part in the vision tower's forward pass."""
        ...


class Sampler(Protocol):
    """Samples completions of requests."""

    @property
    def capabilities(self) -> EngineCapabilities:
        """Features of the engine that samples."""
        ...

    async def sample(self, requests: Sequence[SampleRequest]) -> list[Completion]:
        """Return completions in the order of the requests.

        Raises `StropError` for the call as a whole if any of its requests is invalid.
        """
        ...


class InferenceEngine(Sampler, Protocol):
    """Engine that samples from a model.

    Life cycle: `start`, then any of the other methods, then `close`. `sample` runs in an event loop; any
    thread may call the other methods, and what they change takes effect between two decoding steps.
    """

    @property
    def device(self) -> torch.device:
        """Device from which `load` takes tensors without a detour."""
        ...

    def start(self) -> None:
        """Acquire what the engine needs (processes, memory); return when it accepts requests.

        A second call does nothing.
        """
        ...

    def close(self) -> None:
        """Stop the engine and free its resources; pending requests raise `InferenceError`.

        A second call does nothing; every other method raises `InferenceError` after it.
        """
        ...

    def describe(self) -> str:
        """One line for the log: implementation, data type, number of processes."""
        ...

    def load(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Load tensors under Hugging Face's names, adapters merged.

        Running completions continue with the new weights; see `EngineCapabilities.token_versions`.
        """
        ...

    def load_path(self, path: Path, version: int) -> None:
        """Load the safetensors files of a Hugging Face model folder."""
        ...

    def load_adapter(self, folder: Path, version: int) -> None:
        """Load a LoRA adapter in PEFT's format in place of the last one; the engine has the base weights.

        The folder must exist until the next load: an engine that is restarted reads it again.
        """
        ...

    def load_process_group(self, trainer: TrainerAddress, version: int) -> None:
        """Receive a published version from the trainer, over a process group of it and this engine's processes.

        Raises `WeightTransferError` if the weights do not arrive, perhaps half of them; requests then wait until a
        load succeeds.
        """
        ...

    @property
    def processed_tokens(self) -> int | None:
        """Prompt and sampled tokens computed so far; while requests are running, an engine at which the number stands
        still has stopped working. None for an engine that does not count them."""
        ...

    def take_statistics(self) -> EngineStatistics | None:
        """Load since the last call; None for an engine that does not record it."""
        ...

    def abort(self) -> None:
        """End all requests that the engine has; each is answered with the tokens that it has, perhaps none.

        The finish reason of these completions is `abort`; no other has it.
        """
        ...

    def pause(self) -> None:
        """Stop decoding; running and waiting requests keep their state."""
        ...

    def resume(self) -> None:
        """Continue decoding after `pause`."""
        ...

    def release_memory(self) -> None:
        """Free the KV cache, and those weights whose memory the engine does not share with the trainer.

        Raises `InferenceError` while completions are running. Requests wait until `restore_memory`.
        """
        ...

    def restore_memory(self) -> None:
        """Accept work again after `release_memory`.

        If weights were freed, `load` must provide all of them before the next completion.
        """
        ...


@dataclass(frozen=True, slots=True)
class FileChecksum:
    """Size and checksum of a written file."""

    bytes: int
    crc32: str
    """CRC-32 as eight hexadecimal digits."""


class EngineSnapshot(Protocol):
    """The state of a training engine between two updates, to be written to disk."""

    def begin_write(self, folder: Path, *, copied: bool = False) -> Callable[[], Mapping[str, FileChecksum]]:
        """Start to write into an existing folder.

        The returned function finishes the write, in any thread, and returns size and checksum of each file by
        path. With `copied`, the state is copied first, so that training can continue during the write.
        """
        ...


@dataclass(frozen=True, slots=True)
class LowRankUpdate:
    """Adapter of a weight W [out, in], which stands for W + scale * B A (LoRA, arXiv 2106.09685)."""

    a: torch.Tensor
    """[rank, in]"""
    b: torch.Tensor
    """[out, rank]"""
    scale: float


@dataclass(frozen=True, slots=True)
class UnmergedWeights:
    """A model's own weights and its adapter, for an engine that applies the adapter itself."""

    tensors: Callable[[], Iterator[tuple[str, torch.Tensor]]]
    """Base weights with Hugging Face names."""
    adapter: Mapping[str, LowRankUpdate]
    """Update of each adapted weight, by the weight's name; the trainer changes its tensors in place."""


@dataclass(frozen=True, slots=True)
class SharedWeights:
    """Weights of a model in this process, which an inference engine can read in place.

    An inference engine may keep the tensors and read them in place: updates of the training engine then
    appear in them without a copy. Where the training engine is sharded, the tensors are copies.
    """

    config: Any
    """The model's configuration object, as its library reads it from the model folder."""
    generation_config: Any
    """The model's generation defaults, of the same library; None where the folder has none."""
    device: torch.device
    dtype: torch.dtype
    tensors: Callable[[], Iterator[tuple[str, torch.Tensor]]]
    """Full weights, adapters merged, with Hugging Face names; to be iterated to the end."""
    image_processor: Callable[[], ImageProcessor] | None = None
    """Returns the processor of the model's images; None for an engine that samples from text only."""
    unmerged: UnmergedWeights | None = None
    """The same weights without the merge; None for a model without an adapter, and for adapters of other tensors than
    the weights of linear layers."""
    mapped: MappedWeights | None = None
    """The weights for engines in other processes; None where this process alone can read them in place."""


TokenQuantity = Literal[
    "logprobs",
    "reference_logprobs",
    "teacher_logprobs",
    "scores",
    "reference_kl",
    "entropies",
    "squared_probabilities",
    "expected_entropy_effects",
]
"""A number at each target of an experience.

- log-probs of the target under the current weights, the reference model, or the teacher of its task's source
- a reward model's score of the sequence, at its last target; 0 elsewhere
- KL(current weights || reference) over the whole vocabulary
- the entropy of the target's distribution, in nats; the sum over the vocabulary of p^2, and of p^2 (H + log p)
"""


class TrainingEngine(Protocol):
    """Trains a policy or a reward model on one process or on several ranks, and computes its log-probs or scores.

    Every call gets experiences and the loss as data; the engine plans micro-batches and distributes them over
    its ranks. It owns the backward pass and gradient clipping, because DeepSpeed requires it.
    """

    supports_shared_prompts: bool
    """Whether a micro-batch can hold a group's prompt once."""
    shared_prompts_obstacle: str
    """Reason why `supports_shared_prompts` is False; empty otherwise."""
    description: str
    """Devices and sharding, as text."""

    def forward_backward(
        self, batch: TrainingBatch, loss: AnyLossSpec, counts: GlobalCounts | None = None
    ) -> Mapping[str, float]:
        """Add the gradient of the loss over a batch; returns the loss's metrics and `loss` itself.

        `counts` are the denominators of the loss; None where the batch is the whole update. Raises
        TrainingError for a loss that is NaN or infinite.
        """
        ...

    def evaluate_loss(
        self, batch: TrainingBatch, loss: AnyLossSpec, counts: GlobalCounts | None = None
    ) -> Mapping[str, float]:
        """The loss over a batch and its metrics, without a gradient; `counts` of None are those of the batch."""
        ...

    def set_lr(self, lr: float) -> None:
        """Set the learning rate of the next update; call it before the update's first `forward_backward`."""
        ...

    def set_weight_decay(self, weight_decay: float) -> None:
        """Set the weight decay of the next update."""
        ...

    def step(self) -> float:
        """Clip the gradient, update the weights, clear the gradient; returns the norm before clipping."""
        ...

    def token_values(
        self,
        experiences: Sequence[Experience],
        quantity: TokenQuantity,
        *,
        check: Callable[[], None] = lambda: None,
    ) -> list[FloatArray]:
        """[L] of each experience: a quantity at each of its targets, under the current weights.

        `check` is called between micro-batches and may raise. Raises ValueError for a quantity of a model that the
        algorithm has not.
        """
        ...

    def sync_reference(self, policy_weight: float) -> None:
        """Move the weights of the reference model: policy_weight * policy + (1 - policy_weight) * reference."""
        ...

    def iter_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Full weights, adapters merged, with Hugging Face names; to be iterated to the end."""
        ...

    def shared_weights(self) -> SharedWeights:
        """Handle of the weights for an inference engine in this process.

        The call arranges the weights so that layers that read the same input are adjacent in memory, where that
        is possible; their values stay the same.
        """
        ...

    def export(self, folder: Path, add_files: Callable[[Path], object] = lambda folder: None) -> None:
        """Write a model folder: configuration and full weights, and a LoRA adapter in a subfolder.

        `add_files` writes further files, such as the tokenizer's, before the folder gets its name. Raises
        ModelError where the folder cannot be written.
        """
        ...

    def write_adapter(self, folder: Path) -> None:
        """Write the LoRA adapter into an empty folder, in PEFT's format, for `InferenceEngine.load_adapter`.

        Raises ModelError for a model without an adapter.
        """
        ...

    def snapshot(self) -> EngineSnapshot:
        """Weights, optimizer state and random states, for a checkpoint."""
        ...

    def load(self, folder: Path) -> None:
        """Restore the state that a snapshot wrote. Raises CheckpointError for another model's state."""
        ...


@dataclass(frozen=True, slots=True)
class BufferCounts:
    """Number of a buffer's groups by state."""

    queued: int
    """Groups that can be taken, now or after their cooldown."""
    leased: int
    """Groups that are taken and not yet acknowledged."""
    done: int
    """Acknowledged groups, of which only the ids are kept."""
    evicted: int = 0
    """Groups that were evicted from a full buffer since it was opened."""


class Buffer(Protocol):
    """Holds groups of experiences between explorer and trainer. Any thread may call.

    A group is queued when it is put, leased when it is taken, and done when it is acknowledged. After a crash of
    the reader, groups that were leased and not acknowledged are queued again.
    """

    def put(self, groups: Sequence[ExperienceGroup]) -> None:
        """Add groups. A group whose id was put before is ignored, so that work can be repeated after a crash.

        Waits while the buffer is full. Raises `StoreError` after the write timeout.
        """
        ...

    def take(self, groups: int, *, timeout_seconds: float | None = None) -> list[ExperienceGroup]:
        """Lease the next groups: fewer than requested after the timeout or when all writers have finished.

        A timeout of None is the run file's. Raises `BufferExhausted` if the buffer is empty and no writer is left.
        """
        ...

    def acknowledge(self, ids: Sequence[str]) -> None:
        """Mark leased groups as done, after the checkpoint that includes the training on them.

        Raises `StoreError` for a group that is not (or no longer) leased to this reader.
        """
        ...

    def discard(self, ids: Sequence[str]) -> None:
        """Mark groups as done, whether they are queued, cool down, or are leased to this reader.

        For groups that are too stale to train on, and for groups of an earlier reader that was killed between a
        checkpoint and the acknowledgement. Unknown ids are ignored.
        """
        ...

    def finish(self) -> None:
        """Announce that this writer will put no more groups; readers take those that are left without a wait."""
        ...

    def counts(self) -> BufferCounts:
        """Number of groups by state."""
        ...

    def close(self) -> None:
        """Queue leased groups again, and close files and connections."""
        ...
