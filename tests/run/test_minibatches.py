"""Split of a step's groups into updates."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pydantic import ValidationError

from strop.algorithms.algorithm import group_indices, repeat_groups, resample_groups, varied_groups
from strop.config.load.loader import load_values
from strop.config.schema.algorithm import GrpoConfig, RewardResamplingConfig
from strop.run.optimize.minibatches import plan_minibatches, shuffle_seed
from strop.types import ExperienceGroup
from tests.models.models import experience


def groups(*sizes: int) -> list[ExperienceGroup]:
    one = experience([3], [4])
    return [
        ExperienceGroup(str(g), tuple(replace(one, group=str(g), index=i) for i in range(size)))
        for g, size in enumerate(sizes)
    ]


def test_the_shuffle_seed_overrides_the_run_seed() -> None:
    run = load_values({"model": {"path": "m"}, "data": {"train": {"path": "t"}}, "seed": 3}).run
    assert shuffle_seed(run.trainer, run.seed) == 3
    trainer = run.trainer.model_copy(update={"shuffle_seed": 0})
    assert shuffle_seed(trainer, run.seed) == 0


def test_groups_stay_whole_and_in_order() -> None:
    plan = plan_minibatches(group_indices(groups(2, 1, 3)), per_update=2, epochs=2, shuffle_seed=None)
    assert plan == [[0, 1, 2], [3, 4, 5]] * 2


def test_an_update_without_experiences_is_left_out() -> None:
    indices = group_indices(groups(0, 2, 0))
    assert plan_minibatches(indices, per_update=1, epochs=1, shuffle_seed=None) == [[0, 1]]


@pytest.mark.parametrize("step", [1, 2])
def test_each_epoch_has_its_own_reproducible_order(step: int) -> None:
    def plan(seed: int) -> list[list[int]]:
        indices = group_indices(groups(*[1] * 20))
        return plan_minibatches(indices, per_update=20, epochs=2, shuffle_seed=(5, seed))

    assert plan(step) == plan(step) != plan(3)
    first, second = plan(step)
    assert first != second
    assert sorted(first) == sorted(second) == list(range(20))


def test_resampled_groups_hold_whole_rollouts_of_the_drawn_rewards() -> None:
    """Only the rollouts with the highest and the lowest reward are drawn; one of them has two turns."""
    one = experience([3], [4])
    rewards = [(0, 0, 0.5), (0, 1, 1.0), (0, 1, 1.0), (1, 0, -1.0), (1, 1, 0.0)]
    step = [
        ExperienceGroup(
            str(g), tuple(replace(one, group=str(g), index=i, reward=r) for h, i, r in rewards if h == g)
        )
        for g in (0, 1)
    ]
    section = RewardResamplingConfig(method="max_min")
    plans = [resample_groups(step, section, seed) for seed in range(40)]
    assert plans == [resample_groups(step, section, seed) for seed in range(40)]
    found = {tuple(group) for plan in plans for group in plan}
    assert found == {(1, 2, 1, 2), (1, 2, 3), (3, 1, 2), (3, 3)}
    assert all(len(plan) == 2 for plan in plans)


def test_groups_without_different_rewards_are_left_out() -> None:
    """Standard deviations of 0, sqrt(1/2), 0 of a single rollout, and 0; a rollout of two turns counts once."""
    found = groups(2, 2, 1, 3)
    rewards = [[1.0, 1.0], [0.0, 1.0], [5.0], [2.0, 2.0, 2.0]]
    scored = [
        replace(g, experiences=tuple(replace(e, reward=r) for e, r in zip(g.experiences, each, strict=True)))
        for g, each in zip(found, rewards, strict=True)
    ]
    assert varied_groups(scored, 0.0) == varied_groups(scored, 0.7) == [[2, 3]]
    assert varied_groups(scored, 0.71) == []
    first = scored[1].experiences[0]
    turns = replace(scored[1], experiences=(first, replace(first, turn=1), scored[1].experiences[1]))
    assert varied_groups([turns], 0.7) == [[0, 1, 2]]


def test_groups_are_repeated_up_to_a_number() -> None:
    """Two groups of five are left: each of the three draws is one of them, and a seed fixes the draws."""
    left = [[0, 1], [6, 7]]
    found = repeat_groups(left, 5, 3)
    assert found[:2] == left and len(found) == 5 and all(each in left for each in found[2:])
    assert repeat_groups(left, 5, 3) == found
    assert repeat_groups(left, 2, 3) == left and repeat_groups([], 5, 3) == []
    draws = [tuple(group) for seed in range(300) for group in repeat_groups(left, 5, seed)[2:]]
    assert 0.4 < draws.count((0, 1)) / len(draws) < 0.6


def test_repeated_groups_need_a_threshold() -> None:
    with pytest.raises(ValidationError, match="write min_reward_std"):
        GrpoConfig(repeat_groups=True)
    assert GrpoConfig(repeat_groups=True, min_reward_std=0.0).repeat_groups
