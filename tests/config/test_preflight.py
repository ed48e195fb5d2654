"""Errors that `strop check` finds without loading a model."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from strop.config import preflight
from strop.config.checks.run import unusual_values
from strop.config.load.loader import load_values
from strop.config.preflight import missing_files
from strop.config.schema.model import ModelConfig
from strop.errors import ModelError
from strop.models.loading import load_model

BASE = {"model": {"path": "owner/model"}, "data": {"train": {"path": "owner/data"}}, "reward": "exact"}
JUDGE = {"url": "http://localhost:1/v1", "model": "wise"}


def faults(tmp_path: Path, **sections: Any) -> list[str]:
    return missing_files(load_values({**BASE, "output": str(tmp_path), **sections}))


@pytest.mark.parametrize(
    "reward", ["exact", {"judges": [JUDGE]}, {"models": [{"path": "owner/reward-model"}]}]
)
def test_nothing_is_missing(tmp_path: Path, reward: Any) -> None:
    assert faults(tmp_path, reward=reward) == []


@pytest.mark.parametrize(
    ("section", "values", "message"),
    [
        ("reward", {}, "reward: missing, so nothing scores the responses"),
        ("reward", {"functions": [{"function": "no.py:f"}]}, "there is no file no.py"),
        ("reward", {"models": [{"path": "./no"}]}, "reward.models.0.path: there is no model folder ./no"),
        ("reward", {"models": [{"path": "o/m", "chat_template": "no.jinja"}]}, "there is no file no.jinja"),
        ("reward", {"judges": [{**JUDGE, "prompt": "n.jinja"}]}, "judges.0.prompt: there is no file n.jinja"),
        ("reward", {"judges": [{**JUDGE, "api_key_env": "NO"}]}, "environment variable NO is not set"),
        (
            "algorithm",
            {"type": "ppo", "critic": {"model": {"path": "./no"}}},
            "algorithm.critic.model.path: there is no model folder ./no",
        ),
        ("rollout", {"workflow": "no.py:f"}, "rollout.workflow.name: there is no file no.py"),
        (
            "rollout",
            {"auxiliary_models": [{"name": "helper", "path": "./no"}]},
            "rollout.auxiliary_models.0.path: there is no model folder ./no",
        ),
    ],
)
def test_what_a_section_lacks(tmp_path: Path, section: str, values: Any, message: str) -> None:
    (fault,) = faults(tmp_path, **{section: values})
    assert message in fault


ADAPTER = {"r": 4, "lora_alpha": 8, "peft_type": "LORA", "target_modules": ["q_proj"], "lora_dropout": 0.05}


@pytest.mark.parametrize(
    ("config", "lora", "message"),
    [
        (None, {}, "no adapter in PEFT's format"),
        (ADAPTER | {"use_dora": True}, {}, "its use_dora is true"),
        (ADAPTER, {"rank": 8}, "write them as model.lora.rank and model.lora.alpha"),
        (ADAPTER | {"use_rslora": True}, {"use_rslora": False}, "Remove model.lora.use_rslora"),
    ],
)
def test_an_adapter_that_cannot_be_continued(
    tmp_path: Path, config: dict[str, Any] | None, lora: dict[str, Any], message: str
) -> None:
    folder = tmp_path / "adapter"
    folder.mkdir()
    if config is not None:
        (folder / "adapter_config.json").write_text(json.dumps(config))
        (folder / "adapter_model.safetensors").touch()
    section = {"rank": 4, "alpha": 8, "adapter": str(folder), **lora}
    (fault,) = faults(tmp_path, model={"path": "owner/model", "lora": section})
    assert fault.startswith("model.lora.adapter: ") and message in fault


@pytest.mark.parametrize(("files", "message"), [((), "and no model"), (("config.json",), "next to a model")])
def test_a_model_folder_with_an_adapter(tmp_path: Path, files: tuple[str, ...], message: str) -> None:
    for name in ("adapter_config.json", *files):
        (tmp_path / name).write_text("{}")
    (fault,) = faults(tmp_path, model={"path": str(tmp_path)})
    assert "model.path: " in fault and message in fault
    with pytest.raises(ModelError, match=message):
        load_model(ModelConfig(path=str(tmp_path)), device="cpu")


def test_the_dropout_of_an_adapter_that_is_continued_is_named(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps(ADAPTER))
    (tmp_path / "adapter_model.safetensors").touch()
    lora = {"rank": 4, "alpha": 8, "adapter": str(tmp_path)}
    said = []
    for dropout in (0.0, 0.05):
        values = {**BASE, "model": {"path": "owner/model", "lora": {**lora, "dropout": dropout}}}
        said.append(list(unusual_values(load_values(values).run)))
    assert [len(each) for each in said] == [1, 0] and "lora_dropout 0.05" in said[0][0]


@pytest.mark.parametrize(("engine", "name"), [("vllm", "vLLM"), ("sglang", "SGLang")])
def test_an_engine_that_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, name: str
) -> None:
    monkeypatch.setattr("strop.config.preflight.find_spec", lambda name: None)
    (fault,) = faults(tmp_path, rollout={"engine": engine})
    assert f"rollout.engine.type: {name} is not installed: pip install 'strop[{engine}]'" in fault
    assert faults(tmp_path, rollout={"engine": "auto"}) == []


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"trainer": {"engine": {"type": "deepspeed", "ranks": 2}}}, "deepspeed needs the package deepspeed"),
        ({"trainer": {"optimizer": {"type": "adamw_bnb", "lr": 1e-3}}}, "needs the package bitsandbytes"),
        ({"trainer": {"optimizer": {"type": "ademamix", "lr": 1e-3}}}, "pip install 'strop[optimizers]'"),
        (
            {"model": {"path": "owner/model", "lora": {"rank": 4}, "quantization": {"bits": 8}}},
            "quantization by bitsandbytes needs the package bitsandbytes, which is not installed: pip install",
        ),
        (
            {
                "model": {
                    "path": "owner/model",
                    "lora": {"rank": 4},
                    "quantization": {"library": "torchao", "bits": 8},
                }
            },
            "pip install 'strop[torchao]'",
        ),
        ({"cluster": "ray", "synchronizer": "checkpoint"}, "cluster.type: ray needs the package ray"),
    ],
)
def test_a_package_that_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sections: dict[str, Any], message: str
) -> None:
    monkeypatch.setattr("strop.config.preflight.find_spec", lambda name: None)
    (fault,) = faults(tmp_path, **sections)
    assert message in fault


VLLM = """
class Other:
    wrong: int = 0


