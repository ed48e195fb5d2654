"""`trinity.common.experience`: what a workflow returns."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from strop.types import Turn

_TOKENS, _LOGPROBS, _MASK = torch.int32, torch.float32, torch.bool


@dataclass
class EID:
    """Position of an experience in the run. Strop has its own, so the fields are for the workflow's own use."""

    batch: int | str = ""
    task: int | str = ""
    run: int = 0
    step: int = 0
    suffix: str = field(default_factory=lambda: uuid.uuid4().hex[:6])


@dataclass(kw_only=True)
class TrinityExperience:
    """Tokens of a conversation with the model, and their reward. Lists become tensors."""

    tokens: Any
    """[L] Prompt and responses."""
    prompt_length: int = 1
    """P, number of tokens before the first response."""
    logprobs: Any = None
    """[L-P] Log-probs of the sampled tokens."""
    action_mask: Any = None
    """[L-P] Whether the model sampled the token; all true if omitted."""
    reward: float | None = None
    eid: EID = field(default_factory=EID)
    truncate_status: str | None = None
    info: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    prompt_text: str | None = None
    response_text: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    token_level_reward: Any = None
    advantages: Any = None
    returns: Any = None
    chosen: Any = None
    rejected: Any = None
    teacher_logprobs: Any = None
    multi_modal_inputs: Any = None

    def __post_init__(self) -> None:
        self.eid = EID(**self.eid) if isinstance(self.eid, dict) else self.eid or EID()
        self.info, self.metrics = self.info or {}, self.metrics or {}
        self.tokens = torch.as_tensor(self.tokens, dtype=_TOKENS)
        responses = len(self.tokens) - self.prompt_length
        if self.logprobs is not None:
            self.logprobs = torch.as_tensor(self.logprobs, dtype=_LOGPROBS)
        if self.action_mask is None:
            self.action_mask = torch.ones(max(0, responses), dtype=_MASK)
        else:
            self.action_mask = torch.as_tensor(self.action_mask, dtype=_MASK)


def experience_of_turn(turn: Turn, text: str, messages: Sequence[Any] | None = None) -> TrinityExperience:
    """One call of the model as an experience."""
    return TrinityExperience(
        tokens=[*turn.prompt_ids.tolist(), *turn.completion_ids.tolist()],
        prompt_length=len(turn.prompt_ids),
        logprobs=_logprobs(turn),
        response_text=text,
        truncate_status="response_truncated" if turn.finish_reason == "length" else None,
        messages=None if messages is None else [*map(dict, messages), {"role": "assistant", "content": text}],
    )


def experience_of_turns(turns: Sequence[Turn], messages: Sequence[Any]) -> TrinityExperience:
    """Several calls, each of which continues the one before it, as one experience with an action mask."""
    last = turns[-1]
    ids = [*last.prompt_ids.tolist(), *last.completion_ids.tolist()]
    prompt = len(turns[0].prompt_ids)
    mask, logprobs = [False] * (len(ids) - prompt), [0.0] * (len(ids) - prompt)
    for turn in turns:
        start = len(turn.prompt_ids) - prompt
        span = slice(start, start + len(turn.completion_ids))
        mask[span] = [True] * len(turn.completion_ids)
        logprobs[span] = _logprobs(turn)
    return TrinityExperience(
        tokens=ids,
        prompt_length=prompt,
        logprobs=logprobs,
        action_mask=mask,
        messages=[dict(message) for message in messages],
        truncate_status="response_truncated" if last.finish_reason == "length" else None,
    )


def _logprobs(turn: Turn) -> list[float]:
    """[C] Those that the trainer computes; those of the sampling distribution where the engine has no others."""
    found: list[float] = (
        turn.sampler_logprobs if turn.policy_logprobs is None else turn.policy_logprobs
    ).tolist()
    return found


def turns_of(experience: Any, turns: Sequence[Turn]) -> list[int]:
    """Numbers of the recorded turns that an experience holds and trains, found by their tokens."""
    ids = [int(token) for token in experience.tokens]
    start = int(experience.prompt_length)
    mask = [False] * start + [bool(trained) for trained in experience.action_mask]
    mask += [False] * (len(ids) - len(mask))
    found = []
    for number, turn in enumerate(turns):
        prompt, end = len(turn.prompt_ids), len(turn.prompt_ids) + len(turn.completion_ids)
        if end > len(ids) or prompt == end or not all(mask[prompt:end]):
            continue
        if ids[:prompt] == turn.prompt_ids.tolist() and ids[prompt:end] == turn.completion_ids.tolist():
            found.append(number)
    return found
