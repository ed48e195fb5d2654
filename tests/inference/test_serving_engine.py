"""vLLM and SGLang themselves: experts, adapters, loads during sampling, and loads that fail. The contract has the
rest."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoTokenizer, PreTrainedModel

from strop.config.schema.buffer import PauseMode
from strop.config.schema.model import ModelConfig
from strop.config.schema.rollout import SglangEngineConfig, VllmEngineConfig
from strop.errors import ConfigError, ModelError, StropError
from strop.inference.interruptible_sampler import InterruptibleSampler
from strop.inference.pool import EnginePool
from strop.inference.registry import load_engine, running_engine
from strop.models.tiny import make_model
from strop.protocols import InferenceEngine
from strop.types import Completion, SamplingParams
from strop.workers.threads import EventLoopThread
from strop.workers.waiting import never_stop
from tests.inference.helpers import (
    NEEDS_SGLANG,
    NEEDS_VLLM,
    assert_sampled_by,
    policy_logprobs,
    pool_of,
    random_prompts,
    requests_for,
    sample,
    sharp_model,
)

pytestmark = [pytest.mark.engines, pytest.mark.timeout(600)]
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "norm_topk_prob": True}
PROMPTS = random_prompts(4, 9, 40)
LONG = 450
"""Number of tokens that take longer than a load begins, also on a busy machine."""
SMALL: dict[str, dict[str, Any]] = {
    "vllm": {"max_model_len": 512, "enforce_eager": True, "engine_kwargs": {"kv_cache_memory_bytes": 2**26}},
    "sglang": {"context_length": 512, "max_total_tokens": 4096},
}
"""Options of each library for small models on the CPU."""
LIBRARIES = [pytest.param("vllm", marks=NEEDS_VLLM), pytest.param("sglang", marks=NEEDS_SGLANG)]


@dataclass(frozen=True)
class Factory:
    folder: Path
    library: str
    model: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    def __call__(self) -> InferenceEngine:
        schema = {"vllm": VllmEngineConfig, "sglang": SglangEngineConfig}[self.library]
        section = schema(**SMALL[self.library] | self.options)
        model = ModelConfig(path=str(self.folder), **self.model)
        return load_engine(section, model, AutoTokenizer.from_pretrained(self.folder), torch.device("cpu"))


def perturbed(model: PreTrainedModel) -> PreTrainedModel:
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter) * parameter.std(correction=0))
    return model


@pytest.fixture(scope="module", params=LIBRARIES)
def experts(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[EnginePool, PreTrainedModel]]:
    folder = tmp_path_factory.mktemp("experts") / "model"
    model = sharp_model(folder, family="qwen3_moe", hidden_size=128, tied=False, **EXPERTS)
    with running_engine(pool_of(Factory(folder, request.param))) as pool:
        yield pool, model


def test_experts_have_the_new_weights_after_a_load(experts: tuple[EnginePool, PreTrainedModel]):
    pool, model = experts
    requests = requests_for(PROMPTS, SamplingParams(max_tokens=16, ignore_eos=True), samples=2)
    assert_sampled_by(model, requests, sample(pool, requests))
    pool.load(perturbed(model).named_parameters(), 1)
    assert_sampled_by(model, requests, sample(pool, requests))


def versions_of(completion: Completion) -> list[int]:
    """The version of each token; a load may come before the first."""
    if completion.token_versions is None:
        return [completion.version] * len(completion.token_ids)
    versions: list[int] = completion.token_versions.tolist()
    return versions


@pytest.mark.parametrize(
    ("pause_mode", "versions"),
    [("keep", {2, 4}), ("abort", {2, 4}), ("restart", {4}), ("finish", {2})],
)
def test_each_token_has_the_version_of_the_weights_that_sampled_it(
    experts: tuple[EnginePool, PreTrainedModel], pause_mode: PauseMode, versions: set[int]
):
    pool, model = experts
    requests = requests_for(PROMPTS, SamplingParams(max_tokens=LONG, ignore_eos=True))
    loop = EventLoopThread("rollouts")
    tokenizer = AutoTokenizer.from_pretrained(model.name_or_path)
    sampler = InterruptibleSampler(pool, loop, tokenizer, pause_mode, timeout_seconds=60, check=never_stop)
    before = copy.deepcopy(model)
    perturbed(model)
    try:
        pool.load(before.named_parameters(), 2)
        sample(pool, requests)  # the first passes of a library take longer than the wait below
        call = loop.submit(sampler.sample(requests))
        time.sleep(0.3)
        assert not call.done()
        sampler.load(model.named_parameters(), 4)
        completions = call.result(120)
        later = loop.submit(sampler.sample(requests[:1])).result(120)
    finally:
        loop.close()
    for request, completion in zip(requests, completions, strict=True):
        assert len(completion.token_ids) == LONG
        found = versions_of(completion)
        assert set(found) == versions and found == sorted(found)
        old, new = (policy_logprobs(each, request, completion) for each in (before, model))
        expected = np.where(np.array(found) == 2, old, new)
        np.testing.assert_allclose(completion.sampler_logprobs, expected, atol=1e-4, rtol=0)
    assert versions_of(later[0]) == [4] * LONG


def test_after_a_failed_load_the_engine_samples_no_more(
    experts: tuple[EnginePool, PreTrainedModel], tmp_path: Path
):
    pool, _ = experts
    with pytest.raises(ModelError, match=r"(vLLM|SGLang) cannot load version 3 of the weights"):
        pool.load([("model.embed_tokens.weight", torch.zeros(3, 5))], 3)
    with pytest.raises(StropError, match="version 3"):
        sample(pool, requests_for(PROMPTS, SamplingParams(max_tokens=4)))


@pytest.mark.parametrize("library", LIBRARIES)
def test_an_adapter_is_loaded_in_place_of_the_last_one(tmp_path: Path, library: str):
    folder = tmp_path / "model"
    model = sharp_model(folder, hidden_size=128, intermediate_size=256)
    layers = ["q_proj", "v_proj", "down_proj"]
    config = LoraConfig(r=4, lora_alpha=8, target_modules=layers, init_lora_weights=False)
    adapted = get_peft_model(model, config).eval()
    requests = requests_for(PROMPTS, SamplingParams(max_tokens=16, ignore_eos=True), samples=2)
    lora = {"rank": 4, "targets": layers}
    with running_engine(pool_of(Factory(folder, library, {"lora": lora}))) as pool:
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
        assert statistics is not None and statistics.prompt_tokens > 0
        if library == "vllm":  # SGLang reports its load after a completion only
            assert statistics.max_running > 1
        with pytest.raises(ModelError, match=r"cannot load version 3 of the weights"):
            pool.load_adapter(tmp_path, 3)


@pytest.mark.parametrize("library", LIBRARIES)
def test_an_engine_with_a_stopped_process_is_restarted(
    tmp_path: Path, library: str, caplog: pytest.LogCaptureFixture
):
    folder = make_model(tmp_path / "model", ["two and two"], hidden_size=128)
    requests = requests_for(PROMPTS, SamplingParams(max_tokens=16, ignore_eos=True))
    pool = pool_of(Factory(folder, library), max_restarts=1, hang_timeout_seconds=8)
    with running_engine(pool):
        sample(pool, requests)
        (scheduler,) = (
            child
            for child in psutil.Process().children(recursive=True)
            if any(name in child.cmdline()[0] for name in ("VLLM::EngineCore", "sglang::scheduler"))
        )
        scheduler.suspend()
        completions = sample(pool, requests)
        assert not scheduler.is_running()
    assert [len(each.token_ids) for each in completions] == [16] * len(requests)
    hang, restart = (record.getMessage() for record in caplog.records if record.name == "strop.inference")
    assert hang.startswith(f"engine-0 has made no progress for 8 s with {len(requests)} requests pending")
    assert "restart 1 of 1" in restart


@pytest.mark.parametrize("library", LIBRARIES)
def test_an_unknown_argument_is_refused_before_the_model_is_loaded(tmp_path: Path, library: str):
    folder = make_model(tmp_path / "model", ["two and two"], hidden_size=128)
    pool = pool_of(Factory(folder, library, options={"engine_kwargs": {"max_num_sequences": 3}}))
    with pytest.raises(ConfigError, match=r"engine_kwargs.max_num_sequences is not an argument"):
        pool.start()


@NEEDS_SGLANG
def test_strop_finds_the_stop_strings_that_sglang_would_find_too_early(tmp_path: Path):
    sharp_model(tmp_path / "model", hidden_size=128)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    greedy = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    with running_engine(pool_of(Factory(tmp_path / "model", "sglang"))) as pool:
        (whole,) = sample(pool, requests_for(PROMPTS[:1], greedy))
        text = tokenizer.decode(whole.token_ids[2:4])
        late = replace(greedy, stop=(text,), min_tokens=6)
        (cut,) = sample(pool, requests_for(PROMPTS[:1], late))
        statistics = pool.take_statistics()
    assert statistics is not None and statistics.prompt_tokens > 0
    assert cut.token_ids.tolist() == whole.token_ids[: len(cut.token_ids)].tolist()
    assert len(cut.token_ids) > 6 and cut.policy_logprobs is None
    found = len(cut.token_ids) < 24 or text in tokenizer.decode(cut.token_ids[-4:])
    assert cut.finish_reason == ("stop" if found else "length")
