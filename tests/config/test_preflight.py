"""Errors that `strop check` finds without loading a model."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from strop.config.load import library_arguments
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


ARGUMENTS = {
    "vllm": """
class Other:
    wrong: int = 0


@dataclass
class EngineArgs:
    block_size: int | None = None


@dataclass
class AsyncEngineArgs(EngineArgs):
    newer_option: bool = False
""",
    "sglang": """
class Memory:
    page_size: int | None = None


class Schedule:
    newer_option: bool = False
""",
}
SOURCES = {"vllm": "engine/arg_utils.py", "sglang": "srt/arg_groups/fields/memory.py"}


@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize(
    ("library", "misspelled", "known", "version"),
    [
        ("vllm", "block_sise", "block_size", "AsyncEngineArgs in {} 0.32.0"),
        ("sglang", "page_sise", "page_size", "ServerArgs in {} 0.5.23"),
    ],
)
def test_names_that_the_librarys_class_of_arguments_does_not_have(
    tmp_path, monkeypatch, library: str, misspelled: str, known: str, version: str, installed: bool
) -> None:
    """The installed library decides, which is read and not imported; without one, the names of a recorded version."""
    source = tmp_path / library / SOURCES[library]
    source.parent.mkdir(parents=True)
    source.write_text(ARGUMENTS[library])
    spec = SimpleNamespace(origin=str(tmp_path / library / "__init__.py")) if installed else None
    monkeypatch.setattr(library_arguments, "find_spec", lambda name: spec)
    library_arguments.argument_names.cache_clear()
    names = {misspelled: 32, "newer_option": True, "wrong": 1}
    found = faults(tmp_path, rollout={"engine": {"type": library, "engine_kwargs": names}})
    library_arguments.argument_names.cache_clear()
    said = [fault for fault in found if "engine_kwargs" in fault]
    title = {"vllm": "vLLM", "sglang": "SGLang"}[library]
    owner = (
        version.replace("{} ", f"the installed {title} ").rsplit(" ", 1)[0]
        if installed
        else version.format(title)
    )
    assert len(said) == (2 if installed else 3) and all(owner in fault for fault in said)
    assert f"rollout.engine.engine_kwargs.{misspelled}" in said[0] and f"did you mean '{known}'?" in said[0]
