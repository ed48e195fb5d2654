"""Reward of a run: the sum of functions, a reward model and a judge."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification

import strop
from strop.config.schema.model import ModelConfig
from strop.config.schema.reward import RewardConfig
from strop.errors import ModelError, RewardError
from strop.inference.reward_model import RewardModel
from strop.models.loading import load_tokenizer, silence_transformers
from strop.run.rollout.reward_manager import RewardManager
from strop.run.rollout.rollout_metrics import evaluation_metrics, training_metrics
from tests.rewards import users
from tests.rewards.builders import group
from tests.rewards.judge_server import judge_server, says

Values = Callable[..., dict[str, Any]]
DIGITS = f"{Path(__file__).parent / 'rewards.py'}:digit_share"


@pytest.fixture(scope="module")
def model(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reward model with the tiny model's tokenizer."""
    path = tmp_path_factory.mktemp("reward") / "model"
    with silence_transformers(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        AutoModelForSequenceClassification.from_pretrained(tiny / "model", num_labels=1).save_pretrained(path)
    load_tokenizer(ModelConfig(path=str(tiny / "model"))).save_pretrained(path)
    return path


def test_sum_of_all_components(model: Path, tmp_path: Path) -> None:
    made = group(["12", "no", "x1"])
    section = RewardConfig.model_validate(
        {
            "functions": [{"function": DIGITS, "weight": 2.0}],
            "models": [{"path": str(model), "weight": 0.5}],
            "judges": [{"url": "http://127.0.0.1:1/v1", "model": "wise", "weight": 10}],
            "workers": 1,
        }
    )
    with judge_server(lambda *_: says("Score: 5")) as server:
        judges = (section.judges[0].model_copy(update={"url": server.url}),)
        with RewardManager(section.model_copy(update={"judges": judges}), replies=tmp_path) as rewards:
            (scored,) = asyncio.run(rewards.score([made]))
    said = RewardModel(section.models[0], torch.device("cpu")).score([(made.task, r) for r in made.rollouts])
    for rollout, digits, logit in zip(scored.rollouts, (1, 0, 0.5), said, strict=True):
        assert rollout.reward_parts == pytest.approx(
            {"digit_share": digits, "reward_model": logit, "judge": 0.5}, abs=1e-6
        )
        assert rollout.reward == pytest.approx(2 * digits + 0.5 * float(logit) + 5)


def test_zero_on_timeout_keeps_the_judge_and_is_counted(tmp_path: Path) -> None:
    functions = [
        {"function": f"{users.__file__}:hang", "name": "first", "weight": 8},
        {"function": DIGITS, "weight": 2},
        {"function": f"{users.__file__}:hang", "name": "last"},
    ]
    with judge_server(lambda *_: says("Score: 5")) as server:
        section = RewardConfig.model_validate(
            {
                "functions": functions,
                "judges": [{"url": server.url, "model": "wise", "weight": 0.5}],
                "workers": 1,
                "timeout_seconds": 0.4,
                "on_timeout": "zero",
            }
        )
        with RewardManager(section, replies=tmp_path) as rewards:
            scored = asyncio.run(rewards.score([group(["12", "loop12"])]))
    whole, hung = scored[0].rollouts
    assert (whole.reward, whole.reward_limit_exceeded) == (8 + 2 + 1 + 0.25, False)
    assert hung.reward == pytest.approx(2 * 2 / 6 + 0.25) and hung.reward_limit_exceeded
    assert hung.reward_parts.keys() == whole.reward_parts.keys()
    assert training_metrics(scored)["rollouts/reward_limit_fraction"] == 0.5
    assert evaluation_metrics("held-out", scored)["eval/held-out/reward_limit_fraction"] == 0.5


def test_later_components_skip_a_failed_rollout(tmp_path: Path) -> None:
    """The function fails on the first rollout, so the judge scores the others only."""
    broken = f"{Path(__file__).parent / 'rewards.py'}:breaks_on_some"
    groups = [group(["1"], "9", name="a"), group(["2"], "8", name="b"), group(["3"], "7", name="c")]
    with judge_server(lambda body, _: says("?" if "b" in str(body) else "Score: 5")) as server:
        prompt = "{{ source }}{{ completion }}"
        judge = {"url": server.url, "model": "wise", "prompt": prompt}
        section = RewardConfig.model_validate(
            {"functions": [{"function": broken}], "judges": [judge], "workers": 1}
        )
        with RewardManager(section, replies=tmp_path) as rewards:
            scored = [asyncio.run(rewards.score([one]))[0].rollouts[0] for one in groups]
        assert [r["messages"][0]["content"] for r in server.requests] == ["2", "3"]
    assert [one.status for one in scored] == ["error", "ok", "ok"]
    assert "nines are hard" in str(scored[0].error) and scored[0].reward is None


def test_judge_fails_one_rollout_only(tmp_path: Path) -> None:
    with judge_server(lambda body, _: says("?" if "odd" in str(body) else "Score: 5")) as server:
        section = RewardConfig.model_validate({"judges": [{"url": server.url, "model": "wise"}]})
        with RewardManager(section, replies=tmp_path) as rewards:
            first, second = asyncio.run(rewards.score([group(["odd", "even"])]))[0].rollouts
    assert (second.status, second.reward) == ("ok", 0.5)
    assert first.status == "error" and first.reward is None and first.reward_parts == {}
    assert str(first.error).startswith("task 't0': the reward 'judge' gave no score")


def test_component_names_are_unique(model: Path, tmp_path: Path) -> None:
    section = RewardConfig.model_validate(
        {
            "functions": [{"function": "exact", "name": "mine"}],
            "models": [{"path": str(model), "name": "mine"}],
        }
    )
    with pytest.raises(RewardError, match="two components are named 'mine'"):
        RewardManager(section, replies=tmp_path)


@pytest.mark.slow
def test_a_run_with_a_model_and_a_judge(values: Values, model: Path) -> None:
    """Measured part by part; the judge's replies are in the run's folder, and cost nothing again."""
    with judge_server(lambda body, _: says(f"Score: {len(str(body)) % 11}")) as server:
        run = values()
        run["reward"] = {
            "functions": [{"function": DIGITS}],
            "models": [{"path": str(model), "weight": 0.1}],
            "judges": [{"url": server.url, "model": "wise", "name": "wise"}],
        }
        run["trainer"]["duration"] = "2 steps"
        strop.train(strop.load(run))
        folder = Path(run["output"]) / "strop" / "small"
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        assert {"reward/part/digit_share", "reward/part/reward_model", "reward/part/wise"} <= rows[-1].keys()
        assert (folder / "judges" / "replies.sqlite3").is_file()
        asked = len(server.requests)
        assert asked > 0
        strop.evaluate(strop.load(run))  # of the model at the start, whose answers were judged before
        assert len(server.requests) == asked


def test_unreachable_judge_is_reported_before_training(values: Values) -> None:
    run = values()
    run["reward"] = {"judges": [{"url": "http://127.0.0.1:9/v1", "model": "wise"}]}
    with pytest.raises(RewardError, match="does not respond"):
        strop.train(strop.load(run))


def test_invalid_reward_model_is_reported_before_training(values: Values, tiny: Path) -> None:
    run = values()
    run["reward"] = {"models": [{"path": str(tiny / "model")}]}
    with pytest.raises(ModelError, match=r"reward\.models \(reward_model\): .* has 2 labels"):
        strop.train(strop.load(run))
