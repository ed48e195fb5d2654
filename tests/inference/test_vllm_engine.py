"""vLLM itself: experts, adapters, loads during sampling, and loads that fail. The contract has the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from strop.config.schema.inference_engine import VllmEngineConfig
from strop.config.schema.model import ModelConfig
from strop.errors import ConfigError, ModelError, StropError
from strop.inference.pool import EnginePool, EngineSpec
from strop.inference.registry import load_engine, running_engine
from strop.models.tiny import make_model
from strop.protocols import InferenceEngine
from strop.types import Completion, SampleRequest, SamplingParams
from strop.workers.start import LocalPlacement

from .helpers import NEEDS_VLLM, policy_logprobs, random_prompts, requests_for, sample

pytestmark = [pytest.mark.engines, NEEDS_VLLM, pytest.mark.timeout(600)]
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "norm_topk_prob": True}
PROMPTS = random_prompts(4, 9, 40)
KV_CACHE = {"kv_cache_memory_bytes": 2**26}


@dataclass(frozen=True)
class Factory:
    folder: Path
    model: dict[str, Any] = field(default_factory=dict)
    engine_kwargs: dict[str, Any] = field(default_factory=lambda: KV_CACHE)

    def __call__(self) -> InferenceEngine:
        section = VllmEngineConfig(max_model_len=512, enforce_eager=True, engine_kwargs=self.engine_kwargs)
        model = ModelConfig(path=str(self.folder), **self.model)
        return load_engine(section, model, AutoTokenizer.from_pretrained(self.folder), torch.device("cpu"))


def pool_of(factory: Factory) -> EnginePool:
    return EnginePool([EngineSpec("engine-0", factory)], LocalPlacement(), max_restarts=0)


def sharpened(folder: Path) -> PreTrainedModel:
    """The folder's model, after a change that makes its tokens distinguishable."""
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(5)
    model.save_pretrained(folder)
    return model


def perturbed(model: PreTrainedModel) -> PreTrainedModel:
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter) * parameter.std(correction=0))
    return model


def assert_sampled_by(model: Any, requests: list[SampleRequest], completions: list[Completion]) -> None:
    for request, completion in zip(requests, completions, strict=True):
        expected = policy_logprobs(model, request, completion)
        np.testing.assert_allclose(completion.sampler_logprobs, expected, atol=1e-4, rtol=0)


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EnginePool, PreTrainedModel]]:
    folder = tmp_path_factory.mktemp("experts") / "model"
    make_model(folder, ["two and two"], family="qwen3_moe", hidden_size=128, tied=False, **EXPERTS)
    model = sharpened(folder)
    with running_engine(pool_of(Factory(folder))) as pool:
        yield pool, model


def test_experts_have_the_new_weights_after_a_load(experts: tuple[EnginePool, PreTrainedModel]):
    pool, model = experts
    requests = requests_for(PROMPTS, SamplingParams(max_tokens=16, ignore_eos=True), samples=2)
    assert_sampled_by(model, requests, sample(pool, requests))
    pool.load(perturbed(model).named_parameters(), 1)
    assert_sampled_by(model, requests, sample(pool, requests))


def test_running_completions_continue_with_the_new_weights(experts: tuple[EnginePool, PreTrainedModel]):
    pool, model = experts
    requests = requests_for(PROMPTS, SamplingParams(max_tokens=300, ignore_eos=True))

    async def load_meanwhile() -> list[Completion]:
        call = asyncio.create_task(pool.sample(requests))
        await asyncio.sleep(0.3)
        assert not call.done()
        await asyncio.to_thread(pool.load, perturbed(model).named_parameters(), 2)
        return await call

    completions = asyncio.run(load_meanwhile())
    for request, completion in zip(requests, completions, strict=True):
        assert len(completion.token_ids) == 300
        expected = policy_logprobs(model, request, completion)
        np.testing.assert_allclose(completion.sampler_logprobs[-100:], expected[-100:], atol=1e-4)
    assert {each.version for each in sample(pool, requests[:1])} == {2}


def test_after_a_failed_load_the_engine_samples_no_more(
    experts: tuple[EnginePool, PreTrainedModel], tmp_path: Path
):
    pool, _ = experts
    with pytest.raises(ModelError, match=r"vLLM cannot load version 3 of the weights"):
        pool.load([("model.embed_tokens.weight", torch.zeros(3, 5))], 3)
    with pytest.raises(StropError, match="version 3"):
        sample(pool, requests_for(PROMPTS, SamplingParams(max_tokens=4)))


def test_an_adapter_is_loaded_in_place_of_the_last_one(tmp_path: Path):
    folder = make_model(tmp_path / "model", ["two and two"], hidden_size=128)
    layers = ["q_proj", "v_proj", "down_proj"]
    config = LoraConfig(r=4, lora_alpha=8, target_modules=layers, init_lora_weights=False)
    adapted = get_peft_model(sharpened(folder), config).eval()
    requests = requests_for(PROMPTS, SamplingParams(max_tokens=16, ignore_eos=True), samples=2)
    with running_engine(pool_of(Factory(folder, {"lora": {"rank": 4}}))) as pool:
        assert pool.capabilities.adapters
        for version in (1, 2):
            torch.manual_seed(version)
            with torch.no_grad():
                for name, parameter in adapted.named_parameters():
                    if "lora_" in name:
                        parameter.normal_(std=0.1)
            at = tmp_path / f"adapter-{version}"
            adapted.save_pretrained(at)
            pool.load_adapter(at, version)
            completions = sample(pool, requests)
            assert_sampled_by(adapted, requests, completions)
            assert {each.version for each in completions} == {version}
        statistics = pool.take_statistics()
        assert statistics is not None and statistics.max_running > 1
        assert statistics.prompt_tokens > 0


def test_an_unknown_argument_is_refused_before_the_model_is_loaded(tmp_path: Path):
    folder = make_model(tmp_path / "model", ["two and two"], hidden_size=128)
    pool = pool_of(Factory(folder, engine_kwargs={"max_num_sequences": 3}))
    with pytest.raises(
        ConfigError, match=r"engine_kwargs.max_num_sequences is not an argument.*did you mean"
    ):
        pool.start()
