"""Conversion of requests, completions and options to and from SGLang, without SGLang."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from transformers import Qwen2Config

from strop.config.schema.model import LoraConfig, ModelConfig
from strop.config.schema.rollout import SglangEngineConfig
from strop.errors import ConfigError, InferenceError
from strop.inference.completion import StopStringMatcher, cut_at_stop
from strop.inference.sglang.library import (
    RESERVED_TOKENS,
    CompletionStatistics,
    adapter_arguments,
    add_engine_kwargs,
    engine_arguments,
)
from strop.inference.sglang.requests import check_support, stop_plan, to_completion, to_sglang
from strop.types import Completion, EngineStatistics, SampleRequest, SamplingParams
from tests.inference.helpers import Letters

MODEL = ModelConfig(path="/models/m", compute_dtype="bfloat16")
TYPES = {
    "model_path": str,
    "tp_size": int,
    "dp_size": int,
    "schedule_policy": str,
    "schedule_conservativeness": float,
    "sampling_backend": str | None,
}
"""Types of a few arguments of SGLang's `ServerArgs`."""
END, VOCABULARY = frozenset({1}), 100


def request(**sampling: Any) -> SampleRequest:
    return SampleRequest("r", np.array([3, 4], dtype=np.int32), SamplingParams(**sampling), seed=2**63 + 5)


def passed(**sampling: Any) -> dict[str, Any]:
    params = SamplingParams(**sampling)
    return to_sglang(request(**sampling), stop_plan(params, END, VOCABULARY), VOCABULARY)


def output(tokens: int = 2, reason: str = "stop", **info: Any) -> dict[str, Any]:
    logprobs = [(-0.5, 7, None), (-0.25, 1, None)][:tokens]
    meta = {
        "output_token_logprobs": logprobs,
        "finish_reason": {"type": reason},
        "weight_versions": [{"version": "4", "start": 0, "end": tokens}],
    }
    return {"meta_info": meta | info}


def arguments(**section: Any) -> dict[str, Any]:
    config = SglangEngineConfig(**section)
    return add_engine_kwargs(engine_arguments(config, MODEL, VOCABULARY, on_cpu=False), config, TYPES)


def test_options_have_sglangs_names_and_are_left_out_without_a_value():
    given = arguments(tensor_parallel=2, max_running_requests=16, context_length=512, seed=7)
    assert (given["tp_size"], given["max_running_requests"], given["random_seed"]) == (2, 16, 7)
    assert given["context_length"] == 512 + RESERVED_TOKENS
    assert given["dtype"] == "bfloat16" and given["device"] == "cuda"
    absent = {"mem_fraction_static", "chunked_prefill_size", "attention_backend", "quantization"}
    assert not given.keys() & absent


@pytest.mark.parametrize(
    ("section", "backend"), [({}, "torch_native"), ({"attention_backend": "intel_amx"}, "intel_amx")]
)
def test_the_cpu_gets_implementations_that_need_no_gpu_unless_the_run_names_others(
    section: dict[str, Any], backend: str
):
    on_cpu = engine_arguments(SglangEngineConfig(**section), MODEL, VOCABULARY, on_cpu=True)
    assert on_cpu["attention_backend"] == backend and on_cpu["disable_cuda_graph"]


def test_an_adapter_fits_to_layers_that_sglang_does_not_pad():
    config = Qwen2Config(intermediate_size=192)
    given = adapter_arguments(SglangEngineConfig(), LoraConfig(rank=8), config, on_cpu=False)
    assert (given["max_lora_rank"], given["lora_target_modules"]) == (8, ["all"])
    assert "lora_backend" not in given
    patterned = LoraConfig(rank=8, rank_pattern={"q_proj": 32})
    assert adapter_arguments(SglangEngineConfig(), patterned, config, on_cpu=False)["max_lora_rank"] == 32
    named = LoraConfig(rank=8, targets=("q_proj",))
    on_cpu = adapter_arguments(SglangEngineConfig(tensor_parallel=2), named, config, on_cpu=True)
    assert (on_cpu["lora_backend"], on_cpu["lora_target_modules"]) == ("torch_native", ["q_proj"])
    with pytest.raises(
        ConfigError, match=r"\(192\) to a multiple of 128, .* rollout.engine.merge_lora: true"
    ):
        adapter_arguments(SglangEngineConfig(tensor_parallel=4), named, config, on_cpu=True)


