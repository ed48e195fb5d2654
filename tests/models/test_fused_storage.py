"""Fused storage: equal values and parameters on one tensor."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from strop.models.shared_weights import concatenated_view, fuse_storage
from tests.models.models import VOCAB, make

TRIOS = {"self_attn": ("q_proj", "k_proj", "v_proj"), "mlp": ("gate_proj", "up_proj")}


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama", "mistral", "gemma", "phi"])
def test_siblings_are_consecutive_with_equal_values(family):
    model = make(family)
    before = copy.deepcopy(model)
    parameters = list(model.parameters())
    fuse_storage(model)
    assert all(one is other for one, other in zip(parameters, model.parameters(), strict=True))
    for old, new in zip(before.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(old, new, rtol=0, atol=0)
    attention = model.model.layers[1].self_attn
    weights = [getattr(attention, name).weight for name in TRIOS["self_attn"]]
    together = concatenated_view(weights)
    assert together is not None
    torch.testing.assert_close(together, torch.cat(weights))
    assert together.data_ptr() == weights[0].data_ptr()
    storage = together.untyped_storage().data_ptr()
    fuse_storage(model)
    assert attention.q_proj.weight.untyped_storage().data_ptr() == storage, "fusing twice moves nothing"


def test_training_updates_fused_storage_in_place():
    model = make("qwen2")
    plain = copy.deepcopy(model)
    fuse_storage(model)
    tokens = torch.randint(VOCAB, (2, 9), generator=torch.Generator().manual_seed(0))
    for each in (model, plain):
        optimizer = torch.optim.AdamW(each.parameters(), lr=1e-2)
        for _ in range(3):
            each(tokens, labels=tokens).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    mlp = model.model.layers[0].mlp
    assert concatenated_view([mlp.gate_proj.weight, mlp.up_proj.weight]) is not None


def test_tied_embeddings_stay_tied():
    model = make("qwen2", tie_word_embeddings=True)
    fuse_storage(model)
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_base_layers_of_an_adapter_are_fused():
    model = get_peft_model(make("qwen2"), LoraConfig(r=2, target_modules="all-linear"))
    fuse_storage(model)
    attention = model.get_base_model().model.layers[0].self_attn
    weights = [getattr(attention, name).base_layer.weight for name in TRIOS["self_attn"]]
    assert concatenated_view(weights) is not None


def test_a_fused_model_saves_and_loads(tmp_path: Path):
    model = make("qwen2")
    fuse_storage(model)
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    for one, other in zip(model.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_separate_tensors_have_no_concatenated_view():
    whole = torch.arange(24.0).view(6, 4)
    assert concatenated_view([whole[:2], whole[2:]]) is not None
    assert concatenated_view([whole[:2], whole[3:]]) is None
    assert concatenated_view([whole[2:], whole[:2]]) is None
    assert concatenated_view([whole[:2], whole[2:].clone()]) is None
    assert concatenated_view([whole[:2, :2], whole[2:, :2]]) is None
    assert concatenated_view([whole[:2], whole[2:].to(torch.float64)]) is None
    torch.testing.assert_close(concatenated_view([whole[:3], whole[3:5], whole[5:]]), whole)
