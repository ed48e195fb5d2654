"""Native engine against Hugging Face for every family: greedy tokens of `generate`, log-probs of a forward pass."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from strop.types import SamplingParams
from tests.inference.helpers import Tiny, policy_logprobs, random_prompts, requests_for, sample

FAMILIES = ("qwen2", "qwen3", "llama", "mistral", "gemma", "phi")
NATIVE = ("qwen2", "qwen3", "llama", "mistral")
SIZES = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
ROPE = {"rope_theta": 100.0}
VARIANTS = {
    "untied": ("qwen2", {"tie_word_embeddings": False}),
    "attention bias": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "qwen3 bias": ("qwen3", {"attention_bias": True}),
    "one kv head per head": ("llama", {"num_key_value_heads": 4}),
    "one kv head": ("llama", {"num_key_value_heads": 1}),
    "large heads": ("qwen3", {"head_dim": 48}),
    "mistral's head size": ("mistral", {"head_dim": 8}),
    "sliding window": ("mistral", {"sliding_window": 7}),
    "no sliding window": ("mistral", {"sliding_window": None}),
    "sliding in upper layers": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    ),
    "sliding by type": (
        "qwen3",
        {
            "use_sliding_window": True,
            "sliding_window": 5,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "linear rope": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, **ROPE}}),
    "llama3 rope": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
                **ROPE,
            }
        },
    ),
    "yarn": (
        "qwen2",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 64,
                **ROPE,
            }
        },
    ),
}
NOT_NATIVE = {
    "gpt2": ("gpt2", {"n_positions": 256}, "gpt2 has no native forward"),
    "another activation": ("llama", {"hidden_act": "gelu"}, "the activation 'gelu' is not native"),
    "dynamic rope": (
        "llama",
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, **ROPE}},
        "rotary embeddings of type 'dynamic' are not native",
    ),
    "gemma 3": (
        "gemma3_text",
        {"head_dim": 16, "sliding_window": 6, "layer_types": ["sliding_attention"] * 2 + ["full_attention"]},
        "gemma3_text has no native forward",
    ),
}


def with_config(tiny, family: str, changes: dict) -> Tiny:
    config = AutoConfig.for_model(family, **{**SIZES, **changes})
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(
                parameter * 4 if parameter.dim() > 1 else parameter + 0.1 * torch.randn_like(parameter)
            )
    return Tiny(model, tiny().tokenizer)


def check_greedy(tiny: Tiny, prompts, ends: tuple[int, ...], max_tokens: int = 24) -> list[int]:
    """Compare with `generate`, one prompt at a time; returns the lengths of the completions."""
    sampling = SamplingParams(temperature=0, max_tokens=max_tokens, stop_token_ids=ends)
    completions = sample(tiny.engine(), requests_for(prompts, sampling))
    for prompt, completion in zip(prompts, completions, strict=True):
        expected = tiny.model.generate(
            torch.from_numpy(prompt).long()[None],
            do_sample=False,
            max_new_tokens=max_tokens,
            eos_token_id=[1, *ends],
            pad_token_id=0,
        )[0, len(prompt) :]
        assert completion.token_ids.tolist() == expected.tolist()
        assert completion.finish_reason == ("stop" if expected[-1] in (1, *ends) else "length")
        assert not completion.sampler_logprobs.any()
    return [len(completion.token_ids) for completion in completions]


def check_logprobs(tiny: Tiny, prompts) -> None:
    requests = requests_for(prompts, SamplingParams(temperature=0.8, max_tokens=20), samples=3)
    for request, completion in zip(requests, sample(tiny.engine(), requests), strict=True):
        expected = policy_logprobs(tiny.model, request, completion)
        np.testing.assert_allclose(completion.policy_logprobs, expected, atol=1e-4, rtol=0)
        np.testing.assert_array_equal(completion.sampler_logprobs, completion.policy_logprobs)


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_equals_generate(tiny, family):
    prompts = random_prompts(1, 3, 7, 12, 20, 33, 5, 8)
    model = tiny(family, tied=False)
    free = sample(model.engine(), requests_for(prompts, SamplingParams(temperature=0, max_tokens=24)))
    ends = {int(completion.token_ids[3 * n]) for n, completion in enumerate(free[:4])}
    lengths = check_greedy(model, prompts, tuple(ends))
    assert len(set(lengths)) > 2, "completions should have different lengths"


@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_equal_a_forward_pass(tiny, family):
    check_logprobs(tiny(family), random_prompts(2, 9, 17))


@pytest.mark.parametrize("family", NATIVE)
def test_native_families_use_the_native_forward(tiny, family):
    assert tiny(family).engine().describe().startswith(f"native {family} forward, float32")


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_of_native_families(tiny, variant):
    model = with_config(tiny, *VARIANTS[variant])
    prompts = random_prompts(4, 11, 25)
    assert model.engine().describe().startswith("native")
    check_greedy(model, prompts, ends=())
    check_logprobs(model, prompts)


@pytest.mark.parametrize("variant", NOT_NATIVE)
def test_other_models_use_the_hugging_face_forward_and_describe_why(tiny, variant):
    family, changes, reason = NOT_NATIVE[variant]
    model = with_config(tiny, family, changes)
    prompts = random_prompts(4, 11, 25)
    assert model.engine().describe().endswith(f"({reason})")
    check_greedy(model, prompts, ends=())
    check_logprobs(model, prompts)


def test_bfloat16_stays_near_a_bfloat16_forward(tiny):
    model = tiny("qwen2", layers=3)
    half = Tiny(
        AutoModelForCausalLM.from_config(model.model.config, dtype=torch.bfloat16).eval(), model.tokenizer
    )
    half.model.load_state_dict(model.model.state_dict())
    requests = requests_for(random_prompts(5, 30), SamplingParams(max_tokens=32), samples=4)
    differences = [
        completion.policy_logprobs - policy_logprobs(half.model, request, completion)
        for request, completion in zip(requests, sample(half.engine(), requests), strict=True)
    ]
    assert np.abs(np.concatenate(differences)).mean() < 0.1
