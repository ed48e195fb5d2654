"""Names of weights as vLLM reads them."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from strop.inference.weight_files import checkpoint_weights, read_weights
from strop.models.tiny import make_model


def test_experts_have_the_names_and_values_of_the_checkpoint(tmp_path: Path):
    options = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    folder = make_model(tmp_path, ["a b"], family="qwen3_moe", layers=1, tied=False, **options)
    model = AutoModelForCausalLM.from_pretrained(folder)
    saved = dict(read_weights(folder))
    assert saved.keys() != dict(model.named_parameters()).keys()
    found = dict(checkpoint_weights(model.named_parameters(), model.config))
    assert found.keys() == saved.keys()
    assert all(torch.equal(found[name], saved[name]) for name in saved)
    again = dict(checkpoint_weights(saved.items(), model.config))
    assert again.keys() == saved.keys()