@pytest.mark.parametrize(
    ("kwargs", "expected"),
    [
        ({"schedule_polcy": "fcfs"}, "did you mean 'schedule_policy'?"),
        ({"tp_size": 2}, "write rollout.engine.tensor_parallel"),
        ({"model_path": "m"}, "is set by Strop"),
        ({"dp_size": 2}, "write rollout.pool.engines"),
        (
            {"schedule_policy": 3},
            "is 3, which SGLang's ServerArgs does not take: Input should be a valid string",
        ),
    ],
)
def test_engine_kwargs_are_checked_against_sglangs_arguments(kwargs: dict[str, Any], expected: str):
    with pytest.raises(ConfigError) as caught:
        arguments(engine_kwargs=kwargs)
    assert f"rollout.engine.engine_kwargs.{next(iter(kwargs))}" in str(caught.value)
    assert expected in str(caught.value)


def test_engine_kwargs_of_the_right_type_are_passed():
    given = arguments(engine_kwargs={"schedule_conservativeness": 0.5, "sampling_backend": "pytorch"})
    assert (given["schedule_conservativeness"], given["sampling_backend"]) == (0.5, "pytorch")


def test_end_tokens_are_stop_tokens_and_tokens_beyond_the_vocabulary_are_left_out():
    params = passed(stop_token_ids=(9, 999), min_tokens=2, stop=("x",))["sampling_params"]
    assert params["stop_token_ids"] == [1, 9] and not params["ignore_eos"] and params["min_new_tokens"] == 2
    assert params["sampling_seed"] == 5 and params["no_stop_trim"]
    assert params["stop"] == [], "SGLang would test it before min_new_tokens"
    assert passed(stop=("x",))["sampling_params"]["stop"] == ["x"]


def test_under_ignore_eos_sglang_gets_no_stop_tokens():
    params = passed(ignore_eos=True, stop_token_ids=(9,))["sampling_params"]
    assert params["ignore_eos"] and params["stop_token_ids"] is None
    plan = stop_plan(SamplingParams(ignore_eos=True, stop_token_ids=(9,)), END, VOCABULARY)
    assert plan.cut_tokens == {9} and not plan.tokens


def test_a_filter_asks_for_both_logprobs_and_keeps_every_token_without_top_k():
    filtered = passed(top_p=0.9)
    assert filtered["return_sampling_mask"] and filtered["sampling_params"]["top_k"] == VOCABULARY
    plain = passed(temperature=0.7)
    assert not plain["return_sampling_mask"] and plain["sampling_params"]["top_k"] == -1
    greedy = passed(temperature=0, top_p=0.9, top_k=3, min_p=0.1)
    assert not greedy["return_sampling_mask"] and greedy["sampling_params"]["top_p"] == 1


def test_logprobs_of_the_policy_and_of_the_sampler():
    plain = to_completion(request(), output(), int)
    assert plain.sampler_logprobs.tolist() == [-0.5, -0.25] and plain.version == 4
    filtered = to_completion(request(top_k=5), output(output_token_sampling_logprobs=[-0.1, -0.2]), int)
    assert filtered.sampler_logprobs.tolist() == pytest.approx([-0.1, -0.2])
    assert filtered.policy_logprobs is not None and filtered.policy_logprobs.tolist() == [-0.5, -0.25]
    greedy = to_completion(request(temperature=0), output(), int)
    assert greedy.sampler_logprobs.tolist() == [0, 0] and greedy.policy_logprobs is not None
    assert to_completion(request(min_tokens=1), output(), int).policy_logprobs is None


def test_tokens_of_several_versions_have_a_version_each():
    spans = [{"version": "4", "start": 0, "end": 1}, {"version": "6", "start": 1, "end": 2}]
    mixed = to_completion(request(), output(weight_versions=spans), int)
    assert mixed.version == 4 and mixed.token_versions is not None
    assert mixed.token_versions.tolist() == [4, 6]


