"""LoRA adapters, compared with PEFT."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig as PeftLoraConfig
from peft import PeftModel, get_peft_model
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from torch import nn

from strop.config.peft_adapter import CONFIG_FILE, WITHOUT_EFFECT, adapter_options
from strop.config.peft_adapter import HONORED as HONORED_OPTIONS
from strop.config.peft_adapter import REFUSED as REFUSED_OPTIONS
from strop.config.schema.model import LoraConfig
from strop.errors import ModelError
from strop.models.formats.huggingface import write_adapter, write_serving_adapter
from strop.models.logprobs import token_outputs
from strop.models.lora import (
    add_lora,
    load_adapter,
    low_rank_updates,
    merged_weights,
    without_adapter,
)
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


def pefts_adapter(folder: Path, **options: Any) -> PeftModel:
    """PEFT's own model with a random adapter, saved in a folder."""
    selected = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM"}
    model = get_peft_model(make("qwen2"), PeftLoraConfig(**(selected | options)))
    torch.manual_seed(2)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(folder)
    return model  # type: ignore[return-value]


def changed_config(folder: Path, **values: Any) -> None:
    file = folder / CONFIG_FILE
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def continued(folder: Path, **fields: Any) -> PeftModel:
    section = LoraConfig.model_validate({"rank": 4, "alpha": 8, "adapter": str(folder), **fields})
    model = add_lora(make("qwen2"), section, torch.float32)
    load_adapter(model, section, str(folder))
    return model


LAYER = "model.layers.0.self_attn.q_proj"
HONORED: dict[str, dict[str, Any]] = {
    "plain": {},
    "rslora": {"use_rslora": True},
    "alpha_pattern": {"alpha_pattern": {"q_proj": 64}},
    "rank_pattern": {"rank_pattern": {"q_proj": 2}},
    "patterns of one module": {"alpha_pattern": {LAYER: 3}, "rank_pattern": {r".*\.1\..*v_proj": 5}},
    "rslora with patterns": {
        "use_rslora": True,
        "rank_pattern": {"v_proj": 2},
        "alpha_pattern": {"v_proj": 1},
    },
    "layers_to_transform": {"layers_to_transform": [1]},
    "layers_pattern": {"layers_to_transform": 0, "layers_pattern": "layers"},
    "regular expression": {"target_modules": r".*\.mlp\..*_proj"},
    "all-linear": {"target_modules": "all-linear", "exclude_modules": ["o_proj"]},
    "gaussian": {"init_lora_weights": "gaussian"},
    "dropout": {"lora_dropout": 0.3},
}
"""Options of PEFT's LoraConfig."""


@pytest.mark.parametrize("name", HONORED)
def test_an_adapter_of_peft_is_continued_with_its_options(tmp_path: Path, name: str) -> None:
    """The merged weights are those of PEFT's merge, and what is exported is what was read."""
    theirs = pefts_adapter(tmp_path / "theirs", **HONORED[name])
    model = continued(tmp_path / "theirs")
    write_adapter(model, tmp_path / "ours")
    again = PeftModel.from_pretrained(make("qwen2"), tmp_path / "ours").merge_and_unload()
    expected = dict(theirs.merge_and_unload().named_parameters())
    start = dict(make("qwen2").named_parameters())
    assert any(not torch.equal(start[key], value) for key, value in expected.items())
    for found in (dict(merged_weights(model)), dict(again.named_parameters())):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            torch.testing.assert_close(found[key], value, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", ["plain", "rslora", "patterns of one module", "rslora with patterns"])
def test_an_adapter_for_an_inference_engine_has_one_rank_and_the_scale_alpha_by_rank(
    tmp_path: Path, name: str
) -> None:
    pefts_adapter(tmp_path / "theirs", **HONORED[name])
    model = continued(tmp_path / "theirs")
    write_serving_adapter(model, tmp_path / "served")
    values = json.loads((tmp_path / "served" / CONFIG_FILE).read_text())
    assert not (values["use_rslora"] or values["rank_pattern"] or values["alpha_pattern"])
    factors = load_file(tmp_path / "served" / "adapter_model.safetensors")
    assert {t.shape[0] for n, t in factors.items() if "lora_A" in n} == {values["r"]}
    served = PeftModel.from_pretrained(make("qwen2"), tmp_path / "served").merge_and_unload()
    expected = dict(merged_weights(model))
    for key, value in served.named_parameters():
        torch.testing.assert_close(value, expected[key], atol=1e-6, rtol=1e-5)
    assert (
        adapter_options(LoraConfig(rank=4, alpha=8, adapter=str(tmp_path / "theirs"))).max_rank == values["r"]
    )


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"peft_type": "IA3"}, "its peft_type is .*another method than LoRA"),
    ({"task_type": "SEQ_CLS"}, "another kind of model"),
    ({"use_dora": True}, r"its use_dora is true, which trains a magnitude .*\(DoRA"),
    ({"bias": "lora_only"}, "its bias is .*trains biases of the model"),
    ({"modules_to_save": ["lm_head"]}, r'its modules_to_save is \["lm_head"\], which trains whole modules'),
    ({"lora_bias": True}, "a bias of the second factor"),
    ({"trainable_token_indices": [1, 2]}, "embeddings of tokens"),
    ({"layer_replication": [[0, 2], [1, 2]]}, "repeated layers"),
    ({"init_lora_weights": "pissa"}, "subtracts the first factors from the model's own weights"),
    ({"init_lora_weights": "pissa_niter_4"}, "path_initial_model_for_weight_conversion"),
    ({"init_lora_weights": "olora"}, "its init_lora_weights is .olora."),
    ({"init_lora_weights": "loftq"}, "its init_lora_weights is .loftq."),
    ({"init_lora_weights": "corda"}, "its init_lora_weights is .corda."),
    ({"use_qalora": True}, "QA-LoRA"),
    ({"alora_invocation_tokens": [5]}, "aLoRA"),
    ({"arrow_config": {"top_k": 2}}, "Arrow"),
    ({"megatron_config": {"a": 1}}, "Megatron"),
    ({"a_later_option": 3}, "has a_later_option: 3, which Strop does not know"),
    ({"r": 0}, "a value that PEFT would not write"),
    ({"rank_pattern": {"(": 2}}, "a value that PEFT would not write"),
]


