"""Errors that `strop check` finds without loading a model."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from strop.config.load import vllm_arguments
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


VLLM_ARGUMENTS = """
class Other:
    wrong: int = 0


@dataclass
class EngineArgs:
    block_size: int | None = None


@dataclass
class AsyncEngineArgs(EngineArgs):
    newer_option: bool = False
"""


@pytest.mark.parametrize("installed", [True, False])
def test_names_that_vllms_class_of_arguments_does_not_have(tmp_path, monkeypatch, installed: bool) -> None:
    """The installed vLLM decides, which is read and not imported; without one, the names of a recorded version."""
    source = tmp_path / "vllm" / "engine" / "arg_utils.py"
    source.parent.mkdir(parents=True)
    source.write_text(VLLM_ARGUMENTS)
    spec = SimpleNamespace(origin=str(source.parents[1] / "__init__.py")) if installed else None
    monkeypatch.setattr(vllm_arguments, "find_spec", lambda name: spec)
    vllm_arguments.vllm_argument_names.cache_clear()
    names = {"block_sise": 32, "newer_option": True, "wrong": 1}
    found = faults(tmp_path, rollout={"engine": {"type": "vllm", "engine_kwargs": names}})
    vllm_arguments.vllm_argument_names.cache_clear()
    said = [fault for fault in found if "engine_kwargs" in fault]
    version = "the installed vLLM" if installed else "vLLM 0.32.0"
    assert len(said) == (2 if installed else 3) and all(version in fault for fault in said)
    assert "rollout.engine.engine_kwargs.block_sise" in said[0] and "did you mean 'block_size'?" in said[0]
