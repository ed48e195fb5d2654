"""Data types that cross module borders: tasks, rollouts, experiences, micro-batches and losses.

All are frozen dataclasses. The shape of each array stands in its field's docstring, with these letters:

    P  tokens of a prompt             C  tokens of a completion
    L  tokens of one sequence         T  tokens of a packed micro-batch
    S  segments in a micro-batch      V  vocabulary

Types up to `TrainingBatch` hold NumPy arrays; `MicroBatch` and later types hold torch tensors, and NumPy arrays of
what the host plans with. This module imports torch for type checking only, so that the command line starts quickly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from strop.printable import encodable

if TYPE_CHECKING:
    import torch

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]
IndexArray = npt.NDArray[np.int64]
Message = Mapping[str, Any]
"""A chat message in the format of chat templates: `role`, `content`, and optionally `tool_calls`."""

RolloutStatus = Literal["ok", "truncated", "error"]
"""Status of a finished rollout: normal, at the token limit, or with an error (never trained on)."""
FinishReason = Literal["stop", "length", "abort"]
"""Why a completion ended: an end token, stop token or stop string; or the token limit."""
FailureCause = Literal["failed", "timeout", "unscored"]
"""Why a rollout failed before it was scored: its workflow raised an error, or exceeded its time limit."""
SequenceUnit = Literal["trajectory", "turn"]
"""Unit of a rollout that becomes one training sequence."""
SegmentRole = Literal["rl", "sft", "chosen", "rejected", "desirable", "undesirable", "scored", "stepwise"]
"""Loss that an experience is trained with. A shared prompt is a separate segment: see `MicroBatch`."""


@dataclass(frozen=True, slots=True)
class ImageReference:
    """An encoded image in a run's image folder, which stores each distinct image once. Equal by digest."""

    digest: str
    """SHA-256 of the encoded image as the dataset has it, in hexadecimal."""
    path: Path = field(compare=False)
    """PNG, JPEG or WebP file: upright, RGB or grayscale, without transparency."""
    width: int = field(compare=False)
    """Width in pixels."""
    height: int = field(compare=False)
    """Height in pixels."""


