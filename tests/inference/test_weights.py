"""Weights of the native engine: sharing with the trainer, load, merged adapters, invalid weights."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model

from strop.config.schema.inference_engine import NativeEngineConfig
from strop.errors import ModelError
from strop.inference.native import NativeEngine
from strop.models.fused_storage import fuse_storage
from strop.models.shared_weights import named_weights
from strop.types import SamplingParams
from tests.inference.helpers import Tiny, policy_logprobs, random_prompts, requests_for, sample
from tests.training.test_local_engine import make_policy, make_run

REQUESTS = requests_for(random_prompts(6, 13), SamplingParams(max_tokens=16, ignore_eos=True), samples=3)


def own_copy(tiny, family: str, **sizes) -> Tiny:
    return Tiny(copy.deepcopy(tiny(family, **sizes).model), tiny(family, **sizes).tokenizer)


def perturb(model: torch.nn.Module) -> None:
    """Change every trainable parameter in place, as an optimizer does."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.05 * torch.randn_like(parameter))


def assert_agrees(engine: NativeEngine, model, atol: float = 1e-4) -> None:
    for request, completion in zip(REQUESTS, sample(engine, REQUESTS), strict=True):
        expected = policy_logprobs(model, request, completion)
        np.testing.assert_allclose(completion.policy_logprobs, expected, atol=atol, rtol=0)


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama", "mistral"])
@pytest.mark.parametrize("tied", [True, False])
def test_fused_storage_is_shared_and_needs_no_load(tiny, family, tied):
    trainer = own_copy(tiny, family, tied=tied)
    fuse_storage(trainer.model)
    engine = trainer.engine()
    assert engine.describe().endswith("100 % of the weights used in place")
    assert_agrees(engine, trainer.model)
    perturb(trainer.model)
    assert_agrees(engine, trainer.model)
    engine.load(named_weights(trainer.model), version=1)
    assert engine.describe().endswith("100 % of the weights used in place")
    assert_agrees(engine, trainer.model)


@pytest.mark.parametrize("family", ["gemma", "phi"])
def test_the_hugging_face_runner_shares_weights(tiny, family):
    trainer = own_copy(tiny, family)
    engine = trainer.engine()
    assert "100 % of the weights used in place" in engine.describe()
    perturb(trainer.model)
    assert_agrees(engine, trainer.model)


@pytest.mark.parametrize("family", ["qwen2", "gemma"])
@pytest.mark.parametrize("tied", [True, False])
def test_load_updates_a_bfloat16_copy(tiny, family, tied):
    trainer = own_copy(tiny, family, tied=tied)
    engine = trainer.engine(dtype=torch.bfloat16)
    assert " 0 % of the weights used in place" in engine.describe()
    perturb(trainer.model)
    engine.load(named_weights(trainer.model), version=1)
    half = copy.deepcopy(trainer.model).bfloat16()
    fresh = Tiny(half, trainer.tokenizer).engine()
    for one, other in zip(sample(engine, REQUESTS), sample(fresh, REQUESTS), strict=True):
        np.testing.assert_array_equal(one.token_ids, other.token_ids)
        np.testing.assert_array_equal(one.policy_logprobs, other.policy_logprobs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_load_updates_the_copy_of_unfused_storage(tiny, dtype):
    trainer = own_copy(tiny, "llama")
    trainer.model.to(dtype)
    engine = trainer.engine()
    assert "100 %" not in engine.describe()
    perturb(trainer.model)
    engine.load(named_weights(trainer.model), version=1)
    fuse_storage(trainer.model)
    for one, other in zip(sample(engine, REQUESTS), sample(trainer.engine(), REQUESTS), strict=True):
        np.testing.assert_array_equal(one.policy_logprobs, other.policy_logprobs)


def merged(model) -> list[tuple[str, torch.Tensor]]:
    """A copy of the base weights with the adapter merged."""
    whole = copy.deepcopy(model).merge_and_unload()
    return list(named_weights(whole))


@pytest.mark.parametrize("family", ["qwen2", "gemma"])
@pytest.mark.parametrize("fused", [True, False])
def test_load_of_merged_weights_does_not_change_the_base(tiny, family, fused):
    trainer = own_copy(tiny, family)
    if fused:
        fuse_storage(trainer.model)
    torch.manual_seed(0)
    lora = get_peft_model(
        trainer.model, LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "down_proj"])
    )
    base = {name: tensor.clone() for name, tensor in named_weights(lora)}
    engine = NativeEngine.from_model(lora, NativeEngineConfig(), trainer.tokenizer)
    for version in (1, 2):
        perturb(lora)
        engine.load(merged(lora), version)
        assert_agrees(engine, lora.eval())
    for name, tensor in named_weights(lora):
        torch.testing.assert_close(tensor, base[name], rtol=0, atol=0)


