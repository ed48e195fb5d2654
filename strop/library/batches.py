"""Scoring of sampled groups, and their conversion to training batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from strop.errors import DataError, RewardError
from strop.library.callables import Rewards, list_functions
from strop.python_rewards import PythonReward
from strop.rewards.execution.signature import SignatureError, bind_reward
from strop.rewards.scorer import reward_input
from strop.types import Experience, FloatArray, Rollout, RolloutGroup, TrainingBatch
from strop.workflows.experiences import rollout_to_experiences

Advantage = float | FloatArray
"""One number for all tokens that the model sampled, or [C] one for each of them."""


def score(groups: Sequence[RolloutGroup], reward: Rewards) -> list[RolloutGroup]:
    """The groups with the rewards that functions compute in this process, one response at a time.

    They take the place of earlier rewards, such as those that a workflow returned.

    Args:
        groups: groups of `Policy.sample`.
        reward: function with one of the signatures of reward functions, such as `f(completion, answer) -> float`, a
            `strop.Reward` with a name and a weight, or a list of them, whose weighted sum is the reward and whose own
            values are in `reward_parts`.

    Raises:
        RewardError: a function has another signature, raised an exception, or returned no finite number.
    """
    rewards = [
        each if isinstance(each, PythonReward) else PythonReward(each) for each in list_functions(reward)
    ]
    if not rewards:
        raise RewardError("score got no reward functions. Pass one, such as f(completion, answer) -> float.")
    names = [
        each.name or getattr(each.function, "__name__", type(each.function).__name__) for each in rewards
    ]
    bound = [bind_reward(each.function, name, {}) for each, name in zip(rewards, names, strict=True)]

    def scored(group: RolloutGroup, rollout: Rollout) -> Rollout:
        if rollout.status == "error":
            return rollout
        total: float | None = None
        all_parts: dict[str, float] = {}
        for each, name, function in zip(rewards, names, bound, strict=True):
            try:
                value, parts = function(reward_input(group.task, rollout))
            except SignatureError as error:
                raise RewardError(f"The reward {name} {error} (task {group.task.id!r}).") from None
            except Exception as error:
                raise RewardError(
                    f"The reward {name} raised {type(error).__name__}: {error} (task {group.task.id!r})."
                ) from error
            if value is not None:
                total = (total or 0.0) + each.weight * value
            prefix = "" if len(rewards) == 1 else f"{name}/"
            all_parts |= {f"{prefix}{part}": number for part, number in parts.items()}
            if len(rewards) > 1 and value is not None:
                all_parts[name] = value
        return replace(rollout, reward=total, reward_parts=all_parts)

    return [
        replace(group, rollouts=tuple(scored(group, each) for each in group.rollouts)) for group in groups
    ]


def group_rewards(groups: Sequence[RolloutGroup]) -> list[list[float]]:
    """Rewards of the rollouts of each group. Raises DataError for a rollout that has none.

    A rollout that failed has the reward NaN.
    """

    def value(rollout: Rollout) -> float:
        if rollout.status == "error":
            return math.nan
        if rollout.reward is None:
            raise DataError(
                f"The rollout {rollout.id} has no reward. Call strop.score(groups, reward) first, or set rewards with "
                "dataclasses.replace."
            )
        return rollout.reward

    return [[value(rollout) for rollout in group.rollouts] for group in groups]


def make_batch(
    groups: Sequence[RolloutGroup], advantages: Sequence[Sequence[Advantage]] | np.ndarray[Any, Any]
) -> TrainingBatch:
    """The batch of all rollouts that did not fail, with the log-probs of the policy that sampled them.

    Args:
        groups: groups of `Policy.sample`.
        advantages: for each group, for each of its rollouts, a number for all its sampled tokens, or [C] a number for
            each of them, over all turns.

    Raises:
        DataError: the advantages do not have the shape of the groups, or are not finite, or no rollout is left.
    """
    if len(advantages) != len(groups):
        raise DataError(f"make_batch got advantages of {len(advantages)} groups for {len(groups)} groups.")
    experiences: list[Experience] = []
    values: list[Advantage] = []
    for group, own in zip(groups, advantages, strict=True):
        if np.ndim(own) == 0:
            raise DataError(
                f"make_batch got the number {own} for the group {group.id}. Write a list with one advantage for each "
                "of its rollouts."
            )
        if len(own) != len(group.rollouts):
            raise DataError(
                f"make_batch got {len(own)} advantages for the {len(group.rollouts)} rollouts of the group {group.id}."
            )
        for rollout, advantage in zip(group.rollouts, own, strict=True):
            if rollout.status == "error":
                continue
            found = rollout_to_experiences(
                rollout if rollout.reward is not None else replace(rollout, reward=0.0), group.task.source
            )
            experiences += found
            values += _by_experience(rollout, found, advantage)
    if not experiences:
        raise DataError("make_batch got no rollout with a sampled token: all failed, or are empty.")
    old = [experience.policy_logprobs for experience in experiences]
    return TrainingBatch(experiences, advantages=values, old_logprobs=old)


def _by_experience(rollout: Rollout, found: Sequence[Experience], advantage: Advantage) -> list[Advantage]:
    """The advantage of each training sequence of a rollout, [L] where tokens have their own."""
    if not np.isfinite(advantage).all():
        raise DataError(f"The advantage of the rollout {rollout.id} is {advantage}; it must be finite.")
    if np.ndim(advantage) == 0:
        return [float(advantage)] * len(found)
    flat = np.asarray(advantage, np.float32)
    tokens = sum(each.response_tokens for each in found)
    if flat.shape != (tokens,):
        raise DataError(
            f"The advantages of the rollout {rollout.id} have the shape {flat.shape}, and it has {tokens} sampled "
            "tokens. Write one number, or one for each of these tokens."
        )
    spread: list[Advantage] = []
    for each in found:
        own, flat = flat[: each.response_tokens], flat[each.response_tokens :]
        values = np.zeros(len(each.token_ids), np.float32)
        values[each.loss_mask] = own
        spread.append(values)
    return spread
