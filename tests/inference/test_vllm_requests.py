"""Conversion of requests, completions, options and statistics to and from vLLM, without vLLM."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen2Config

from strop.config.schema.data import ImagesConfig
from strop.config.schema.model import ModelConfig
from strop.config.schema.rollout import VllmEngineConfig
from strop.errors import ConfigError, InferenceError, ModelError
from strop.inference.serving.backend import request_images
from strop.inference.vllm.library import (
    StatisticsRecorder,
    VllmLibrary,
    add_engine_kwargs,
    check_temperature,
    engine_arguments,
    size_cache_on_cpu,
    to_completion,
    to_vllm,
    vision_arguments,
)
from strop.inference.vllm.worker_extension import CpuGenerator
from strop.models.loading import load_config
from strop.models.vision.tiny import make_vision_model
from strop.types import EngineStatistics, SampleRequest, SamplingParams

LIBRARY = VllmLibrary(
    version="0",
    engine_args=None,
    engine=None,
    sampling_params=SimpleNamespace,
    tokens_prompt=None,
    final_output="final",
    lora_request=None,
    dead_error=RuntimeError,
)
MODEL = ModelConfig(path="/models/m", compute_dtype="bfloat16")


@dataclass
class KnownArguments:
    """A few names of vLLM's `AsyncEngineArgs`."""

    model: str = ""
    seed: int = 0
    tensor_parallel_size: int = 1
    block_size: int | None = None
    kv_cache_memory_bytes: int | None = None


def request(**sampling: Any) -> SampleRequest:
    return SampleRequest("r", np.array([3, 4], dtype=np.int32), SamplingParams(**sampling), seed=2**63 + 5)


def output(reason: str = "stop", spans=((4, 0, 2),)) -> Any:
    found = SimpleNamespace(
        token_ids=(7, 1),
        logprobs=SimpleNamespace(logprobs=[-0.5, -0.25]),
        finish_reason=reason,
        weight_versions=[SimpleNamespace(version=str(v), start=s, end=e) for v, s, e in spans],
    )
    return SimpleNamespace(outputs=[found])


def arguments(**section: Any) -> dict[str, Any]:
    config = VllmEngineConfig(**section)
    return add_engine_kwargs(engine_arguments(config, MODEL), config, KnownArguments)


def test_options_have_vllms_names_and_are_left_out_without_a_value():
    passed = arguments(tensor_parallel=2, max_num_seqs=16, engine_kwargs={"block_size": 32})
    assert passed["tensor_parallel_size"] == 2 and passed["max_num_seqs"] == 16 and passed["block_size"] == 32
    assert passed["dtype"] == "bfloat16" and passed["distributed_executor_backend"] == "mp"
    assert passed["logprobs_mode"] == "processed_logprobs"
    assert not passed.keys() & {"gpu_memory_utilization", "seed", "quantization"}


def test_the_cpu_build_computes_each_prompt_in_one_pass(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert arguments(enable_chunked_prefill=True)["enable_chunked_prefill"] is False
    assert arguments(max_num_batched_tokens=512, max_model_len=512)["max_num_batched_tokens"] == 512
    less = r"max_num_batched_tokens is 511, less than the longest sequence \(512"
    with pytest.raises(ConfigError, match=less):
        arguments(max_num_batched_tokens=511, max_model_len=512)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert "enable_chunked_prefill" not in arguments(max_num_batched_tokens=64, max_model_len=512)


OF_BLOCK = 128 * 2 * 2 * 2 * 32 * 2
"""Bytes of a block: 128 tokens, keys and values, layers, heads, values, bytes of bfloat16."""


def cache_size(devices: int = 1, **section: Any) -> Any:
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 128}
    passed = arguments(**section)
    size_cache_on_cpu(passed, Qwen2Config(**sizes, head_dim=32), devices)
    assert "gpu_memory_utilization" not in passed
    return passed.get("kv_cache_memory_bytes")


@pytest.mark.parametrize(
    ("options", "blocks"),
    [
        ({"gpu_memory_utilization": 0.9, "max_model_len": 100, "max_num_seqs": 3}, 4),
        ({"max_model_len": 129, "max_num_seqs": 3}, 7),
        ({"max_model_len": 100, "max_num_seqs": 3, "tensor_parallel": 2, "devices": 2}, 2),
        ({"max_model_len": 100}, 257),
        ({"max_model_len": 65536, "max_num_seqs": 64}, 2 * 512 + 1),
        ({"max_model_len": 200_000}, 1563 + 1),  # one sequence in any case
        ({"max_model_len": 128, "engine_kwargs": {"kv_cache_memory_bytes": OF_BLOCK}}, 1),
    ],
)
def test_the_cpu_build_reserves_a_cache_for_the_runs_sequences(
    options: dict[str, Any], blocks: int, monkeypatch: pytest.MonkeyPatch
):
    """One block is vLLM's own."""
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    assert cache_size(**options) == blocks * OF_BLOCK


