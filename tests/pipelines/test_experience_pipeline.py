"""Experience operators, on groups with rewards worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from strop.config.schema.pipeline import ExperienceOperatorConfig
from strop.errors import ConfigError, RolloutError
from strop.pipelines.experience_pipeline import ExperiencePipeline, make_pipeline
from strop.types import Rollout, RolloutGroup, SamplingParams, Task

SAMPLING = SamplingParams()


def pipeline(*sections: dict[str, Any]) -> ExperiencePipeline:
    return make_pipeline(TypeAdapter(tuple[ExperienceOperatorConfig, ...]).validate_python(sections))


def group(*rewards: float | None, **fields: Any) -> RolloutGroup:
    prompt = ({"role": "user", "content": "2 + 2"},)
    task = Task(id="t", messages=prompt, prompt_ids=np.zeros(1, np.int32), extra={"difficulty": 4})
    rollouts = tuple(
        Rollout(
            f"r{index}",
            "t",
            "g",
            index,
            (),
            "4",
            "error" if reward is None else "stop",
            SAMPLING,
            reward,
            error="failed" if reward is None else None,
            **({} if reward is None else fields),
        )
        for index, reward in enumerate(rewards)
    )
    return RolloutGroup("g", task, rollouts)


def rewards(found: RolloutGroup | None) -> list[float | None]:
    assert found is not None
    return [rollout.reward for rollout in found.rollouts]


def test_without_operators_a_group_is_unchanged() -> None:
    given = group(1.0, None)
    assert pipeline()(given) is given


def test_low_rewards_are_removed() -> None:
    keep = pipeline({"type": "reward_filter", "min_reward": 0.5})
    assert rewards(keep(group(1.0, 0.4, 0.5, None))) == [1.0, 0.5]
    assert keep(group(0.1, 0.2)) is None


@pytest.mark.parametrize(
    ("deviation", "threshold", "kept"),
    # The rewards 0, 1 have the standard deviation 1/2, or sqrt(1/2) with the divisor n - 1.
    [("population", 0.49, True), ("population", 0.5, False), ("sample", 0.7, True), ("sample", 0.71, False)],
)
def test_groups_of_equal_rewards_are_removed(deviation: str, threshold: float, kept: bool) -> None:
    section = {"type": "reward_std_filter", "threshold": threshold, "deviation": deviation}
    assert (pipeline(section)(group(0.0, 1.0, None)) is not None) == kept
    assert pipeline(section)(group(1.0)) is None


@pytest.mark.parametrize(
    ("operation", "expected"),
    [("add", 2.0), ("subtract", 0.0), ("multiply", 1.0), ("divide", 1.0)],
)
def test_a_statistic_changes_the_reward(operation: str, expected: float) -> None:
    term = {"stat": "quality", "operation": operation, "weight": 2.0}
    shape = pipeline({"type": "reward_shaping", "terms": [term]})
    assert rewards(shape(group(1.0, None, info={"quality": 0.5}))) == [expected, None]


def test_statistics_come_from_info_parts_and_columns() -> None:
    names = ("quality", "part", "difficulty", "absent", "text")
    shape = pipeline({"type": "reward_shaping", "terms": [{"stat": name} for name in names]})
    given = group(1.0, info={"quality": 10, "text": "ten"}, reward_parts={"part": 100.0, "quality": 5.0})
    assert rewards(shape(given)) == [115.0]


def test_a_division_by_zero_keeps_the_reward() -> None:
    shape = pipeline({"type": "reward_shaping", "terms": [{"stat": "quality", "operation": "divide"}]})
    assert rewards(shape(group(1.0, info={"quality": 0}))) == [1.0]


def test_terms_are_applied_in_order() -> None:
    terms = [{"stat": "q", "operation": "multiply"}, {"stat": "q", "weight": 0.5}]
    shape = pipeline({"type": "reward_shaping", "terms": terms})
    assert rewards(shape(group(3.0, info={"q": 2.0}))) == [7.0]


def test_a_reward_that_becomes_infinite_is_an_error() -> None:
    shape = pipeline({"type": "reward_shaping", "terms": [{"stat": "q", "operation": "multiply"}]})
    with pytest.raises(RolloutError, match=r"turns the reward 1e\+308 of rollout r0 into inf"):
        shape(group(1e308, info={"q": 100.0}))


OPERATORS = """
from dataclasses import replace
class Double:
    def __init__(self, factor=2.0):
        if factor < 0: raise ValueError("negative")
        self.factor = factor
    def __call__(self, group):
        return replace(group, rollouts=tuple(replace(r, reward=self.factor * r.reward) for r in group.rollouts))
class Wrong:
    def __call__(self, group): return list(group.rollouts)
class Silent: pass
"""


def test_operators_of_the_user(tmp_path: Path) -> None:
    path = tmp_path / "operators.py"
    path.write_text(OPERATORS)

    def own(name: str, **args: Any) -> ExperiencePipeline:
        return pipeline({"type": "custom", "operator": f"{path}:{name}", "args": args})

    assert rewards(own("Double", factor=3.0)(group(2.0))) == [6.0]
    with pytest.raises(RolloutError, match="Wrong returned list for group g"):
        own("Wrong")(group(1.0))
    with pytest.raises(ConfigError, match=r"Double\(\.\.\.\) raised ValueError: negative"):
        own("Double", factor=-1.0)
    with pytest.raises(ConfigError, match="cannot be called"):
        own("Silent")
