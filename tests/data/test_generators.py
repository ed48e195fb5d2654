"""Tasks that reasoning_gym and verifiers generate."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from strop.config.schema.data import TasksetConfig
from strop.data.sources.reader import read_rows
from strop.errors import ConfigError, DataError


def rows(path: str, generator: Mapping[str, Any] | None = None, **section: Any) -> list[dict[str, Any]]:
    found = read_rows(TasksetConfig(path=path, generator=generator, **section))
    return [found[index] for index in range(len(found))]


SUMS_PATH = "reasoning_gym://basic_arithmetic"
SUMS = {"size": 3, "seed": 1, "args": {"max_terms": 2, "max_digits": 1}}


def test_reasoning_gym_generates_the_same_tasks_for_a_seed():
    reasoning_gym = pytest.importorskip("reasoning_gym")
    path = SUMS_PATH
    found = rows(path, SUMS)
    expected = reasoning_gym.create_dataset("basic_arithmetic", size=3, seed=1, max_terms=2, max_digits=1)
    assert [row["prompt"] for row in found] == [entry["question"] for entry in expected]
    assert found == rows(path, SUMS) and found != rows(path, {**SUMS, "seed": 2})
    assert len(rows(path, SUMS, limit_tasks=2)) == 2


def test_reasoning_gyms_own_scorer_is_the_reward():
    pytest.importorskip("reasoning_gym")
    from strop.rewards.execution.function_spec import RewardFunctionSpec
    from strop.rewards.execution.signature import RewardInput

    row = rows("reasoning_gym://basic_arithmetic", SUMS)[0]
    reward = RewardFunctionSpec.of("reasoning_gym").load()

    def score(text: str, **args: str) -> float:
        function = RewardFunctionSpec.of("reasoning_gym", args=args).load() if args else reward
        return function(RewardInput(text, (), answer=row["answer"], columns=row))[0]

    right = row["answer"]
    assert score(f"I think <answer>0.5</answer>, no: <answer> {right} </answer>") == 1.0
    assert score(right) == 0.0 and score(f"<answer>{right}") == 0.0
    assert score(right, extract="text") == 1.0


@pytest.mark.parametrize(
    ("path", "section", "message"),
    [
        ("reasoning_gym://arithmetic", {}, r"no dataset 'arithmetic'; it has .*basic_arithmetic"),
        (SUMS_PATH, {"generator": {"args": {"terms": 2}}}, "Its arguments: .*min_terms"),
        (SUMS_PATH, {"split": "test"}, "has no split"),
        (SUMS_PATH, {"subset": "x"}, "has no subset"),
    ],
)
def test_what_reasoning_gym_does_not_have_is_refused(path, section, message):
    pytest.importorskip("reasoning_gym")
    with pytest.raises(DataError, match=message):
        rows(path, **section)


def test_a_generator_of_a_file_is_refused(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text('{"prompt": "a"}\n')
    with pytest.raises(DataError, match="exists already, so `generator` does not apply"):
        rows(str(file), {"size": 3})


def test_rows_of_a_verifiers_environment():
    pytest.importorskip("verifiers")
    repeat = Path(__file__).parents[2] / "examples" / "environments" / "repeat.py"
    found = rows(f"verifiers://{repeat}:load_environment", {"args": {"digits": 3}})
    assert len(found) == 24
    assert found[1]["prompt"] == [{"role": "user", "content": "Say 1."}] and found[1]["answer"] == "1"
    with pytest.raises(ConfigError, match="'no-such-environment' cannot be loaded"):
        rows("verifiers://no-such-environment")
