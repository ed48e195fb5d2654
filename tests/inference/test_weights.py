"""Weights of the native engine: sharing with the trainer, load, merged adapters, names of checkpoints, and faults."""

from __future__ import annotations

import asyncio
import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from strop.config.schema.rollout import NativeEngineConfig
from strop.errors import ModelError
from strop.inference.native import NativeEngine
from strop.inference.weight_files import checkpoint_weights, read_weights
from strop.models.shared_weights import fuse_storage, named_weights
from strop.models.tiny import make_model
from strop.types import SamplingParams
from tests.inference.helpers import (
    Tiny,
    assert_same,
    assert_sampled_by,
    perturb,
    policy_logprobs,
    random_prompts,
    requests_for,
    sample,
)
from tests.training.test_local_engine import make_policy, make_run

REQUESTS = requests_for(random_prompts(6, 13), SamplingParams(max_tokens=16, ignore_eos=True), samples=3)


def own_copy(tiny, family: str, **sizes) -> Tiny:
    return Tiny(copy.deepcopy(tiny(family, **sizes).model), tiny(family, **sizes).tokenizer)


def assert_agrees(engine: NativeEngine, model) -> None:
    assert_sampled_by(model, REQUESTS, sample(engine, REQUESTS))


@pytest.mark.parametrize(
    ("family", "tied"),
    [("qwen2", True), ("qwen2", False), ("qwen3", True), ("llama", False), ("mistral", True)],
)
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


@pytest.mark.parametrize(("family", "tied"), [("qwen2", True), ("qwen2", False), ("gemma", True)])
def test_load_updates_a_bfloat16_copy(tiny, family, tied):
    trainer = own_copy(tiny, family, tied=tied)
    engine = trainer.engine(dtype=torch.bfloat16)
    assert " 0 % of the weights used in place" in engine.describe()
    perturb(trainer.model)
    engine.load(named_weights(trainer.model), version=1)
    half = copy.deepcopy(trainer.model).bfloat16()
    found = sample(engine, REQUESTS)
    assert_same(found, sample(Tiny(half, trainer.tokenizer).engine(), REQUESTS))
    expected = map(policy_logprobs, [half] * len(REQUESTS), REQUESTS, found)
    gaps = [each.policy_logprobs - own for each, own in zip(found, expected, strict=True)]
    assert np.abs(np.concatenate(gaps)).mean() < 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_load_updates_the_copy_of_unfused_storage(tiny, dtype):
    trainer = own_copy(tiny, "llama")
    trainer.model.to(dtype)
    engine = trainer.engine()
    assert "100 %" not in engine.describe()
    perturb(trainer.model)
    engine.load(named_weights(trainer.model), version=1)
    fuse_storage(trainer.model)
    assert_same(sample(engine, REQUESTS), sample(trainer.engine(), REQUESTS))


@pytest.mark.parametrize(("family", "fused"), [("qwen2", True), ("qwen2", False), ("gemma", False)])
def test_load_of_merged_weights_does_not_change_the_base(tiny, family, fused):
    trainer = own_copy(tiny, family)
    if fused:
        fuse_storage(trainer.model)
    torch.manual_seed(0)
    config = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "down_proj"])
    lora = get_peft_model(trainer.model, config)
    base = {name: tensor.clone() for name, tensor in named_weights(lora)}
    engine = NativeEngine.from_model(lora, NativeEngineConfig(), trainer.tokenizer)
    for version in (1, 2):
        perturb(lora)
        engine.load(list(named_weights(copy.deepcopy(lora).merge_and_unload())), version)
        assert_agrees(engine, lora.eval())
    for name, tensor in named_weights(lora):
        torch.testing.assert_close(tensor, base[name], rtol=0, atol=0)


def test_new_requests_do_not_use_prompts_of_old_weights(tiny):
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
    assert_sampled_by(trainer.model, REQUESTS, new)


@pytest.mark.parametrize("family", ["qwen2", "gemma"])
def test_weights_that_do_not_fit_are_rejected(tiny, family):
    model = tiny(family)
    weights = dict(named_weights(model.model))

    def make(changed: dict[str, torch.Tensor]) -> NativeEngine:
        config, section = model.model.config, NativeEngineConfig()
        options = {"device": "cpu", "dtype": torch.float32}
        return NativeEngine(config, changed.items(), section, model.tokenizer, **options)

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
    policy = make_policy(make_run(tmp_path / "model", {"lora": {"rank": 4, "alpha": 8}}))
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
