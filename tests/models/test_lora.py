"""LoRA adapters, compared with PEFT."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from torch import nn

from strop.config.schema.model import LoraConfig
from strop.errors import ModelError
from strop.models.logprobs import token_outputs
from strop.models.lora import adapter_weights, add_lora, load_adapter, merged_weights, without_adapter
from strop.models.packed_attention.forward import can_share_prompts, enable_packed_attention
from tests.models.models import distance, make, packed, packed_gradient, some_experiences


def adapted(family: str = "qwen2", **fields: object) -> PeftModel:
    """A model with a nonzero adapter."""
    base = make(family)
    enable_packed_attention(base)
    torch.manual_seed(0)
    model = add_lora(base, LoraConfig.model_validate({"rank": 4, "alpha": 8, **fields}), torch.float32)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.1)
    return model.eval()


def trained(model: nn.Module) -> set[str]:
    return {name.split(".")[-4] for name, p in model.named_parameters() if p.requires_grad}


ALL = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ALL),
        ({"targets": ["q_proj", "v_proj"]}, {"q_proj", "v_proj"}),
        ({"targets": r".*\.self_attn\.[qk]_proj"}, {"q_proj", "k_proj"}),
        ({"exclude": ["down_proj"]}, ALL - {"down_proj"}),
        ({"exclude": r".*mlp.*"}, {"q_proj", "k_proj", "v_proj", "o_proj"}),
        ({"exclude": r".*visual.*"}, ALL),
    ],
)
@pytest.mark.filterwarnings("error")
def test_targets(fields: dict[str, object], expected: set[str]) -> None:
    assert trained(adapted(**fields)) == expected


def test_a_new_adapter_changes_no_output() -> None:
    base = make("qwen2")
    enable_packed_attention(base)
    (micro_batch,) = packed(some_experiences(), share_prompts=True)
    before = token_outputs(base, micro_batch, entropy=False).logprobs
    model = add_lora(base, LoraConfig(), torch.float32)
    assert torch.equal(token_outputs(model, micro_batch, entropy=False).logprobs, before)


def test_dtype_of_the_adapter() -> None:
    base = make("qwen2").to(torch.bfloat16)
    model = add_lora(base, LoraConfig(), torch.float32)
    assert {(p.dtype, p.requires_grad) for p in model.parameters()} == {
        (torch.bfloat16, False),
        (torch.float32, True),
    }


def test_an_adapter_continues_from_pefts_folder(tmp_path: Path) -> None:
    trained_before = adapted()
    trained_before.save_pretrained(tmp_path)
    model = add_lora(make("qwen2"), LoraConfig(rank=4, alpha=8), torch.float32)
    load_adapter(model, LoraConfig(rank=4, alpha=8), str(tmp_path))
    expected, found = (dict(adapter_weights(each)) for each in (trained_before, model))
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"rank": 8, "alpha": 8}, "has rank 4 and alpha 8"),
        ({"rank": 4, "alpha": 8, "targets": ["q_proj"]}, "other modules"),
    ],
)
def test_an_adapter_that_does_not_fit(tmp_path: Path, fields: dict[str, object], expected: str) -> None:
    adapted().save_pretrained(tmp_path)
    section = LoraConfig.model_validate(fields)
    with pytest.raises(ModelError, match=expected):
        load_adapter(add_lora(make("qwen2"), section, torch.float32), section, str(tmp_path))
    with pytest.raises(ModelError, match="no adapter in PEFT's format"):
        load_adapter(add_lora(make("qwen2"), section, torch.float32), section, str(tmp_path / "none"))


def test_the_reference_is_the_model_without_its_adapter() -> None:
    base = make("qwen2")
    enable_packed_attention(base)
    (micro_batch,) = packed(some_experiences(), share_prompts=True)
    before = token_outputs(base, micro_batch, entropy=False).logprobs
    model = adapted()
    assert can_share_prompts(model) == (True, "")
    with without_adapter(model):
        assert torch.equal(token_outputs(model, micro_batch, entropy=False).logprobs, before)
    assert (token_outputs(model, micro_batch, entropy=False).logprobs - before).abs().max() > 1e-3


@pytest.mark.parametrize("family", ["qwen2", "llama", "gemma", "phi"])
def test_merged_weights_equal_pefts_and_do_not_change_the_model(family: str) -> None:
    model = adapted(family)
    state = copy.deepcopy(model.state_dict())
    ours = dict(merged_weights(model))
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in state.items())
    theirs = dict(copy.deepcopy(model).merge_and_unload().named_parameters())
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, atol=1e-6, rtol=1e-6)


def test_weights_without_an_adapter_are_not_copied() -> None:
    model = make("qwen2", tie_word_embeddings=True)
    ours = dict(merged_weights(model))
    assert "lm_head.weight" not in ours
    assert all(ours[name].data_ptr() == p.data_ptr() for name, p in model.named_parameters())


def test_only_the_adapter_has_a_gradient_independent_of_micro_batches() -> None:
    model = adapted()
    experiences = some_experiences()
    _, whole = packed_gradient(model, packed(experiences, share_prompts=True))
    assert all("lora_" in name for name in whole)
    _, parts = packed_gradient(model, packed(experiences, share_prompts=False, tokens=30))
    assert distance(parts, whole) < 1e-5


def test_an_adapted_head() -> None:
    base = make("qwen2", tie_word_embeddings=False)
    enable_packed_attention(base)
    model = add_lora(base, LoraConfig(targets=("lm_head",)), torch.float32)
    for parameter in model.parameters():
        if parameter.requires_grad:
            nn.init.normal_(parameter, std=0.1)
    (micro_batch,) = packed(some_experiences(), share_prompts=True)
    merged = copy.deepcopy(model).merge_and_unload()
    expected = token_outputs(merged, micro_batch, entropy=False).logprobs
    ours = token_outputs(model, micro_batch, entropy=False).logprobs
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (("no_such_layer",), "no_such_layer"),
        (("embed_tokens",), "embed_tokens is not a linear layer"),
        (("lm_head",), "shares its weight"),
    ],
)
def test_bad_targets(targets: tuple[str, ...], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        add_lora(make("qwen2", tie_word_embeddings=True), LoraConfig(targets=targets), torch.float32)
