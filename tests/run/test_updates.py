"""How a step's groups become updates."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strop.config.load import load_values
from strop.run.updates import plan_updates, shuffle_seed
from strop.types import ExperienceGroup
from tests.models.models import experience


def groups(*sizes: int) -> list[ExperienceGroup]:
    one = experience([3], [4])
    return [
        ExperienceGroup(str(g), tuple(replace(one, group=str(g), index=i) for i in range(size)))
        for g, size in enumerate(sizes)
    ]


def test_passes_draw_from_a_seed_of_their_own() -> None:
    run = load_values({"model": {"path": "m"}, "data": {"train": {"path": "t"}}, "seed": 3}).run
    assert shuffle_seed(run) == 3
    trainer = run.trainer.model_copy(update={"shuffle_seed": 0})
    assert shuffle_seed(run.model_copy(update={"trainer": trainer})) == 0


def test_groups_stay_whole_and_in_order() -> None:
    plan = plan_updates(groups(2, 1, 3), per_update=2, passes=2, shuffle_seed=None)
    assert plan == [[0, 1, 2], [3, 4, 5]] * 2


def test_an_update_without_experiences_is_none() -> None:
    assert plan_updates(groups(0, 2, 0), per_update=1, passes=1, shuffle_seed=None) == [[0, 1]]


@pytest.mark.parametrize("step", [1, 2])
def test_each_pass_has_an_order_of_its_own_and_always_the_same(step: int) -> None:
    sizes = [1] * 20
    plan = plan_updates(groups(*sizes), per_update=20, passes=2, shuffle_seed=(5, step))
    assert plan == plan_updates(groups(*sizes), per_update=20, passes=2, shuffle_seed=(5, step))
    assert plan != plan_updates(groups(*sizes), per_update=20, passes=2, shuffle_seed=(5, 3))
    first, second = plan
    assert first != second
    assert sorted(first) == sorted(second) == list(range(20))
