"""Errors that `strop check` finds without loading a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from strop.config.load.loader import load_values
from strop.config.load.preflight import missing_files

BASE = {"model": {"path": "owner/model"}, "data": {"train": {"path": "owner/data"}}, "reward": "exact"}
JUDGE = {"url": "http://localhost:1/v1", "model": "wise"}


def faults(tmp_path: Path, **sections: Any) -> list[str]:
    return missing_files(load_values({**BASE, "output": str(tmp_path), **sections}))


def test_nothing_is_missing(tmp_path: Path) -> None:
    assert faults(tmp_path) == []
    assert faults(tmp_path, reward={"judges": [JUDGE]}) == []
    assert faults(tmp_path, reward={"models": [{"path": "owner/reward-model"}]}) == []


@pytest.mark.parametrize(
    ("reward", "said"),
    [
        ({}, "reward: missing, so nothing scores the responses"),
        ({"functions": [{"function": "nowhere.py:f"}]}, "there is no file nowhere.py"),
        ({"models": [{"path": "./nowhere"}]}, "reward.models.0.path: there is no model folder ./nowhere"),
        (
            {"models": [{"path": "o/m", "chat_template": "no.jinja"}]},
            "there is no file no.jinja",
        ),
        ({"judges": [{**JUDGE, "prompt": "no.jinja"}]}, "reward.judges.0.prompt: there is no file no.jinja"),
        ({"judges": [{**JUDGE, "api_key_env": "NO_SUCH"}]}, "the environment variable NO_SUCH is not set"),
    ],
)
def test_what_a_reward_lacks(tmp_path: Path, reward: dict[str, Any], said: str) -> None:
    (fault,) = faults(tmp_path, reward=reward)
    assert said in fault


def test_a_critic_that_is_not_there(tmp_path: Path) -> None:
    critic = {"model": {"path": "./nowhere"}}
    (fault,) = faults(tmp_path, algorithm={"type": "ppo", "critic": critic})
    assert "algorithm.critic.model.path: there is no model folder ./nowhere" in fault


@pytest.mark.parametrize(
    ("rollout", "said"),
    [
        ({"workflow": "nowhere.py:f"}, "rollout.workflow.name: there is no file nowhere.py"),
        (
            {"auxiliary_models": [{"name": "helper", "path": "./nowhere"}]},
            "rollout.auxiliary_models.0.path: there is no model folder ./nowhere",
        ),
    ],
)
def test_what_a_workflow_lacks(tmp_path: Path, rollout: dict[str, Any], said: str) -> None:
    (fault,) = faults(tmp_path, rollout=rollout)
    assert said in fault


@pytest.mark.parametrize(("engine", "name"), [("vllm", "vLLM"), ("sglang", "SGLang")])
def test_an_engine_that_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, name: str
) -> None:
    monkeypatch.setattr("strop.config.load.preflight.find_spec", lambda name: None)
    (fault,) = faults(tmp_path, rollout={"engine": engine})
    assert f"rollout.engine.type: {name} is not installed: pip install 'strop[{engine}]'" in fault
    assert faults(tmp_path, rollout={"engine": "auto"}) == []