def test_a_request_that_is_aborted_while_it_waits_has_no_tokens():
    reason = {"type": "abort", "message": "Abort in waiting queue"}
    aborted = {"output_token_logprobs": [], "finish_reason": reason}
    completion = to_completion(request(top_k=5), {"meta_info": aborted}, int)
    assert len(completion.token_ids) == 0 and completion.finish_reason == "abort"
    recorder = CompletionStatistics()
    recorder.record(aborted, ())
    assert recorder.take().prompt_tokens == 0


def test_logprobs_of_the_prompt_begin_with_its_second_token():
    asked = replace(request(), prompt_logprobs=True)
    assert to_sglang(asked, stop_plan(asked.sampling, END, VOCABULARY), VOCABULARY)["logprob_start_len"] == 0
    given = output(input_token_logprobs=[(None, 3, None), (-0.5, 4, None), (-2.0, 5, None)])
    found = to_completion(asked, given, int).prompt_logprobs
    assert found is not None and found.tolist() == [-0.5, -2.0]


def test_a_completion_that_sglang_shortened_is_an_error():
    with pytest.raises(InferenceError, match=r"request 'r': SGLang ended it after 2 of 5 tokens"):
        to_completion(request(max_tokens=5), output(reason="length"), int)


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ({"repetition_penalty": 1.2}, "leaves out the prompt's tokens"),
        ({"ignore_eos": True, "min_tokens": 2, "stop_token_ids": (9,)}, "also excludes the end token"),
    ],
)
def test_a_distribution_that_sglang_would_change_is_refused(sampling: dict[str, Any], expected: str):
    with pytest.raises(InferenceError, match=expected):
        check_support(request(**sampling))


@pytest.mark.parametrize(
    ("stops", "min_tokens", "expected"),
    [
        ({"tokens": {2}}, 0, "abc"),
        ({"tokens": {25}}, 0, "abcabc"),
        ({"strings": ("bc",)}, 2, "abc"),
        ({"strings": ("bc",)}, 3, "abcabc"),
        ({"strings": ("ca", "x")}, 3, "abca"),
    ],
)
def test_a_completion_is_cut_at_its_first_stop(stops: dict[str, Any], min_tokens: int, expected: str):
    tokens = np.array([0, 1, 2, 0, 1, 2], dtype=np.int32)
    values = -tokens.astype(np.float32)
    whole = Completion(tokens, values, values, "length", 3)
    cut = cut_at_stop(whole, min_tokens, StopStringMatcher(Letters()), **stops)  # type: ignore[arg-type]
    assert Letters().decode(cut.token_ids.tolist()) == expected
    assert cut.sampler_logprobs.tolist() == values[: len(expected)].tolist()
    at_end = stops == {"strings": ("bc",)} and min_tokens == 3
    assert cut.finish_reason == ("stop" if len(expected) < 6 or at_end else "length")


def test_what_sglang_reports_is_added_up_until_it_is_taken():
    now = 0.0
    recorder = CompletionStatistics(lambda: now)
    for running, cached in ((4, 0), (8, 16)):
        counts = {"prompt_tokens": 32, "cached_tokens": cached, "num_retractions": 1}
        info = counts | {"output_token_logprobs": [(-0.5, 7, None)] * 3}
        load = SimpleNamespace(num_running_reqs=running, num_waiting_reqs=1, token_usage=0.5)
        recorder.record(info, [load])
    assert recorder.take() == EngineStatistics(8, 1, 0.5, 64, 16, 2, sampled_tokens=6)
    now = 10.0  # nothing was running until now
    with recorder.running():
        now = 12.0
        with recorder.running():
            now = 13.0
        assert recorder.take() == EngineStatistics(0, 0, 0.0, 0, 0, 0, busy_seconds=3.0)
        now = 14.0
    assert recorder.take() == EngineStatistics(0, 0, 0.0, 0, 0, 0, busy_seconds=1.0)
