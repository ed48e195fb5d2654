"""Tests for the formulas of predicted update times, in `benchmarks/step_time.py`."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import Qwen2Config, Qwen2ForCausalLM


@pytest.fixture
def step_time(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("step_time")


@pytest.mark.parametrize("tied", [True, False])
def test_flops_are_those_of_torchs_counter(step_time: ModuleType, tied: bool) -> None:
    config = Qwen2Config(
        vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=tied, attn_implementation="eager",
    )  # fmt: skip
    model = Qwen2ForCausalLM(config)
    matrices = sum(weight.numel() for weight in model.parameters() if weight.dim() == 2)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.zeros(1, 48, dtype=torch.long))
    shape = step_time.Shape(matrices, 32, 2, 0.5, 96, tied)
    attention = 2 * 2 * 32 * 48
    # Eager attention computes the whole square, of which the formula counts the causal part.
    expected = (step_time.flops_per_token(shape, 48) + attention) * 48
    assert counter.get_total_flops() == pytest.approx(expected, rel=0.01)


def test_a_hand_worked_update(step_time: ModuleType) -> None:
    hardware = step_time.Hardware(flops=1e15, memory=1e12, within_node=1e11, between_nodes=5e10)
    shape = step_time.Shape(1_000_000_000, 0, 0, 1.0, 0, True)
    found = step_time.update_seconds(shape, 2, 1, hardware)
    # 256 micro-batches of 16,384 tokens on two ranks; 8 FLOP per parameter and token at 0.4e15 per second.
    assert found["products"] == pytest.approx(128 * 8e9 * 16_384 / 0.4e15)
    assert found["transfers"] == pytest.approx(128 * 8e9 / 2 / 1e11)
    assert found["optimizer"] == pytest.approx(0.5e9 * 28 / 1e12)
    assert found["update"] == pytest.approx(found["products"] + found["optimizer"])