@pytest.mark.parametrize(("values", "message"), REFUSED)
def test_an_adapter_with_another_product_is_refused_for_its_reason(
    tmp_path: Path, values: dict[str, Any], message: str
) -> None:
    pefts_adapter(tmp_path)
    changed_config(tmp_path, **values)
    with pytest.raises(ModelError, match=message) as raised:
        continued(tmp_path)
    assert "\n" not in str(raised.value) and str(raised.value).startswith("model.lora.adapter: ")


def test_each_option_of_pefts_class_is_honored_without_effect_or_refused() -> None:
    known = HONORED_OPTIONS | WITHOUT_EFFECT.keys() | REFUSED_OPTIONS.keys() | {"init_lora_weights"}
    assert known == {field.name for field in dataclasses.fields(PeftLoraConfig)}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"rank": 8}, "has rank 4 and alpha 8"),
        ({"targets": ["q_proj"]}, "other modules"),
        ({"exclude": ["v_proj"]}, r"other modules .* differ in model.layers.0.self_attn.v_proj"),
        ({"targets": r".*\.[qv]_proj", "exclude": r".*visual.*"}, None),
        ({"use_rslora": True}, "has use_rslora false, and model.lora.use_rslora is true"),
        ({"use_rslora": False, "rank_pattern": {}}, None),
        ({"alpha_pattern": {"q_proj": 3}}, "Remove model.lora.alpha_pattern"),
        ({"adapter": "/none"}, "there is no folder /none"),
    ],
)
def test_a_section_that_contradicts_its_adapter(
    tmp_path: Path, fields: dict[str, object], expected: str | None
) -> None:
    pefts_adapter(tmp_path)
    if expected is None:
        continued(tmp_path, **fields)
        return
    with pytest.raises(ModelError, match=expected):
        continued(tmp_path, **fields)


def test_weights_of_other_modules_or_of_another_model_are_refused(tmp_path: Path) -> None:
    pefts_adapter(tmp_path)
    file = tmp_path / "adapter_model.safetensors"
    weights = load_file(file)
    first = f"base_model.model.{LAYER}.lora_A.weight"
    for changed, message in (
        ({first: torch.zeros(4, 7)}, "is not one of this model: .*size mismatch"),
        ({"base_model.model.lm_head.weight": torch.zeros(61, 32)}, "holds 1 tensors besides its factors"),
        ({f"base_model.model.{LAYER}.lora_magnitude_vector": torch.zeros(32)}, "differ in "),
    ):
        save_file(weights | changed, file)
        with pytest.raises(ModelError, match=message) as raised:
            continued(tmp_path)
        assert "\n" not in str(raised.value)
    save_file({name: tensor for name, tensor in weights.items() if name != first}, file)
    with pytest.raises(ModelError, match=r"differ in .*q_proj\.lora_A"):
        continued(tmp_path)
    file.write_bytes(b"damaged")
    with pytest.raises(ModelError, match="no adapter in PEFT's format"):
        continued(tmp_path)


def test_a_model_with_another_scale_does_not_get_an_adapter(tmp_path: Path) -> None:
    pefts_adapter(tmp_path, use_rslora=True)
    section = LoraConfig(rank=4, alpha=8, targets=("q_proj", "v_proj"))
    with pytest.raises(ModelError, match="has use_rslora True, and the model's has False"):
        load_adapter(add_lora(make("qwen2"), section, torch.float32), section, str(tmp_path))


def test_a_new_adapter_with_patterns() -> None:
    model = adapted(use_rslora=True, rank_pattern={"q_proj": 2}, alpha_pattern={"o_proj": 1.5})
    updates = low_rank_updates(model)
    assert updates is not None
    found = {name: (len(u.a), u.scale) for name, u in updates.items() if ".layers.0.self_attn" in name}
    prefix = "model.layers.0.self_attn"
    assert found[f"{prefix}.q_proj.weight"] == (2, pytest.approx(8 / 2**0.5))
    assert found[f"{prefix}.o_proj.weight"] == (4, pytest.approx(1.5 / 2))
    assert found[f"{prefix}.k_proj.weight"] == (4, pytest.approx(4.0))
    with pytest.raises(ModelError, match=r"lora\.rank_pattern: 'w_proj' is the end of no adapted"):
        adapted(rank_pattern={"w_proj": 2})
    with pytest.raises(ValidationError, match=r"rank_pattern has '\(', which is no regular expression"):
        LoraConfig(rank_pattern={"(": 2})


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


@pytest.mark.parametrize("family", ["qwen2", "gemma", "phi"])
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
