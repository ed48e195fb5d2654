"""Experience operators that change rewards by a comparison within the group, and relabelling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from strop.reward_comparison import reaches
from strop.types import Rollout, RolloutGroup

DIVERSITY = "diversity"
"""Name of the statistic in a rollout's `info`."""


@dataclass(frozen=True, slots=True)
class DiversityReward:
    """Adds the mean dissimilarity of a response to the others of its group, `weight` times.

    The similarity of two responses is the Jaccard similarity of their sets of word n-grams.
    """

    weight: float
    ngram_words: int

    def __call__(self, group: RolloutGroup) -> RolloutGroup:
        grams = {r.index: self._grams(r.text) for r in group.rollouts if r.reward is not None}
        if len(grams) < 2:
            return group
        rollouts = []
        for rollout in group.rollouts:
            reward = rollout.reward
            if reward is None:
                rollouts.append(rollout)
                continue
            value = _dissimilarity(rollout.index, grams)
            counted = replace(rollout, info={**rollout.info, DIVERSITY: value})
            rollouts.append(with_reward(counted, reward + self.weight * value))
        return replace(group, rollouts=tuple(rollouts))

    def _grams(self, text: str) -> frozenset[tuple[str, ...]]:
        """The n-grams of a text; a shorter text is one n-gram."""
        words = text.lower().split()
        last = max(len(words) - self.ngram_words, 0)
        return frozenset(tuple(words[start : start + self.ngram_words]) for start in range(last + 1))


@dataclass(frozen=True, slots=True)
class LengthReward:
    """Adds a reward for a short response in comparison with the group, `weight` times (arXiv 2501.12599, 2.3.3).

    It falls from 0.5 for the shortest response to -0.5 for the longest; a wrong response gets its negative part.
    """

    weight: float
    correct_reward: float

    def __call__(self, group: RolloutGroup) -> RolloutGroup:
        lengths = {r.index: _response_tokens(r) for r in group.rollouts if r.reward is not None}
        if len(set(lengths.values())) < 2:
            return group
        shortest, longest = min(lengths.values()), max(lengths.values())

        def shaped(rollout: Rollout) -> Rollout:
            if rollout.reward is None:
                return rollout
            value = 0.5 - (lengths[rollout.index] - shortest) / (longest - shortest)
            if not reaches(rollout.reward, self.correct_reward):
                value = min(value, 0.0)
            return with_reward(rollout, rollout.reward + self.weight * value)

        return replace(group, rollouts=tuple(map(shaped, group.rollouts)))


@dataclass(frozen=True, slots=True)
class Relabel:
    """Replaces rewards of at least `threshold` by `above`, and others by `below`."""

    threshold: float
    above: float
    below: float

    def __call__(self, group: RolloutGroup) -> RolloutGroup:
        def relabelled(rollout: Rollout) -> Rollout:
            if rollout.reward is None:
                return rollout
            is_above = reaches(rollout.reward, self.threshold)
            return with_reward(rollout, self.above if is_above else self.below)

        return replace(group, rollouts=tuple(map(relabelled, group.rollouts)))


def with_reward(rollout: Rollout, reward: float) -> Rollout:
    """The rollout with this reward; rewards of turns are shifted by equal amounts, so that it is their sum."""
    assert rollout.reward is not None
    turns = rollout.turn_rewards
    if turns:
        shift = (reward - rollout.reward) / len(turns)
        turns = tuple(each + shift for each in turns)
    return replace(rollout, reward=reward, turn_rewards=turns)


def _dissimilarity(index: int, grams: Mapping[int, frozenset[tuple[str, ...]]]) -> float:
    own = grams[index]
    similar = [len(own & other) / len(own | other) for key, other in grams.items() if key != index]
    return 1 - sum(similar) / len(similar)


def _response_tokens(rollout: Rollout) -> int:
    return sum(len(turn.completion_ids) for turn in rollout.turns)
