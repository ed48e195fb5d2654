"""vLLM and SGLang themselves: experts, adapters, loads during sampling, and loads that fail. The contract has the
rest."""

from __future__ import annotations

import asyncio
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
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from strop.config.schema.inference_engine import SglangEngineConfig, VllmEngineConfig
from strop.config.schema.model import ModelConfig
from strop.config.schema.synchronizer import PauseMode
from strop.errors import ConfigError, ModelError, StropError
from strop.inference.interruptible_sampler import InterruptibleSampler
from strop.inference.pool import EnginePool, EngineSpec
from strop.inference.registry import load_engine, running_engine
from strop.models.tiny import make_model
from strop.protocols import InferenceEngine
from strop.types import Completion, SampleRequest, SamplingParams
from strop.workers.event_loop_thread import EventLoopThread
from strop.workers.start import LocalPlacement
from strop.workers.waiting import never_stop

from .helpers import (
    NEEDS_SGLANG,
    NEEDS_VLLM,
    full_logits,
    policy_logprobs,
    random_prompts,
    requests_for,
    sample,
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
LIBRARIES = [
    pytest.param("vllm", marks=NEEDS_VLLM),
    pytest.param("sglang", marks=NEEDS_SGLANG),
]


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


@pytest.fixture(scope="module", params=LIBRARIES)
def experts(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[EnginePool, PreTrainedModel]]:
    folder = tmp_path_factory.mktemp("experts") / "model"
    make_model(folder, ["two and two"], family="qwen3_moe", hidden_size=128, tied=False, **EXPERTS)
    model = sharpened(folder)
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
        versions = versions_of(completion)
        assert set(versions) <= {0, 1, 2} and versions[-1] == 2
    assert {each.version for each in sample(pool, requests[:1])} == {2}


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
    folder = make_model(tmp_path / "model", ["two and two"], hidden_size=128, intermediate_size=256)
    layers = ["q_proj", "v_proj", "down_proj"]
    config = LoraConfig(r=4, lora_alpha=8, target_modules=layers, init_lora_weights=False)
    adapted = get_peft_model(sharpened(folder), config).eval()
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
    pool = EnginePool(
        [EngineSpec("engine-0", Factory(folder, library))],
        LocalPlacement(),
        max_restarts=1,
        hang_timeout_seconds=8,
    )
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


@pytest.fixture(scope="module")
def sglang(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EnginePool, PreTrainedModel]]:
    folder = make_model(tmp_path_factory.mktemp("sglang") / "model", ["two and two"], hidden_size=128)
    model = sharpened(folder)
    with running_engine(pool_of(Factory(folder, "sglang"))) as pool:
        yield pool, model


@NEEDS_SGLANG
@pytest.mark.parametrize("filters", [{"top_p": 0.7}, {"top_k": 5}, {"min_p": 0.1}])
def test_sglang_gives_both_logprobs_under_a_filter(
    sglang: tuple[EnginePool, PreTrainedModel], filters: dict[str, float]
):
    pool, model = sglang
    sampling = SamplingParams(temperature=0.8, max_tokens=12, ignore_eos=True, **filters)  # type: ignore[arg-type]
    for request in requests_for(PROMPTS, sampling):
        (completion,) = sample(pool, [request])
        expected = policy_logprobs(model, request, completion)
        np.testing.assert_allclose(completion.policy_logprobs, expected, atol=1e-4)
        logits = full_logits(model, request.prompt_ids, completion.token_ids)
        kept = filtered_logprobs(logits / 0.8, **filters)  # type: ignore[arg-type]
        chosen = torch.from_numpy(completion.token_ids).long()[:, None]
        np.testing.assert_allclose(completion.sampler_logprobs, kept.gather(1, chosen)[:, 0], atol=1e-3)


def filtered_logprobs(
    logits: torch.Tensor, top_p: float = 1, top_k: int = 0, min_p: float = 0
) -> torch.Tensor:
    """[C, V] Log-probs after one filter, by its definition: sort, cut, and normalize again."""
    probabilities, order = logits.softmax(-1).sort(descending=True)
    kept = probabilities.cumsum(-1) - probabilities < top_p
    if top_k:
        kept[:, top_k:] = False
    kept &= probabilities >= min_p * probabilities[:, :1]
    filtered = torch.where(kept, probabilities, 0)
    filtered = filtered / filtered.sum(-1, keepdim=True)
    return torch.zeros_like(filtered).scatter(1, order, filtered).log()


@NEEDS_SGLANG
def test_strop_finds_the_stop_strings_that_sglang_would_find_too_early(
    sglang: tuple[EnginePool, PreTrainedModel], tmp_path: Path
):
    pool, model = sglang
    tokenizer = AutoTokenizer.from_pretrained(model.name_or_path)
    greedy = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    (whole,) = sample(pool, requests_for(PROMPTS[:1], greedy))
    text = tokenizer.decode(whole.token_ids[2:4])
    late = replace(greedy, stop=(text,), min_tokens=6)
    (cut,) = sample(pool, requests_for(PROMPTS[:1], late))
    assert cut.token_ids.tolist() == whole.token_ids[: len(cut.token_ids)].tolist()
    assert len(cut.token_ids) > 6 and cut.policy_logprobs is None
    assert (cut.finish_reason == "stop") == (
        len(cut.token_ids) < 24 or text in tokenizer.decode(cut.token_ids[-4:])
    )
    statistics = pool.take_statistics()
    assert statistics is not None and statistics.prompt_tokens > 0