@dataclass
class EngineArgs:
    block_size: int | None = None


@dataclass
class AsyncEngineArgs(EngineArgs):
    newer_option: bool = False
"""
SGLANG = """
class Memory:
    page_size: int | None = None


class Schedule:
    newer_option: bool = False
"""


@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize(
    ("library", "file", "source", "misspelled", "known", "owner"),
    [
        (
            *("vllm", "engine/arg_utils.py", VLLM, "block_sise", "block_size"),
            {True: "AsyncEngineArgs in the installed vLLM", False: "AsyncEngineArgs in vLLM 0.32.0"},
        ),
        (
            *("sglang", "srt/arg_groups/fields/memory.py", SGLANG, "page_sise", "page_size"),
            {True: "ServerArgs in the installed SGLang", False: "ServerArgs in SGLang 0.5.23"},
        ),
    ],
)
def test_names_that_the_librarys_class_of_arguments_does_not_have(
    tmp_path, monkeypatch, library, file, source, misspelled, known, owner, installed
) -> None:
    """The installed library decides, which is read and not imported; without one, the names of a recorded version."""
    path = tmp_path / library / file
    path.parent.mkdir(parents=True)
    path.write_text(source)
    spec = SimpleNamespace(origin=str(tmp_path / library / "__init__.py")) if installed else None
    monkeypatch.setattr(preflight, "find_spec", lambda name: spec)
    preflight.argument_names.cache_clear()
    names = {misspelled: 32, "newer_option": True, "wrong": 1}
    found = faults(tmp_path, rollout={"engine": {"type": library, "engine_kwargs": names}})
    preflight.argument_names.cache_clear()
    said = [fault for fault in found if "engine_kwargs" in fault]
    assert len(said) == (2 if installed else 3) and all(owner[installed] in fault for fault in said)
    assert f"rollout.engine.engine_kwargs.{misspelled}" in said[0] and f"did you mean '{known}'?" in said[0]


@pytest.mark.parametrize(
    ("optimizer", "is_unusual"),
    [({"type": "adamw", "lr": 3}, True), ({"type": "sgd", "lr": 3}, False), ({"lr": 1e-2}, False)],
)
def test_an_unusual_learning_rate_is_named(optimizer: dict[str, object], is_unusual: bool) -> None:
    advice = list(unusual_values(load_values({**BASE, "trainer": {"optimizer": optimizer}}).run))
    assert len(advice) == is_unusual
    assert all("trainer.optimizer.lr" in text and "Was 3e-6 meant?" in text for text in advice)
