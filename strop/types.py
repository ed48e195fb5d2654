"""The things that travel between Strop's modules: frozen dataclasses, never dicts of tensors.

Shapes stand beside each field. The letters, everywhere in Strop:

    P  tokens of a prompt             C  tokens of a completion
    L  tokens of one sequence         T  tokens of a packed micro-batch
    S  segments in a micro-batch      V  vocabulary

Up to the buffer they hold NumPy arrays; torch begins at `MicroBatch`. This module never
imports torch when it runs, so that the command line starts quickly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]
Message = Mapping[str, Any]
"""One chat message as chat templates take it: `role`, `content`, and perhaps `tool_calls`."""

Status = Literal["ok", "truncated", "error"]
"""How a rollout ended: by itself, at the token limit, or broken (then it is never trained on)."""
Finish = Literal["stop", "length"]
"""Why a completion ended: an end or stop token (or string), or the token limit."""
Cause = Literal["failed", "late"]
"""Why a rollout broke before it was scored: its workflow went wrong, or took too long."""
Unit = Literal["trajectory", "turn"]
"""What of a rollout becomes one training sequence."""
Role = Literal["rl", "sft", "chosen", "rejected"]
"""What an experience is trained as. A shared prompt is a segment of its own: see `MicroBatch`."""


@dataclass(frozen=True, slots=True)
class Task:
    """One prompt with what is needed to score an answer to it."""

    id: str
    messages: tuple[Message, ...]
    prompt_ids: Ints
    """[P] The encoded prompt, already within `data.max_prompt_tokens`."""
    answer: Any = None
    source: str = ""
    """Where the task is from (verl's `data_source`); rewards may be chosen by it."""
    media: tuple[Any, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    """The other columns of the task's row, for rewards that want them."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. `temperature=0` is greedy, whatever the rest says."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """Keep the k likeliest tokens; 0 keeps all."""
    min_p: float = 0.0
    """Drop tokens less likely than this share of the likeliest one."""
    repetition_penalty: float = 1.0
    max_tokens: int = 1024
    min_tokens: int = 0
    """Until so many tokens are out, neither end nor stop tokens can be drawn."""
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """One completion asked of an inference engine."""

    id: str
    prompt_ids: Ints
    """[P]"""
    sampling: Sampling
    seed: int
    """Fixes every draw of this completion, whatever else is in the batch."""


@dataclass(frozen=True, slots=True)
class Completion:
    """What an inference engine answers to one `SampleRequest`."""

    token_ids: Ints
    """[C] With the end or stop token, where one was drawn."""
    sampler_logprobs: Floats
    """[C] Under the distribution that was really sampled from: tempered, penalised, cut."""
    policy_logprobs: Floats
    """[C] Under softmax(logits / temperature): what the trainer computes for the same token."""
    finish: Finish
    version: int
    """The trainer step whose weights drew it."""

    def __post_init__(self) -> None:
        _same_length("Completion", self.token_ids, self.sampler_logprobs, self.policy_logprobs)


@dataclass(frozen=True, slots=True)
class Turn:
    """One model call inside a rollout."""

    prompt_ids: Ints
    """[P] All that the model was shown, earlier turns included."""
    completion_ids: Ints
    """[C]"""
    sampler_logprobs: Floats
    """[C]"""
    policy_logprobs: Floats
    """[C]"""
    finish: Finish
    version: int

    def __post_init__(self) -> None:
        _same_length("Turn", self.completion_ids, self.sampler_logprobs, self.policy_logprobs)


@dataclass(frozen=True, slots=True)
class Rollout:
    """One sampled answer to a task."""

    id: str
    task_id: str
    group: str
    index: int
    """Its place in the group, from 0."""
    turns: tuple[Turn, ...]
    text: str
    """The answer that is scored: the last completion, decoded without special tokens."""
    status: Status
    sampling: Sampling
    reward: float | None = None
    """None until scored, and for a broken rollout for ever; what a workflow gives itself comes first."""
    reward_parts: Mapping[str, float] = field(default_factory=dict)
    error: str | None = None
    """What broke, for `status="error"`."""
    cause: Cause | None = None
    """Why, where the workflow is to blame; None where scoring is, or nobody."""
    attempts: int = 1
    """How often it was begun; those before the last one broke."""
    messages: tuple[Message, ...] = ()
    """What was said after the prompt, by the model and by others, where that is more than `text`."""
    turn_rewards: tuple[float, ...] | None = None
    """What each turn earned by itself, where the workflow says; `reward` holds their sum."""
    unit: Unit = "trajectory"
    """What becomes one training sequence."""

    def __post_init__(self) -> None:
        if (self.status == "error") != (self.error is not None):
            raise ValueError(f"Rollout {self.id}: status {self.status!r} with error {self.error!r}")
        if self.turn_rewards is not None and len(self.turn_rewards) != len(self.turns):
            raise ValueError(
                f"Rollout {self.id}: {len(self.turn_rewards)} turn_rewards for {len(self.turns)} turns"
            )

    @property
    def said(self) -> tuple[Message, ...]:
        """What was said after the prompt: `messages`, or the one answer."""
        return self.messages or ({"role": "assistant", "content": self.text},)

    @property
    def versions(self) -> tuple[int, ...]:
        """The weights' version of each turn."""
        return tuple(turn.version for turn in self.turns)


@dataclass(frozen=True, slots=True)
class Group:
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
    token_ids: Ints
    """[L]"""
    loss_mask: Bools
    """[L] True where the token is the model's own, and so a target. Never at position 0."""
    sampler_logprobs: Floats
    """[L] 0 where `loss_mask` is False."""
    policy_logprobs: Floats
    """[L] 0 where `loss_mask` is False."""
    reward: float
    status: Status
    temperature: float
    versions: tuple[int, ...]
    source: str = ""
    role: Role = "rl"
    turn_rewards: tuple[float, ...] | None = None
    """Of each unbroken run of targets, where turns were rewarded by themselves."""
    pair: str | None = None
    """The same for a chosen answer and the rejected one to the same prompt: never apart in training."""
    media: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        _same_length(
            "Experience", self.token_ids, self.loss_mask, self.sampler_logprobs, self.policy_logprobs
        )
        if not self.loss_mask.any() or self.loss_mask[0]:
            raise ValueError(f"Experience {self.id}: needs at least one target, and none at position 0")
        if self.turn_rewards is not None and len(self.turn_rewards) != len(self.turn_ends):
            raise ValueError(
                f"Experience {self.id}: {len(self.turn_rewards)} turn_rewards for {len(self.turn_ends)} "
                "unbroken runs of targets"
            )

    @property
    def prompt_tokens(self) -> int:
        """Tokens before the first target; rollouts of one group may share them."""
        return int(self.loss_mask.argmax())

    @property
    def response_tokens(self) -> int:
        """Targets: the tokens that the model itself drew."""
        return int(self.loss_mask.sum())

    @property
    def turn_ends(self) -> Ints:
        """Where each unbroken run of targets has its last one."""
        follows = np.append(self.loss_mask[1:], False)
        return np.flatnonzero(self.loss_mask & ~follows).astype(np.int32)


@dataclass(frozen=True, slots=True)
class ExperienceGroup:
    """All experiences of one group: put, taken, evicted and reused whole."""

    id: str
    experiences: tuple[Experience, ...]
    baseline: float | None = None
    """The reward of the task's greedy answer, where the algorithm compares with it."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """What goes through the model at once: sequences packed end to end, without padding.

    A group's prompt stands in it once, as a segment without a loss. Segment `s` attends to
    itself causally, and to all of segment `prefix_of[s]` and whatever that one attends to
    (-1: nothing more). A response segment opens with the prompt's last token, its prefix
    holds the rest, so that every target lies inside its own segment: the log-prob of
    `token_ids[t]` comes from the logits at `t - 1`.
    """

    token_ids: torch.Tensor
    """[T] int64"""
    position_ids: torch.Tensor
    """[T] int64; a response goes on counting where its prefix ends."""
    cu_seqlens: torch.Tensor
    """[S+1] int32 Where segments begin and end."""
    prefix_of: tuple[int, ...]
    """[S] The segment that this one also attends to, or -1."""
    experience: tuple[int, ...]
    """[S] Which experience of the batch this segment is, or -1 for a shared prompt."""
    role: tuple[Role | None, ...]
    """[S] What the segment is trained as; None for a shared prompt. Of a pair, the rejected answer comes
    right after the chosen one."""
    weight: torch.Tensor
    """[S] float32 What the segment's loss is multiplied with."""
    loss_mask: torch.Tensor
    """[T] bool"""
    temperature: torch.Tensor
    """[T] float32 What the logits of the target at t are divided by."""
    sampler_logprobs: torch.Tensor
    """[T] float32; like all below, 0 where `loss_mask` is False."""
    policy_logprobs: torch.Tensor
    """[T] float32 What the sampler says the trainer should compute for the same token."""
    advantages: torch.Tensor
    """[T] float32"""
    old_logprobs: torch.Tensor | None = None
    """[T] float32 The trainer's at the start of the step; None where those are the current ones."""
    ref_logprobs: torch.Tensor | None = None
    """[T] float32"""
    values: torch.Tensor | None = None
    """[T] float32 The critic's at the start of the step, of the state that each target was drawn in."""
    returns: torch.Tensor | None = None
    """[T] float32 What the critic should have said."""

    @property
    def segments(self) -> int:
        """S"""
        return len(self.prefix_of)

    def segment_of_token(self) -> torch.Tensor:
        """[T] int64: the segment of each token."""
        lengths = (self.cu_seqlens[1:] - self.cu_seqlens[:-1]).long()
        numbers = lengths.new_ones(self.segments).cumsum(0) - 1
        return numbers.repeat_interleave(lengths)

    def __post_init__(self) -> None:
        tokens = self.token_ids.shape[0]
        always = (
            "position_ids",
            "loss_mask",
            "temperature",
            "sampler_logprobs",
            "policy_logprobs",
            "advantages",
        )
        for name in always:
            if getattr(self, name).shape[-1] != tokens:
                raise ValueError(f"MicroBatch.{name} is not {tokens} tokens long")
        for name in ("old_logprobs", "ref_logprobs", "values", "returns"):
            value = getattr(self, name)
            if value is not None and value.shape[-1] != tokens:
                raise ValueError(f"MicroBatch.{name} is not {tokens} tokens long")
        per_segment = (self.prefix_of, self.experience, self.role, self.weight)
        if {len(self.cu_seqlens) - 1} != set(map(len, per_segment)):
            raise ValueError("MicroBatch: cu_seqlens, prefix_of, experience, role and weight disagree on S")


@dataclass(frozen=True, slots=True)
class TokenOutputs:
    """What the model says of a micro-batch's targets; 0 where `loss_mask` is False."""

    logprobs: torch.Tensor
    """[T] float32, with gradient in training."""
    entropy: torch.Tensor | None = None
    """[T] float32, nats, of the tempered distribution; None when nobody asked."""
    divergence: torch.Tensor | None = None
    """[T] float32, nats: KL(policy || reference) over the whole vocabulary, of the same distributions; None
    when nobody asked."""


@dataclass(frozen=True, slots=True)
class GlobalCounts:
    """What one update's loss is divided by, over all its micro-batches and ranks."""

    tokens: int
    """Targets; where an expert's answers are mixed in, those of the rollouts alone."""
    sequences: int
    """Experiences, of the same; a shared prompt is none."""
    expert_tokens: int = 0
    """Targets in the expert's answers, under mix."""
    pairs: int = 0
    """Pairs of a chosen and a rejected answer."""


@dataclass(frozen=True, slots=True)
class LossOutput:
    """The loss of one micro-batch, already divided by the global counts, so that losses add up."""

    loss: torch.Tensor
    """[] float32, with gradient."""
    metrics: Mapping[str, torch.Tensor]
    """[] each, detached: shares of the update's value, so that they add up too."""


def _same_length(what: str, first: npt.NDArray[Any], *others: npt.NDArray[Any]) -> None:
    for other in others:
        if len(other) != len(first):
            lengths = [len(first), *(len(o) for o in others)]
            raise ValueError(f"{what}: arrays of lengths {lengths} belong to the same tokens")
