"""`trinity.common.experience`: what a workflow returns, and the result that a run makes of it."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import torch

from strop.types import Turn
from strop.workflows.result import InvalidWorkflowResult, WorkflowResult

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


_UNSUPPORTED = (
    "token_level_reward",
    "advantages",
    "returns",
    "chosen",
    "rejected",
    "teacher_logprobs",
    "multi_modal_inputs",
)


def to_result(experiences: Any, turns: Sequence[Turn]) -> WorkflowResult:
    """The turns of the experiences, their rewards, and the means of their metrics.

    The reward of the rollout is that of the last experience, as in Trinity's multi-step advantages; where
    experiences have different rewards, each turn also has its own, and so it has where `info` has the state of the
    environment and the step's reward, as for Trinity's GiGPO. An experience without a reward leaves it to
    the run's `reward`. Raises `InvalidWorkflowResult` for tokens that the model did not sample in this rollout.
    """
    if not isinstance(experiences, list | tuple) or not experiences:
        raise InvalidWorkflowResult(
            f"the workflow returned {experiences!r:.80}; it must return a list of one or more experiences"
        )
    reward_of: dict[int, float | None] = {}
    experience_of: dict[int, Any] = {}
    for number, experience in enumerate(experiences):
        _check(experience, number)
        found = turns_of(experience, turns)
        new = [turn for turn in found if turn not in reward_of]
        if not found:
            raise InvalidWorkflowResult(
                f"experience {number} has tokens that the model did not sample in this rollout; return the "
                "experiences of the model's calls, or new ones with the same tokens and prompt_length"
            )
        # Equal samples of one prompt have equal tokens: each experience stands for one of them.
        trained = new if _is_whole(experience, turns, found) else new[:1]
        reward_of |= dict.fromkeys(trained, _reward(experience, number))
        experience_of |= dict.fromkeys(trained, experience)
    order = sorted(reward_of)
    rewards = [reward_of[turn] for turn in order]
    by_turn = [experience_of[turn] for turn in order]
    states = _states(by_turn)
    if states is not None:
        rewards = _step_rewards(by_turn, rewards[-1])
    last = experiences[-1]
    return WorkflowResult(
        reward=_reward(last, len(experiences) - 1),
        parts=_mean_metrics(experiences),
        turn_rewards=None if len(set(rewards)) == 1 else [reward or 0.0 for reward in rewards],
        turn_states=states,
        turns=[turns[turn] for turn in order],
        text=getattr(last, "response_text", None),
    )


def _states(experiences: Sequence[Any]) -> list[str] | None:
    """State of the environment before each turn (`info["env_state_hash"]`), from the turns' experiences; None where
    no experience has one."""
    states = [(experience.info or {}).get("env_state_hash") for experience in experiences]
    if all(state is None for state in states):
        return None
    if None in states or len({id(experience) for experience in experiences}) < len(experiences):
        raise InvalidWorkflowResult(
            'an experience has info["env_state_hash"], but not each turn is an experience of its own with the state '
            "before it; return one for each turn"
        )
    return [str(state) for state in states]


def _step_rewards(experiences: Sequence[Any], last: float | None) -> list[float | None]:
    """Rewards of single steps (`info["step_reward"]`); without them, the rollout's reward at its last turn."""
    if not any("step_reward" in (experience.info or {}) for experience in experiences):
        return [*[0.0] * (len(experiences) - 1), last]
    return [float((experience.info or {}).get("step_reward", 0.0)) for experience in experiences]


def _is_whole(experience: Any, turns: Sequence[Turn], found: Sequence[int]) -> bool:
    """Whether the turns found lie one after the other in the experience, and are not equal samples."""
    starts = {len(turns[number].prompt_ids) for number in found}
    return len(starts) == len(found)


def _check(experience: Any, number: int) -> None:
    if not hasattr(experience, "tokens") or not hasattr(experience, "prompt_length"):
        raise InvalidWorkflowResult(
            f"the workflow returned a {type(experience).__name__} as experience {number}; it must be a "
            "trinity.common.experience.Experience"
        )
    for name in _UNSUPPORTED:
        if getattr(experience, name, None) is not None:
            raise InvalidWorkflowResult(
                f"experience {number} has {name}, which Strop computes itself or does not support; leave it out"
            )


def _reward(experience: Any, number: int) -> float | None:
    reward = experience.reward
    if hasattr(reward, "item"):  # a NumPy or torch scalar
        reward = reward.item()
    if reward is not None and not isinstance(reward, Real):
        raise InvalidWorkflowResult(f"experience {number} has the reward {reward!r}; a reward is a number")
    return None if reward is None else float(reward)


def _mean_metrics(experiences: Sequence[Any]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for experience in experiences:
        for name, value in (experience.metrics or {}).items():
            values.setdefault(name, []).append(float(value))
    return {name: sum(each) / len(each) for name, each in values.items()}