def test_new_requests_do_not_use_prompts_of_old_weights(tiny):
    import asyncio

    trainer = own_copy(tiny, "qwen2")
    engine = trainer.engine()

    async def main():
        old = asyncio.create_task(engine.sample(REQUESTS))
        for _ in range(4):
            await asyncio.sleep(0)
        perturb(trainer.model)
        engine.load(named_weights(trainer.model), version=5)
        return await engine.sample(REQUESTS), await old

    new, old = asyncio.run(main())
    assert {completion.version for completion in new} == {5}
    assert {completion.version for completion in old} == {0}
    for request, completion in zip(REQUESTS, new, strict=True):
        expected = policy_logprobs(trainer.model, request, completion)
        np.testing.assert_allclose(completion.policy_logprobs, expected, atol=1e-4)


@pytest.mark.parametrize("family", ["qwen2", "gemma"])
def test_weights_that_do_not_fit_are_rejected(tiny, family):
    model = tiny(family)
    weights = dict(named_weights(model.model))

    def make(changed: dict[str, torch.Tensor]) -> NativeEngine:
        return NativeEngine(
            model.model.config,
            changed.items(),
            NativeEngineConfig(),
            model.tokenizer,
            device="cpu",
            dtype=torch.float32,
        )

    name = "model.layers.1.mlp.up_proj.weight"
    with pytest.raises(ModelError, match=f"have no '{name}'"):
        make({key: value for key, value in weights.items() if key != name})
    with pytest.raises(ModelError, match="has no weight 'surprise'"):
        make({**weights, "surprise": torch.zeros(3)})
    with pytest.raises(ModelError, match=f"'{name}' has shape"):
        make(weights).load([(name, torch.zeros(3, 3))], version=1)


def test_load_of_one_name_updates_tied_weights(tiny):
    """`named_weights` gives both names of a tied weight, a trainer only one."""
    trainer = own_copy(tiny, "gemma")
    engine = trainer.engine()
    other = copy.deepcopy(trainer.model)
    perturb(other)
    engine.load(other.named_parameters(), version=1)
    assert_agrees(engine, other)


def test_an_adapter_is_applied_without_a_merged_copy(tiny, tmp_path):
    """The engine reads the trainer's adapter in place; merged weights that are loaded replace it."""
    trainer = own_copy(tiny, "qwen2")
    trainer.model.save_pretrained(tmp_path / "model")
    run = make_run(tmp_path / "model", {"lora": {"rank": 4, "alpha": 8}})
    policy = make_policy(run)
    section = NativeEngineConfig(merge_lora=False)
    engine = NativeEngine.from_weights(policy.shared_weights(), section, trainer.tokenizer)
    assert engine.capabilities.adapter_in_place
    assert "100 % of the weights used in place" in engine.describe()
    for version in (1, 2):
        perturb(policy.model)
        engine.load((), version)
        trainer.model.load_state_dict(dict(policy.iter_weights()), strict=False)
        assert_agrees(engine, trainer.model)
    merged_copy = [(name, weight.clone()) for name, weight in policy.iter_weights()]
    perturb(policy.model)
    engine.load(merged_copy, 3)
    assert_agrees(engine, trainer.model)
