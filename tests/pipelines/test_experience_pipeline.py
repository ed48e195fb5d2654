"""Experience operators, on groups with rewards worked out by hand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from strop.config.schema.buffer import ExperienceOperatorConfig
from strop.errors import ConfigError, RolloutError
from strop.pipelines.experience_pipeline import ExperiencePipeline, make_pipeline
from strop.pipelines.operators import ExperienceServices
from strop.types import Rollout, RolloutGroup, SamplingParams, Task, Turn
from tests.rewards.judge_server import judge_server, says

SAMPLING = SamplingParams()


@dataclass(frozen=True)
class Pipeline:
    """A pipeline that is called with one group."""

    made: ExperiencePipeline

    def __call__(self, group: RolloutGroup) -> RolloutGroup | None:
        return self.made([group])[0]


def pipeline(*sections: dict[str, Any], replies: Path = Path(), sample: Any = None) -> Pipeline:
    services = ExperienceServices(replies, replies / "annotations", lambda: None, sample)
    found = TypeAdapter(tuple[ExperienceOperatorConfig, ...]).validate_python(sections)
    return Pipeline(make_pipeline(found, services))


def group(*rewards: float | None, **fields: Any) -> RolloutGroup:
    """A group with these rewards; a rollout without one has failed."""
    prompt = ({"role": "user", "content": "2 + 2"},)
    task = Task(id="t", messages=prompt, prompt_ids=np.zeros(1, np.int32), extra={"difficulty": 4})
    rollouts = []
    for index, reward in enumerate(rewards):
        failed = {"status": "error", "error": "failed"}
        state = failed if reward is None else {"status": "ok", "reward": reward, **fields}
        rollouts.append(Rollout(f"r{index}", "t", "g", index, (), "4", sampling=SAMPLING, **state))
    return RolloutGroup("g", task, tuple(rollouts))


def rewards(found: RolloutGroup | None) -> list[float | None] | None:
    return None if found is None else [rollout.reward for rollout in found.rollouts]


def test_without_operators_a_group_is_unchanged():
    given = group(1.0, None)
    assert pipeline()(given) is given


CORRECT = {"type": "correctness_filter", "threshold": 0.5}


@pytest.mark.parametrize(
    ("operator", "given", "expected"),
    [
        ({"type": "reward_filter", "min_reward": 0.5}, [1.0, 0.4, 0.5, None], [1.0, 0.5]),
        ({"type": "reward_filter", "min_reward": 0.5}, [0.1, 0.2], None),
        (
            {"type": "relabel", "threshold": 0.3, "above": 2.0, "below": -1.0},
            [0.3, 0.29, None],
            [2.0, -1.0, None],
        ),
        # 0.7 + 0.2 + 0.1 is a little less than 1, and 0.1 + 0.2 a little more than 0.3.
        ({"type": "reward_filter", "min_reward": 1.0}, [0.7 + 0.2 + 0.1, 0.9], [0.7 + 0.2 + 0.1]),
        ({"type": "relabel", "threshold": 1.0}, [0.7 + 0.2 + 0.1, 0.9], [1.0, 0.0]),
        ({"type": "reward_std_filter", "threshold": 0.0}, [0.3, 0.1 + 0.2], None),
        ({"type": "correctness_filter", "threshold": 0.3}, [0.1 + 0.2, 0.3], None),
        # Correctness without the metric is the reward.
        *(({**CORRECT, "metric": metric}, [0.5, 0.6], [0.5, 0.6]) for metric in (None, "accuracy")),
        *(({**CORRECT, "metric": metric}, [0.4, 0.5], None) for metric in (None, "accuracy")),
        *(({**CORRECT, "metric": metric}, [0.6, 0.7], None) for metric in (None, "accuracy")),
    ],
)
def test_rewards_are_filtered_and_relabelled(operator, given, expected):
    assert rewards(pipeline(operator)(group(*given))) == expected


@pytest.mark.parametrize(
    ("deviation", "threshold", "kept"),
    # The rewards 0, 1 have the standard deviation 1/2, or sqrt(1/2) with the divisor n - 1.
    [("population", 0.49, True), ("population", 0.5, False), ("sample", 0.7, True), ("sample", 0.71, False)],
)
def test_groups_of_equal_rewards_are_removed(deviation, threshold, kept):
    section = {"type": "reward_std_filter", "threshold": threshold, "deviation": deviation}
    assert (pipeline(section)(group(0.0, 1.0, None)) is not None) == kept
    assert pipeline(section)(group(1.0)) is None


@pytest.mark.parametrize(
    ("scores", "kept"),
    # The total rewards differ in every group; correct is an accuracy above 0.
    [
        ((1, -1), True),
        ((1, -1, None), True),
        ((1, 1), False),
        ((-1, 0), False),
        ((1,), False),
        ((1, None), False),
    ],
)
@pytest.mark.parametrize("part", ["accuracy", "math/accuracy"])
def test_groups_without_both_correct_and_wrong_rollouts_are_removed(scores, kept, part):
    keep = pipeline({"type": "correctness_filter", "metric": "accuracy"})
    given = group(*(None if score is None else index / 8 for index, score in enumerate(scores)))
    rollouts = tuple(
        rollout if score is None else replace(rollout, reward_parts={part: score, "length": 0.5})
        for rollout, score in zip(given.rollouts, scores, strict=True)
    )
    assert (keep(replace(given, rollouts=rollouts)) is not None) == kept


@pytest.mark.parametrize(
    ("terms", "reward", "quality", "expected"),
    [
        ([("add", 2.0)], 1.0, 0.5, 2.0),
        ([("subtract", 2.0)], 1.0, 0.5, 0.0),
        ([("multiply", 2.0)], 1.0, 0.5, 1.0),
        ([("divide", 2.0)], 1.0, 0.5, 1.0),
        ([("divide", 1.0)], 1.0, 0, 1.0),  # a division by zero keeps the reward
        ([("multiply", 1.0), ("add", 0.5)], 3.0, 2.0, 7.0),  # in this order
    ],
)
def test_statistics_change_the_reward(terms, reward, quality, expected):
    listed = [{"stat": "quality", "operation": operation, "weight": weight} for operation, weight in terms]
    shape = pipeline({"type": "reward_shaping", "terms": listed})
    assert rewards(shape(group(reward, None, info={"quality": quality}))) == [expected, None]


def test_statistics_come_from_info_parts_and_columns():
    names = ("quality", "part", "difficulty", "absent", "text")
    shape = pipeline({"type": "reward_shaping", "terms": [{"stat": name} for name in names]})
    given = group(1.0, info={"quality": 10, "text": "ten"}, reward_parts={"part": 100.0, "quality": 5.0})
    assert rewards(shape(given)) == [115.0]


def test_a_reward_that_becomes_infinite_is_an_error():
    shape = pipeline({"type": "reward_shaping", "terms": [{"stat": "q", "operation": "multiply"}]})
    with pytest.raises(RolloutError, match=r"turns the reward 1e\+308 of rollout r0 into inf"):
        shape(group(1e308, info={"q": 100.0}))


def answered(*texts: str, reward: float = 1.0) -> RolloutGroup:
    given = group(*(reward for _ in texts), None)
    rollouts = [replace(r, text=text) for r, text in zip(given.rollouts, texts, strict=False)]
    return replace(given, rollouts=(*rollouts, given.rollouts[-1]))


def test_diversity_is_added():
    """Bigrams: {ab, bc}, {ab, bd}, {x}. The first two share 1 of 3, the third nothing."""
    reward = pipeline({"type": "diversity_reward", "weight": 3.0})
    found = reward(answered("a b c", "A  b d", "x"))
    assert rewards(found)[:3] == pytest.approx([1 + 3 * 5 / 6, 1 + 3 * 5 / 6, 4.0])
    assert found is not None and found.rollouts[2].info == {"diversity": 1.0} and rewards(found)[3] is None
    assert rewards(reward(answered("same", "same"))) == [1.0, 1.0, None]
    assert rewards(reward(answered("alone"))) == [1.0, None]


def of_lengths(*lengths: int, reward: float) -> RolloutGroup:
    def turn(length: int) -> Turn:
        ids, logprobs = np.zeros(length, np.int32), np.zeros(length, np.float32)
        return Turn(np.zeros(1, np.int32), ids, logprobs, None, "stop", 0)

    given = group(*(reward for _ in lengths))
    rollouts = [replace(r, turns=(turn(n),)) for r, n in zip(given.rollouts, lengths, strict=True)]
    return replace(given, rollouts=tuple(rollouts))


def test_short_responses_are_rewarded():
    """The lengths 10, 15, 30 are 0, 1/4 and 1 of the way from the shortest to the longest."""
    shape = pipeline({"type": "length_reward", "weight": 2.0})
    assert rewards(shape(of_lengths(10, 15, 30, reward=1.0))) == [2.0, 1.5, 0.0]
    assert rewards(shape(of_lengths(10, 15, 30, reward=0.0))) == [0.0, 0.0, -1.0]
    assert rewards(shape(of_lengths(7, 7, reward=1.0))) == [1.0, 1.0]


def test_a_language_model_judges(tmp_path):
    """Scores 4, nonsense, 1 of 1 to 5: 3/4 and 0; without a score a reward is kept. Nothing is asked twice."""
    texts = {"good": "Score: 4", "odd": "no idea", "bad": "Score: 1"}

    def answer(body: dict[str, Any], _: int) -> Any:
        prompt = body["messages"][0]["content"]
        return says(next(reply for text, reply in texts.items() if f"Response:\n{text}\n" in prompt))

    with judge_server(answer) as server:
        model = {"url": server.url, "model": "m"}
        section = {"type": "llm_quality", "model": model, "weight": 2.0, "attempts": 2}
        judge = pipeline(section, replies=tmp_path)
        found = judge(answered(*texts))
        assert rewards(found) == [2.5, 1.0, 1.0, None]
        assert found is not None and found.rollouts[0].info == {"llm_quality_score": 0.75}
        assert len(server.requests) == 4
        message = r"gave no score for 2 of 6 responses .*max_invalid_fraction 0\.1"
        with pytest.raises(RolloutError, match=message):
            judge(answered(*texts))
        assert len(server.requests) == 4


def test_the_policy_judges_itself():
    """The second response gets its score at the second attempt, at temperature 1; the seeds depend on the rollout."""
    calls: list[tuple[int, float, list[int]]] = []

    def sample(prompts: Any, section: Any, seeds: Any) -> list[str | None]:
        calls.append((len(prompts), section.temperature, list(seeds)))
        return ["Score: 4", "none"] if len(calls) == 1 else ["Score: 2"]

    judge = pipeline({"type": "llm_quality", "model": {"type": "engine"}}, sample=sample)
    assert rewards(judge(answered("a", "b"))) == [1.75, 1.25, None]
    assert [call[:2] for call in calls] == [(2, 0.0), (1, 1.0)]
    assert len({seed for call in calls for seed in call[2]}) == 3


def test_effects_of_each_operator():
    """The filter removes one of 1, 0, 3; relabelling changes one of the other two, by 2."""
    both = pipeline({"type": "reward_filter", "min_reward": 0.5}, {"type": "relabel", "above": 3.0})
    both(group(1.0, 0.0, 3.0, None))
    assert both.made.take_metrics() == {
        "pipeline/0_reward_filter/removed_fraction": pytest.approx(1 / 3),
        "pipeline/0_reward_filter/changed_fraction": 0.0,
        "pipeline/0_reward_filter/reward_change": 0.0,
        "pipeline/1_relabel/removed_fraction": 0.0,
        "pipeline/1_relabel/changed_fraction": 0.5,
        "pipeline/1_relabel/reward_change": 1.0,
    }
    both(group(0.0))
    assert both.made.take_metrics() == {"pipeline/0_reward_filter/removed_fraction": 1.0}


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


def test_operators_of_the_user(tmp_path):
    path = tmp_path / "operators.py"
    path.write_text(OPERATORS)

    def own(name: str, **args: Any) -> Pipeline:
        return pipeline({"type": "custom", "operator": f"{path}:{name}", "args": args})

    assert rewards(own("Double", factor=3.0)(group(2.0))) == [6.0]
    with pytest.raises(RolloutError, match="Wrong returned list for group g"):
        own("Wrong")(group(1.0))
    with pytest.raises(ConfigError, match=r"Double\(\.\.\.\) raised ValueError: negative"):
        own("Double", factor=-1.0)
    with pytest.raises(ConfigError, match="cannot be called"):
        own("Silent")