@dataclass(frozen=True, slots=True)
class Task:
    """One prompt, with the data needed to score a response to it."""

    id: str
    messages: tuple[Message, ...]
    prompt_ids: IntArray
    """[P] Token ids of the prompt, at most `data.max_prompt_tokens`."""
    answer: Any = None
    source: str = ""
    """Name of the dataset (verl's `data_source`); rewards can be selected by it."""
    media: tuple[ImageReference, ...] = ()
    """Images of the prompt, in the order of their tokens in `prompt_ids`."""
    tools: tuple[Mapping[str, Any], ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Remaining columns of the task's row, available to rewards; the column of images holds the paths of `media`."""
    prompt_value: Any = None
    """Value of the prompt column: text, or messages as the row has them, decoded if they are JSON text."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters of a completion. `temperature=0` is greedy, whatever the other fields are."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """Number of most likely tokens kept; 0 keeps all."""
    min_p: float = 0.0
    """Minimum probability of a token, as a fraction of the most likely token's probability."""
    repetition_penalty: float = 1.0
    max_tokens: int = 1024
    min_tokens: int = 0
    """Minimum number of tokens; end and stop tokens are excluded before."""
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """A request to an inference engine for one completion."""

    id: str
    prompt_ids: IntArray
    """[P]"""
    sampling: SamplingParams
    seed: int
    """Seed of the completion's sampling; the result does not depend on other requests in the batch."""
    media: tuple[ImageReference, ...] = ()
    """Images of the prompt, in the order of their tokens in `prompt_ids`."""
    messages: tuple[Message, ...] = ()
    """Conversation without tools and images that `prompt_ids` encode, for an engine that takes messages; empty for
    any other prompt."""
    prompt_logprobs: bool = False
    """Whether to compute the log-probs of the prompt's tokens, on an engine that can."""
    top_logprobs: int = 0
    """Number of most likely tokens to report for each sampled token, and with `prompt_logprobs` for each token of
    the prompt, on an engine that can."""
    may_continue: bool = False
    """Whether a later request of the same `id` may begin with this one's tokens and completion, as the next turn of a
    conversation does, so that an engine keeps their keys and values for it, if it can."""


@dataclass(frozen=True, slots=True)
class TopTokens:
    """The K most likely tokens at each of N positions, in descending order."""

    token_ids: IntArray
    """[N, K]"""
    logprobs: FloatArray
    """[N, K]"""


@dataclass(frozen=True, slots=True)
class Completion:
    """An inference engine's result for one `SampleRequest`."""

    token_ids: IntArray
    """[C] Sampled tokens, with the end or stop token where one was sampled."""
    sampler_logprobs: FloatArray
    """[C] Log-probs under the sampling distribution, after temperature, penalties and filters; NaN
    from a server that does not report them, which serves evaluations only."""
    policy_logprobs: FloatArray | None
    """[C] Log-probs under softmax(logits / temperature), the distribution that the trainer computes; None from
    an engine that cannot compute them together with those of a filtered distribution; the trainer then computes
    those it needs."""
    finish_reason: FinishReason
    version: int
    """Trainer step of the weights that sampled it, or its first token."""
    token_versions: IntArray | None = None
    """[C] Trainer step of the weights that sampled each token; None where `version` sampled all of them."""
    prompt_logprobs: FloatArray | None = None
    """[P - 1] Log-probs of the prompt's tokens after its first under softmax(logits), where they were asked for."""
    top_tokens: TopTokens | None = None
    """[C, K] Most likely tokens under softmax(logits / temperature) at each sampled token, where asked for."""
    prompt_top_tokens: TopTokens | None = None
    """[P - 1, K] Most likely tokens under softmax(logits) at each of `prompt_logprobs`, where asked for."""

    def __post_init__(self) -> None:
        arrays = (self.sampler_logprobs, *_given(self.policy_logprobs, self.token_versions))
        _same_length("Completion", self.token_ids, *arrays)


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """Load of an inference engine over a period."""

    max_running: int
    """Largest number of running requests."""
    max_waiting: int
    """Largest number of requests that waited for memory or for a place in the batch."""
    max_kv_usage: float
    """Largest fraction of the KV cache in use."""
    prompt_tokens: int
    """Prompt tokens that were looked up in the cache of earlier prompts."""
    cached_prompt_tokens: int
    """Number of those tokens that were found there and not computed again."""
    preemptions: int
    """Requests whose KV cache was given to others, and computed again later."""
    sampled_tokens: int = 0
    """Tokens that were sampled."""
    busy_seconds: float = 0.0
    """Time with running requests, summed over the engines."""

    def combined_with(self, other: EngineStatistics) -> EngineStatistics:
        """Statistics of two engines over the same period, or of one engine over two."""
        return EngineStatistics(
            max(self.max_running, other.max_running),
            max(self.max_waiting, other.max_waiting),
            max(self.max_kv_usage, other.max_kv_usage),
            self.prompt_tokens + other.prompt_tokens,
            self.cached_prompt_tokens + other.cached_prompt_tokens,
            self.preemptions + other.preemptions,
            self.sampled_tokens + other.sampled_tokens,
            self.busy_seconds + other.busy_seconds,
        )


@dataclass(frozen=True, slots=True)
class Turn:
    """One model call inside a rollout."""

    prompt_ids: IntArray
    """[P] Full input of the model, including earlier turns."""
    completion_ids: IntArray
    """[C]"""
    sampler_logprobs: FloatArray
    """[C]"""
    policy_logprobs: FloatArray | None
    """[C]; None where the engine did not compute them."""
    finish_reason: FinishReason
    version: int
    media: tuple[ImageReference, ...] = ()
    """Images of the prompt, in the order of their tokens in `prompt_ids`."""
    token_versions: IntArray | None = None
    """[C] Version of the weights that sampled each token; None where `version` sampled all of them."""

    def __post_init__(self) -> None:
        arrays = (self.sampler_logprobs, *_given(self.policy_logprobs, self.token_versions))
        _same_length("Turn", self.completion_ids, *arrays)


@dataclass(frozen=True, slots=True)
class Rollout:
    """One sampled response to a task: one or more turns."""

    id: str
    task_id: str
    group: str
    index: int
    """Index in the group, from 0."""
    turns: tuple[Turn, ...]
    text: str
    """Scored text: the last completion, with its special tokens except those that end a turn."""
    status: RolloutStatus
    sampling: SamplingParams
    reward: float | None = None
    """Total reward; None before scoring and for a failed rollout. A reward set by the workflow takes precedence."""
    reward_parts: Mapping[str, float] = field(default_factory=dict)
    prediction: str | None = None
    """Answer in the response, as the first reward function that names one does (verl's `pred`); counted in majority
    votes."""
    reward_limit_exceeded: bool = False
    """Whether a reward function exceeded a limit, so that its value counts as 0."""
    error: str | None = None
    """Error message, for `status="error"`."""
    failure_cause: FailureCause | None = None
    """Cause of a failure in the workflow, or `unscored` where all reward functions leave the response out; None without
    an error and for an error in scoring."""
    attempts: int = 1
    """Number of attempts, including failed ones before the last."""
    messages: tuple[Message, ...] = ()
    """Messages after the prompt, by the model and the environment; empty where `text` is the only one."""
    turn_rewards: tuple[float, ...] | None = None
    """Reward of each turn, where the workflow sets them; `reward` holds their sum."""
    turn_states: tuple[str, ...] | None = None
    """Digest of the environment's state before each turn, where the workflow reports states."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """Values of the workflow for reward functions, which get them with the task's columns."""
    sequence_per: SequenceUnit = "trajectory"
    """Unit that becomes one training sequence."""

    def __post_init__(self) -> None:
        if (self.status == "error") != (self.error is not None):
            raise ValueError(f"Rollout {self.id}: status {self.status!r} with error {self.error!r}")
        # A user's function or workflow chooses these texts, and files and databases store them.
        if self.error is not None:
            object.__setattr__(self, "error", encodable(self.error))
        if self.reward_parts:
            parts = {encodable(name): value for name, value in self.reward_parts.items()}
            object.__setattr__(self, "reward_parts", parts)
        if self.turn_rewards is not None and len(self.turn_rewards) != len(self.turns):
            raise ValueError(
                f"Rollout {self.id}: {len(self.turn_rewards)} turn_rewards for {len(self.turns)} turns"
            )
        if self.turn_states is not None and len(self.turn_states) != len(self.turns):
            raise ValueError(
                f"Rollout {self.id}: {len(self.turn_states)} turn_states for {len(self.turns)} turns"
            )

    @property
    def response_messages(self) -> tuple[Message, ...]:
        """Messages after the prompt: `messages`, or `text` as one assistant message."""
        return self.messages or ({"role": "assistant", "content": self.text},)

    @property
    def versions(self) -> tuple[int, ...]:
        """Version of the weights that sampled each turn, or its first token."""
        return tuple(turn.version for turn in self.turns)


@dataclass(frozen=True, slots=True)
class RolloutGroup:
    """All rollouts of one task in one step."""

    id: str
    task: Task
    rollouts: tuple[Rollout, ...]


@dataclass(frozen=True, slots=True)
class Experience:
    """One training sequence."""

    id: str
    task_id: str
    group: str
    index: int
    turn: int
    token_ids: IntArray
    """[L]"""
    loss_mask: BoolArray
    """[L] True for targets: tokens that the model sampled. Always False at position 0."""
    sampler_logprobs: FloatArray
    """[L] 0 where `loss_mask` is False."""
    policy_logprobs: FloatArray | None
    """[L] 0 where `loss_mask` is False; None where the engine did not compute them for every turn."""
    reward: float
    status: RolloutStatus
    temperature: float
    versions: tuple[int, ...]
    """Version of the weights that sampled each turn, or its first token."""
    token_versions: IntArray | None = None
    """[L] Version of the weights that sampled each target, 0 where `loss_mask` is False; None where one version
    sampled all targets."""
    source: str = ""
    role: SegmentRole = "rl"
    turn_rewards: tuple[float, ...] | None = None
    """Reward of each contiguous run of targets, where turns have rewards of their own."""
    turn_states: tuple[str, ...] | None = None
    """Digest of the environment's state before each contiguous run of targets, where the workflow reports states."""
    reward_parts: Mapping[str, float] = field(default_factory=dict)
    """Parts of the rollout's reward by name."""
    pair: str | None = None
    """Id shared by a chosen and a rejected response to the same prompt; both go into one micro-batch."""
    media: tuple[ImageReference, ...] = ()
    """Images of the sequence, in the order of their tokens in `token_ids`."""

    def __post_init__(self) -> None:
        _same_length(
            "Experience",
            self.token_ids,
            self.loss_mask,
            self.sampler_logprobs,
            *_given(self.policy_logprobs, self.token_versions),
        )
        if not self.loss_mask.any() or self.loss_mask[0]:
            raise ValueError(
                f"Experience {self.id}: loss_mask needs at least one target, and none at position 0"
            )
        for name in ("turn_rewards", "turn_states"):
            values = getattr(self, name)
            if values is not None and len(values) != len(self.turn_ends):
                raise ValueError(
                    f"Experience {self.id}: {len(values)} {name} for {len(self.turn_ends)} contiguous runs of targets"
                )

    @property
    def prompt_tokens(self) -> int:
        """Number of tokens before the first target; rollouts of one group can share them."""
        return int(self.loss_mask.argmax())

    @property
    def response_tokens(self) -> int:
        """Number of targets: tokens that the model sampled."""
        return int(self.loss_mask.sum())

    @property
    def turn_ends(self) -> IntArray:
        """Position of the last target of each contiguous run of targets."""
        follows = np.append(self.loss_mask[1:], False)
        return np.flatnonzero(self.loss_mask & ~follows).astype(np.int32)


@dataclass(frozen=True, slots=True)
class ExperienceGroup:
    """All experiences of one group; a buffer puts, takes, evicts and reuses them together."""

    id: str
    experiences: tuple[Experience, ...]
    baseline: float | None = None
    """Reward of the task's greedy response, where the algorithm uses it as a baseline."""


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """Experiences of one optimizer update, with the per-token inputs of the loss.

    Each input has one entry per experience: [L] values, of which the loss reads those at targets.
    """

    experiences: Sequence[Experience]
    advantages: Sequence[float | FloatArray] | None = None
    """[L] of each experience, or one number for all its tokens; None is 0."""
    old_logprobs: Sequence[FloatArray | None] | None = None
    """[L] each: the trainer's log-probs at the start of the step; None, of all or of an experience, where the current
    ones are used."""
    ref_logprobs: Sequence[FloatArray] | None = None
    """[L] each: the reference model's log-probs."""
    teacher_logprobs: Sequence[FloatArray] | None = None
    """[L] each: the log-probs of the task's teacher."""
    values: Sequence[FloatArray] | None = None
    """[L] each: the critic's values at the start of the step."""
    returns: Sequence[float | FloatArray] | None = None
    """[L] each: the critic's targets; or one number, the reward that a reward model learns."""
    selected: Sequence[BoolArray] | None = None
    """[L] each: tokens that the policy loss treats differently, chosen over the whole update."""
    target_tokens: Sequence[IntArray] | None = None
    """[L, K] each: K tokens whose log-probs the loss gets for each target; None for the log-prob of the target."""

    def __post_init__(self) -> None:
        for name in _BATCH_INPUTS:
            column = getattr(self, name)
            if column is not None and len(column) != len(self.experiences):
                raise ValueError(
                    f"TrainingBatch.{name} has {len(column)} entries for {len(self.experiences)} experiences"
                )

    def select(self, numbers: Sequence[int]) -> TrainingBatch:
        """The batch of the experiences with these numbers."""
        columns = {name: getattr(self, name) for name in _BATCH_INPUTS}
        return TrainingBatch(
            [self.experiences[i] for i in numbers],
            **{n: None if column is None else [column[i] for i in numbers] for n, column in columns.items()},
        )


_BATCH_INPUTS = (
    "advantages",
    "old_logprobs",
    "ref_logprobs",
    "teacher_logprobs",
    "values",
    "returns",
    "selected",
    "target_tokens",
)


@dataclass(frozen=True, slots=True)
class VisionInputs:
    """Processed images, as the vision tower of their model takes them; on the CPU until the forward pass."""

    pixel_values: torch.Tensor
    """float32: [patches, values of a patch], or [tiles, channels, height, width]; of all images."""
    grid: IndexArray | None = None
    """[images, 3] Number of patches in time, height and width of each image; None for tiles."""
    pixel_mask: BoolArray | None = None
    """[tiles, height, width] False for padding; None for patches, and for tiles without padding."""


@dataclass(frozen=True, slots=True)
class PackedImages:
    """Images of a micro-batch, in the order of their tokens; those of a shared prompt once."""

    media: tuple[ImageReference, ...]
    is_image: BoolArray
    """[T] Pad tokens of the images, on the host. A pad token that the model sampled is an ordinary token."""
    load: Callable[[], VisionInputs]
    """Reads and processes the images, in the forward pass that needs them."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Input of one forward pass: sequences packed end to end, without padding.

    A prompt that several responses share is one segment, without a loss. Segment `s` attends to itself
    causally, to all of segment `prefix_of[s]`, and to whatever that segment attends to (-1: no prefix).
    A response segment starts with the prompt's last token and its prefix holds the tokens before, so that
    every target lies inside its own segment: the log-prob of `token_ids[t]` comes from the logits at `t - 1`.
    """

    token_ids: torch.Tensor
    """[T] int64"""
    position_ids: torch.Tensor
    """[T] int64, or [3, T] for a model with multimodal positions and a micro-batch with images; positions of a
    response continue those of its prefix."""
    cu_seqlens: IndexArray
    """[S+1] Segment boundaries; on the host, where attention and losses are planned without reading from a device."""
    prefix_of: tuple[int, ...]
    """[S] Number of the prefix segment, or -1."""
    experience: tuple[int, ...]
    """[S] Number of the experience in the batch, or -1 for a shared prompt."""
    role: tuple[SegmentRole | None, ...]
    """[S] Role of the segment; None for a shared prompt. A rejected response directly follows its chosen one."""
    source: tuple[str, ...]
    """[S] Data source of the segment's task."""
    weight: torch.Tensor
    """[S] float32 Loss weight of the segment."""
    targets: IndexArray
    """[N] Positions of the targets, ascending; on the host."""
    temperature: torch.Tensor
    """[T] float32 Sampling temperature: divisor of the logits of the target at t."""
    sampler_logprobs: torch.Tensor
    """[T] float32; like all fields below, 0 at tokens that are not targets."""
    advantages: torch.Tensor
    """[T] float32"""
    policy_logprobs: torch.Tensor | None = None
    """[T] float32 The sampler's log-prob of the token under softmax(logits / temperature); None unless known for
    all experiences of the update."""
    old_logprobs: torch.Tensor | None = None
    """[T] float32 The trainer's log-probs at the start of the step; None, or NaN at the targets of a sequence, where
    the current ones are used."""
    ref_logprobs: torch.Tensor | None = None
    """[T] float32 The reference model's log-probs."""
    teacher_logprobs: torch.Tensor | None = None
    """[T] float32 The log-probs of the task's teacher."""
    values: torch.Tensor | None = None
    """[T] float32 The critic's values, at the start of the step, of the state before each target."""
    returns: torch.Tensor | None = None
    """[T] float32 The critic's targets."""
    selected: torch.Tensor | None = None
    """[T] bool Tokens that the policy loss treats differently (clip_cov, kl_cov, m2po)."""
    target_tokens: torch.Tensor | None = None
    """[T, K] int64 Tokens whose log-probs are computed for each target; None for the target's own."""
    images: PackedImages | None = None
    """Images of the sequences; None without images."""

    @property
    def num_segments(self) -> int:
        """S"""
        return len(self.prefix_of)

    @property
    def loss_mask(self) -> torch.Tensor:
        """[T] bool, True at targets."""
        is_target = np.zeros(len(self.token_ids), dtype=np.bool_)
        is_target[self.targets] = True
        return self.token_ids.new_tensor(is_target).bool()

    def segment_numbers(self) -> IndexArray:
        """[T] Number of each token's segment, on the host."""
        return np.repeat(np.arange(self.num_segments), np.diff(self.cu_seqlens))

    def last_targets(self) -> IndexArray:
        """[S] Position of each segment's last target, or -1; on the host."""
        last = np.full(self.num_segments, -1)
        last[self.segment_numbers()[self.targets]] = self.targets  # ascending, so that the last one stays
        return last

    def segment_of_token(self) -> torch.Tensor:
        """[T] int64: number of each token's segment."""
        return self.token_ids.new_tensor(self.segment_numbers())

    def sequence_counts(self) -> FloatArray:
        """[T] Number of sequences that each token belongs to, which is above 1 in a shared prompt; on the host."""
        counts = np.zeros(self.num_segments, dtype=np.float32)
        for number, experience in enumerate(self.experience):
            while experience >= 0 and number >= 0:
                counts[number] += 1
                number = self.prefix_of[number]
        return counts[self.segment_numbers()]

    def longest_sequence(self) -> int:
        """Largest number of tokens of a sequence, with those of its prefixes."""
        own = np.diff(self.cu_seqlens).tolist()
        for number, prefix in enumerate(self.prefix_of):
            own[number] += own[prefix] if prefix >= 0 else 0
        return int(max(own))

    def __post_init__(self) -> None:
        tokens = self.token_ids.shape[0]
        for name in ("position_ids", "temperature", "sampler_logprobs", "advantages"):
            if getattr(self, name).shape[-1] != tokens:
                raise ValueError(f"MicroBatch.{name} does not have {tokens} tokens")
        if self.cu_seqlens[0] != 0 or self.cu_seqlens[-1] != tokens:
            raise ValueError(f"MicroBatch.cu_seqlens does not end at {tokens} tokens")
        if len(self.targets) and not 0 <= self.targets[0] <= self.targets[-1] < tokens:
            raise ValueError(f"MicroBatch.targets are not positions of {tokens} tokens")
        for name in ("policy_logprobs", *_BATCH_INPUTS[1:]):
            value = getattr(self, name)
            if value is not None and value.shape[0] != tokens:
                raise ValueError(f"MicroBatch.{name} does not have {tokens} tokens")
        per_segment = (self.prefix_of, self.experience, self.role, self.source, self.weight)
        if {len(self.cu_seqlens) - 1} != set(map(len, per_segment)):
            raise ValueError("MicroBatch: cu_seqlens and the fields of segments disagree on S")


@dataclass(frozen=True, slots=True)
class TokenOutputs:
    """A model's outputs for the targets of a micro-batch; 0 at other tokens."""

    logprobs: torch.Tensor
    """[T] float32 Log-probs at the sampling temperature, with gradient in training; 0 for a classifier. [T, K] with
    `MicroBatch.target_tokens`."""
    entropy: torch.Tensor | None = None
    """[T] float32 Entropy at the sampling temperature, in nats; None where not requested."""
    divergence: torch.Tensor | None = None
    """[T] float32 KL(policy || reference) over the whole vocabulary at the sampling temperature, in nats; None
    where not requested."""
    teacher_divergence: torch.Tensor | None = None
    """[T] float32 Divergence from the task's teacher over the vocabulary, in nats; None where not requested."""
    router_logits: tuple[torch.Tensor, ...] = ()
    """[T, E] each: logits of the router of each layer with E experts, at all tokens; empty where not requested."""
    scores: torch.Tensor | None = None
    """[T] float32 A classifier's output for each sequence, at its last target; None for a language model."""


@dataclass(frozen=True, slots=True)
class GlobalCounts:
    """Denominators of one update's loss, over all its micro-batches and ranks."""

    tokens: int
    """Number of targets; with expert demonstrations in the batch (mix), those of rollouts only."""
    sequences: int
    """Number of sequences, counted like `tokens`; a shared prompt is not a sequence."""
    expert_tokens: int = 0
    """Number of targets in expert demonstrations (mix)."""
    pairs: int = 0
    """Number of pairs of a chosen and a rejected response."""
    chosen_tokens: int = 0
    """Number of targets in the chosen responses of pairs."""
    desirable: int = 0
    """Number of responses that are labeled desirable."""
    undesirable: int = 0
    """Number of responses that are labeled undesirable."""
    reference_point: float = 0.0
    """Log-ratio to the reference, in nats, that labeled responses are compared with (kto, bco)."""
    all_tokens: int = 0
    """Number of tokens of all sequences, prompts included: a shared prompt counts for each of them."""
    kept_tokens: int | None = None
    """Number of `tokens` that a rejection before the update has kept; None where there was none."""
    mean_importance_weight: float = 1.0
    """Mean of the importance weights, which they are divided by."""
    computed_tokens: int | None = None
    """Number of `tokens` in the sequences that the update computes; None for all of them. See `measured_tokens`."""
    compared_tokens: int | None = None
    """Number of `measured_tokens` in the sequences that are compared with the old policy; None for all of them."""

    @property
    def measured_tokens(self) -> int:
        """Number of targets that metrics are means over: those that the update computes."""
        return self.tokens if self.computed_tokens is None else self.computed_tokens

    @classmethod
    def of(cls, experiences: Sequence[Experience]) -> GlobalCounts:
        """The counts of an update on these experiences."""
        kinds = {experience.role for experience in experiences}
        mixed = "sft" in kinds and "rl" in kinds
        counted = [e for e in experiences if not (mixed and e.role == "sft")]
        tokens = sum(e.response_tokens for e in counted)
        return cls(
            tokens=tokens,
            sequences=len(counted),
            expert_tokens=sum(e.response_tokens for e in experiences) - tokens,
            pairs=sum(e.role == "chosen" for e in experiences),
            chosen_tokens=sum(e.response_tokens for e in experiences if e.role == "chosen"),
            desirable=sum(e.role == "desirable" for e in experiences),
            undesirable=sum(e.role == "undesirable" for e in experiences),
            all_tokens=sum(len(e.token_ids) for e in experiences),
        )


@dataclass(frozen=True, slots=True)
class LossOutput:
    """Loss of one micro-batch, divided by the global counts, so that losses of micro-batches add up."""

    loss: torch.Tensor
    """[] float32, with gradient."""
    metrics: Mapping[str, torch.Tensor]
    """[] each, detached: contributions to the update's value, which add up over micro-batches."""


def _given(*arrays: npt.NDArray[Any] | None) -> tuple[npt.NDArray[Any], ...]:
    return tuple(array for array in arrays if array is not None)


def _same_length(type_name: str, first: npt.NDArray[Any], *others: npt.NDArray[Any]) -> None:
    for other in others:
        if len(other) != len(first):
            lengths = [len(first), *(len(o) for o in others)]
            raise ValueError(f"{type_name}: arrays of the same tokens have different lengths: {lengths}")