def test_a_cache_of_the_cpu_build_that_is_given(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    given = {"kv_cache_memory_bytes": OF_BLOCK}
    small = rf"one sequence of 129 tokens .* needs at least {OF_BLOCK // 128 * 129} "
    with pytest.raises(ConfigError, match=small):
        cache_size(max_model_len=129, engine_kwargs=given)
    assert cache_size(max_model_len=250, engine_kwargs=given, tensor_parallel=2, devices=2) == OF_BLOCK
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    assert cache_size() is None


def test_positions_of_qwen3_vl_that_serving_libraries_would_compute_otherwise_are_refused(tmp_path: Path):
    folder = make_vision_model(tmp_path / "m", ["a b"], family="qwen3_vl")
    model = ModelConfig(path=str(folder))
    assert request_images(load_config(model), model, ImagesConfig()) is not None
    config = json.loads((folder / "config.json").read_text())
    assert config["text_config"]["rope_parameters"]["mrope_interleaved"]
    config["text_config"]["rope_parameters"]["mrope_interleaved"] = False
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"does not say `mrope_interleaved: true`.*rollout.engine: native"):
        request_images(load_config(model), model, ImagesConfig())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("kv_cache_memory_byte", r"did you mean 'kv_cache_memory_bytes'\?"),
        ("seed", "write rollout.engine.seed"),
        ("model", "is set by Strop"),
        ("mm_device_do_normalize", "is set by Strop"),
    ],
)
def test_engine_kwargs_are_checked_against_vllms_arguments(name: str, expected: str):
    with pytest.raises(ConfigError, match=f"rollout.engine.engine_kwargs.{name} .*{expected}"):
        arguments(engine_kwargs={name: 1})


def test_end_tokens_are_stop_tokens_and_tokens_beyond_the_vocabulary_are_left_out():
    params = to_vllm(request(stop_token_ids=(9, 999), min_tokens=2), frozenset({1}), 100, LIBRARY)
    assert params.stop_token_ids == [1, 9] and params.ignore_eos and params.min_tokens == 2
    assert params.seed == 5 and not params.detokenize
    without = to_vllm(request(ignore_eos=True, stop=("x",)), frozenset({1}), 100, LIBRARY)
    assert without.stop_token_ids == [] and without.detokenize and without.include_stop_str_in_output


def test_generators_on_the_cpu_draw_as_torchs_and_accept_a_correction_of_their_position():
    own, torchs = CpuGenerator(device="cpu").manual_seed(3), torch.Generator(device="cpu").manual_seed(3)
    own.set_offset(own.get_offset() - 4)
    assert torch.equal(*(torch.empty(8).exponential_(generator=each) for each in (own, torchs)))
    with pytest.raises(RuntimeError, match="offset"):
        torchs.set_offset(torchs.get_offset() - 4)


def test_a_greedy_request_has_no_filters_and_certain_tokens():
    greedy = request(temperature=0, top_p=0.5, top_k=3, min_p=0.1)
    params = to_vllm(greedy, frozenset(), 100, LIBRARY)
    assert (params.top_p, params.top_k, params.min_p, params.seed) == (1.0, 0, 0.0, None)
    completion = to_completion(greedy, output())
    assert completion.sampler_logprobs.tolist() == [0, 0]
    assert completion.policy_logprobs is not None and completion.policy_logprobs.tolist() == [-0.5, -0.25]


@pytest.mark.parametrize(
    ("sampling", "known"),
    [
        ({"temperature": 0.7}, True),
        ({"top_p": 0.9}, False),
        ({"top_k": 5}, False),
        ({"min_p": 0.1}, False),
        ({"repetition_penalty": 1.1}, False),
        ({"min_tokens": 1}, False),
        ({"temperature": 0, "min_tokens": 1}, False),
    ],
)
def test_the_policys_logprobs_are_known_where_nothing_changes_its_distribution(
    sampling: dict[str, Any], known: bool
):
    completion = to_completion(request(**sampling), output("length"))
    assert (completion.policy_logprobs is not None) == known
    assert completion.version == 4 and completion.finish_reason == "length"


def test_what_vllm_would_change_or_ended_early_is_an_error():
    with pytest.raises(InferenceError, match=r"request 'r': vLLM ended it early \(error\)"):
        to_completion(request(), output("error"))
    check_temperature(request(temperature=0.01))
    with pytest.raises(InferenceError, match=r"temperature is 0.005; vLLM samples at 0.01 or above"):
        check_temperature(request(temperature=0.005))


def test_tokens_of_several_versions_have_a_version_each():
    completion = to_completion(request(), output(spans=((4, 0, 1), (5, 1, 2))))
    assert completion.version == 4 and completion.token_versions is not None
    assert completion.token_versions.tolist() == [4, 5]
    assert to_completion(request(), output()).token_versions is None


def test_a_model_that_reads_images_gets_the_trainers_limits_and_no_videos():
    size = {"shortest_edge": 64, "longest_edge": 1024}
    found = vision_arguments(VllmEngineConfig(limit_mm_per_prompt={"image": 2}), size, 5)
    assert found["mm_processor_kwargs"] == {"size": size}
    assert found["limit_mm_per_prompt"] == {"image": 2, "video": 0}
    assert vision_arguments(VllmEngineConfig(), size, 5)["limit_mm_per_prompt"] == {"image": 5, "video": 0}


def test_the_schedulers_steps_are_added_up_until_they_are_taken():
    clock = iter([0.0, 1.0, 3.0, 3.5])
    recorder = StatisticsRecorder(lambda: next(clock))
    for running, waiting, usage, preempted in ((4, 9, 0.2, 0), (8, 1, 0.7, 2)):
        scheduler = SimpleNamespace(
            num_running_reqs=running,
            num_waiting_reqs=waiting,
            kv_cache_usage=usage,
            prefix_cache_stats=SimpleNamespace(queries=32, hits=16),
        )
        counts = {"num_prompt_tokens": 10, "num_generation_tokens": 4}
        iteration = SimpleNamespace(num_preempted_reqs=preempted, **counts)
        recorder.record(scheduler, iteration, mm_cache_stats=None)
    recorder.record(None, None)
    assert recorder.take() == EngineStatistics(8, 9, 0.7, 64, 32, 2, sampled_tokens=8, busy_seconds=2.5)
    assert recorder.processed_tokens == 28
    assert recorder.take() == EngineStatistics(0, 0, 0.0, 0, 0, 0)
