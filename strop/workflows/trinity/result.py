"""Conversion of the experiences that a workflow written for Trinity-RFT returns."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any

from strop.types import Turn
from strop.workflows.result import InvalidWorkflowResult, WorkflowResult
from strop.workflows.trinity.experience import turns_of

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
    experiences have different rewards, each turn also has its own. An experience without a reward leaves it to
    the run's `reward`. Raises `InvalidWorkflowResult` for tokens that the model did not sample in this rollout.
    """
    if not isinstance(experiences, list | tuple) or not experiences:
        raise InvalidWorkflowResult(
            f"the workflow returned {experiences!r:.80}; it must return a list of one or more experiences"
        )
    reward_of: dict[int, float | None] = {}
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
    order = sorted(reward_of)
    rewards = [reward_of[turn] for turn in order]
    last = experiences[-1]
    return WorkflowResult(
        reward=_reward(last, len(experiences) - 1),
        parts=_mean_metrics(experiences),
        turn_rewards=None if len(set(rewards)) == 1 else [reward or 0.0 for reward in rewards],
        turns=[turns[turn] for turn in order],
        text=getattr(last, "response_text", None),
    )


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
