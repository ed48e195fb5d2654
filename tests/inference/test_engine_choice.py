"""Decision of `rollout.engine: auto`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from strop.config.schema.model import ModelConfig
from strop.config.schema.rollout import AutoEngineConfig
from strop.inference import registry
from strop.inference.vllm import library


@pytest.mark.parametrize(
    ("family", "gpu", "installed", "engine", "reason"),
    [
        ("qwen2", True, True, "vllm", "there is a GPU"),
        ("qwen2", False, True, "native", "no GPU"),
        ("qwen2", True, False, "native", "not installed"),
        ("qwen2_5_vl", True, True, "vllm", "there is a GPU"),
        ("smolvlm", True, True, "native", "takes no images for smolvlm"),
    ],
)
def test_auto_chooses_vllm_on_a_gpu_for_models_that_it_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family, gpu, installed, engine, reason
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    (tmp_path / "model.safetensors").touch()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(library, "is_vllm_installed", lambda: installed)
    choice = registry.choose_engine(AutoEngineConfig(), ModelConfig(path=str(tmp_path)))
    assert choice.section.type == engine and reason in choice.reason
