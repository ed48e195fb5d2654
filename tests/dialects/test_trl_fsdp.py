"""Tests that TRL's `fsdp` and `fsdp_config` become a layout of FSDP2, or are refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from strop.config.load.loader import LoadedRun
from strop.config.schema.training_engine import Fsdp2EngineConfig, LocalEngineConfig, WrapPolicyConfig
from strop.dialects.convert import convert
from strop.dialects.detect import read_any
from strop.dialects.job import Job
from strop.dialects.trl.reader import read_trl_arguments
from strop.errors import ConfigError, PlacementError

FOUR = ("--num_processes", "4", "--num_generations", "4")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STROP_HERE", raising=False)


def read(fsdp: Any, config: Any = None, *more: str, here: bool = False) -> LoadedRun:
    values = {"model_name_or_path": "m", "dataset_name": "train.jsonl", "fsdp": fsdp, "fsdp_config": config}
    Path("grpo.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    return read_trl_arguments("grpo", ["--config", "grpo.yaml", *FOUR, *more], here=here)


@pytest.mark.parametrize(
    ("fsdp", "config", "expected"),
    [
        (True, None, Fsdp2EngineConfig(ranks=4)),
        ("full_shard auto_wrap", None, Fsdp2EngineConfig(ranks=4)),
        (
            "shard_grad_op offload",
            None,
            Fsdp2EngineConfig(ranks=4, reshard_after_forward=False, cpu_offload=True),
        ),
        (["no_shard"], {"version": 1}, Fsdp2EngineConfig(ranks=4, replicate=4)),
        (True, {"reshard_after_forward": False}, Fsdp2EngineConfig(ranks=4, reshard_after_forward=False)),
        (
            True,
            {"fsdp_transformer_layer_cls_to_wrap": "Qwen2DecoderLayer", "fsdp_cpu_offload": True},
            Fsdp2EngineConfig(
                ranks=4, cpu_offload=True, wrap=WrapPolicyConfig(layers=("Qwen2DecoderLayer",))
            ),
        ),
        (
            True,
            {"auto_wrap_policy": "SIZE_BASED_WRAP", "min_num_params": 1000},
            Fsdp2EngineConfig(ranks=4, wrap=WrapPolicyConfig(min_parameters=1000)),
        ),
        (
            "full_shard",
            {"version": 1, "forward_prefetch": "true"},
            Fsdp2EngineConfig(ranks=4, forward_prefetch=1),
        ),
        (None, None, LocalEngineConfig()),
        ("", None, LocalEngineConfig()),
    ],
)
def test_layouts_both_ways(fsdp: Any, config: Any, expected: Any) -> None:
    loaded = read(fsdp, config)
    assert loaded.run.trainer.engine == expected
    written = convert(Job(loaded), "trl")
    assert written.unsupported == ()
    Path("again.yaml").write_text(yaml.safe_dump(dict(written.values)), encoding="utf-8")
    assert read_any(Path("again.yaml")).loaded.run == loaded.run


def test_the_options_are_in_a_json_file() -> None:
    Path("fsdp.json").write_text(json.dumps({"cpu_offload": True}), encoding="utf-8")
    assert read(True, "fsdp.json").run.trainer.engine == Fsdp2EngineConfig(ranks=4, cpu_offload=True)


def test_fsdps_own_recomputation() -> None:
    off = ("--gradient_checkpointing", "false")
    assert read(True, {"activation_checkpointing": True}, *off).run.model.gradient_checkpointing is True
    assert read(True, None, *off).run.model.gradient_checkpointing is False
    assert read(None, {"activation_checkpointing": True}, *off).run.model.gradient_checkpointing is False


@pytest.mark.parametrize(
    ("fsdp", "config", "expected"),
    [
        (True, {"version": 1}, "FSDP2 stands in for the first version"),
        (True, {"state_dict_type": "FULL_STATE_DICT"}, "without effect, on results too: state_dict_type"),
        (True, {"forward_prefetch": True}, "without effect, on results too: forward_prefetch"),
        (None, {"cpu_offload": True}, "inactive, because fsdp is not set"),
    ],
)
def test_what_has_no_effect_is_said(fsdp: Any, config: Any, expected: str) -> None:
    assert any(expected in note for note in read(fsdp, config).notes)


@pytest.mark.parametrize(
    ("fsdp", "config", "expected"),
    [
        ("hybrid_shard", {"version": 1}, r"a replica of the model per node; write full_shard"),
        ("fully", None, r"fsdp has 'fully'; write true"),
        (True, {"offload_params": True}, r"fsdp_config has offload_params, which is not supported"),
        (True, {"xla": True}, r"trains on TPUs"),
        (True, {"auto_wrap_policy": "NONE"}, r"auto_wrap_policy is NONE; write one of"),
        (True, {"reshard_after_forward": "often"}, r"reshard_after_forward is often"),
        (True, "missing.json", r"there is no such file"),
        (True, 3, r"write a mapping of options"),
    ],
)
def test_refused(fsdp: Any, config: Any, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        read(fsdp, config)


def test_one_engine_divides_the_model() -> None:
    with pytest.raises(ConfigError, match="fsdp and deepspeed both divide the model"):
        read(True, None, "--deepspeed", "zero.json")


def test_here_trains_in_one_process() -> None:
    loaded = read(True, {"cpu_offload": True}, here=True)
    assert loaded.run.trainer.engine == LocalEngineConfig()
    assert {each.key for each in loaded.overridden} == {"fsdp", "fsdp_config"}


def test_accelerates_file_is_refused_with_what_to_write() -> None:
    with pytest.raises(PlacementError, match="fsdp with its fsdp_config, or deepspeed, as options"):
        read(None, None, "--accelerate_config", "fsdp2")
