"""Reward of a run: the sum of functions, a reward model and a judge."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification

import strop
from strop.config.schema.model import ModelConfig
from strop.config.schema.reward import RewardConfig
from strop.errors import RewardError
from strop.inference.reward_model import RewardModel
from strop.models.loading import load_tokenizer, silence_transformers
from strop.run.rollout.explorer import check_error_fraction
from strop.run.rollout.rollout_metrics import evaluation_metrics, training_metrics
from strop.run.rollout.rollout_services import RewardManager
from strop.types import RolloutGroup
from tests.rewards.builders import group
from tests.rewards.judge_server import judge_server, says

from .conftest import Values
from .results import rows_of, train

REWARDS = Path(__file__).parent / "rewards.py"
DIGITS = f"{REWARDS}:digit_share"


@pytest.fixture(scope="module")
def model(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reward model with the tiny model's tokenizer."""
    path = tmp_path_factory.mktemp("reward") / "model"
    with silence_transformers(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        AutoModelForSequenceClassification.from_pretrained(tiny / "model", num_labels=1).save_pretrained(path)
    load_tokenizer(ModelConfig(path=str(tiny / "model"))).save_pretrained(path)
    return path


@pytest.fixture
def score(tmp_path: Path) -> Callable[..., list[RolloutGroup]]:
    """Scores groups by the components of a reward, one after another."""

    def scored(groups: list[RolloutGroup], **section: Any) -> list[RolloutGroup]:
        config = RewardConfig.model_validate({"workers": 1, **section})
        with RewardManager(config, replies=tmp_path) as rewards:
            return [asyncio.run(rewards.score([each]))[0] for each in groups]

    return scored


def test_sum_of_all_components(model: Path, score: Any) -> None:
    made, models = group(["12", "no", "x1"]), [{"path": str(model), "weight": 0.5}]
    with judge_server(lambda *_: says("Score: 5")) as server:
        judges = [{"url": server.url, "model": "wise", "weight": 10}]
        (scored,) = score(
            [made], functions=[{"function": DIGITS, "weight": 2.0}], models=models, judges=judges
        )
    config = RewardConfig.model_validate({"models": models}).models[0]
    said = RewardModel(config, torch.device("cpu")).score([(made.task, r) for r in made.rollouts])
    for rollout, digits, logit in zip(scored.rollouts, (1, 0, 0.5), said, strict=True):
        assert rollout.reward_parts == pytest.approx(
            {"digit_share": digits, "reward_model": logit, "judge": 0.5}, abs=1e-6
        )
        assert rollout.reward == pytest.approx(2 * digits + 0.5 * float(logit) + 5)


def test_zero_on_timeout_keeps_the_judge_and_is_counted(score: Any) -> None:
    functions = [
        {"function": f"{REWARDS}:hangs_on_loops", "name": "first", "weight": 8},
        {"function": DIGITS, "weight": 2},
        {"function": f"{REWARDS}:hangs_on_loops", "name": "last"},
    ]
    with judge_server(lambda *_: says("Score: 5")) as server:
        judges = [{"url": server.url, "model": "wise", "weight": 0.5}]
        limit = {"timeout_seconds": 3, "on_timeout": "zero"}
        scored = score([group(["12", "loop12"])], functions=functions, judges=judges, **limit)
    whole, hung = scored[0].rollouts
    assert (whole.reward, whole.reward_limit_exceeded) == (8 + 2 + 1 + 0.25, False)
    assert hung.reward == pytest.approx(2 * 2 / 6 + 0.25) and hung.reward_limit_exceeded
    assert hung.reward_parts.keys() == whole.reward_parts.keys()
    assert training_metrics(scored)["rollouts/reward_limit_fraction"] == 0.5
    assert evaluation_metrics("held-out", scored)["eval/held-out/reward_limit_fraction"] == 0.5


def test_none_in_trls_form_leaves_a_function_out(score: Any, tmp_path: Path, capfd: Any) -> None:
    """`math` scores responses with a digit, `code` those with a brace; a response with neither has no reward."""
    (tmp_path / "own.py").write_text(
        "def only(text, mark, value): return value if mark in text else None\n"
        "def math(completions, **columns): return [only(c[0]['content'], '1', 0.5) for c in completions]\n"
        "def code(completions, **columns): return [only(c[0]['content'], '{', 0.25) for c in completions]\n"
    )
    functions = [{"function": f"{tmp_path / 'own.py'}:{name}", "weight": 2.0} for name in ("math", "code")]
    (scored,) = score([group(["1", "{", "1{", "none"], source="mixed")], functions=functions)
    assert [rollout.reward for rollout in scored.rollouts] == [1.0, 0.5, 1.5, None]
    parts = [{"math": 0.5}, {"code": 0.25}, {"math": 0.5, "code": 0.25}, {}]
    assert [rollout.reward_parts for rollout in scored.rollouts] == parts
    left_out = scored.rollouts[-1]
    assert (left_out.status, left_out.failure_cause) == ("error", "unscored")
    assert "all reward functions (math, code) returned None" in str(left_out.error)
    assert "rollouts/unscored_fraction counts" in capfd.readouterr().err
    check_error_fraction([scored], 0.0)  # a response that no function scores is no failure
    found = training_metrics([scored])
    assert (found["rollouts/unscored_fraction"], found["rollouts/error_fraction"]) == (0.25, 0.0)
    assert (found["reward/part/math"], found["reward/part/code"]) == (0.5, 0.25)


def test_later_components_skip_a_failed_rollout(score: Any) -> None:
    """The function fails on the first rollout, so the judge scores the others only."""
    broken = f"{REWARDS}:breaks_on_some"
    groups = [group(["1"], "9", name="a"), group(["2"], "8", name="b"), group(["3"], "7", name="c")]
    with judge_server(lambda body, _: says("?" if "b" in str(body) else "Score: 5")) as server:
        judge = {"url": server.url, "model": "wise", "prompt": "{{ source }}{{ completion }}"}
        scored = [
            each.rollouts[0] for each in score(groups, functions=[{"function": broken}], judges=[judge])
        ]
        assert [r["messages"][0]["content"] for r in server.requests] == ["2", "3"]
    assert [one.status for one in scored] == ["error", "ok", "ok"]
    assert "nines are hard" in str(scored[0].error) and scored[0].reward is None


def test_judge_fails_one_rollout_only(score: Any) -> None:
    with judge_server(lambda body, _: says("?" if "odd" in str(body) else "Score: 5")) as server:
        (scored,) = score([group(["odd", "even"])], judges=[{"url": server.url, "model": "wise"}])
    first, second = scored.rollouts
    assert (second.status, second.reward) == ("ok", 0.5)
    assert first.status == "error" and first.reward is None and first.reward_parts == {}
    assert str(first.error).startswith("task 't0': the reward 'judge' gave no score")


def test_component_names_are_unique(model: Path, score: Any) -> None:
    functions, models = [{"function": "exact", "name": "mine"}], [{"path": str(model), "name": "mine"}]
    with pytest.raises(RewardError, match="two components are named 'mine'"):
        score([], functions=functions, models=models)


def test_a_run_with_a_model_and_a_judge(values: Values, model: Path) -> None:
    """Measured part by part; the judge's replies are in the run's folder, and cost nothing again."""
    with judge_server(lambda body, _: says(f"Score: {len(str(body)) % 11}")) as server:
        run = values(trainer__duration="1 steps")
        run["reward"] = {
            "functions": [{"function": DIGITS}],
            "models": [{"path": str(model), "weight": 0.1}],
            "judges": [{"url": server.url, "model": "wise", "name": "wise"}],
        }
        folder = train(run).folder
        parts = {"reward/part/digit_share", "reward/part/reward_model", "reward/part/wise"}
        assert parts <= rows_of(folder)[-1].keys()
        assert (folder / "judges" / "replies.sqlite3").is_file()
        asked = len(server.requests)
        assert asked > 0
        strop.evaluate(strop.load(run))  # of the model at the start, whose answers were judged before
        assert len(server.requests) == asked
