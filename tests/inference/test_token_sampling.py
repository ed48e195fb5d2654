"""Token sampling, compared with exact probabilities and Hugging Face's logits processors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from strop.config.schema.rollout import NativeEngineConfig
from strop.errors import InferenceError
from strop.inference.native import NativeEngine, token_sampling
from strop.inference.native.token_sampling import (
    argmax_tokens,
    build_sampling_metadata,
    invert_cdf,
    sample_tokens,
)
from strop.models.shared_weights import named_weights
from strop.types import SamplingParams
from tests.inference.helpers import random_prompts, requests_for, sample

CPU = torch.device("cpu")
LOGITS = torch.tensor([2.0, 1.5, 1.0, 0.5, 0.0, -0.5, -1.0, -3.0])


def hugging_face(sampling: SamplingParams, scores: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """[n, V] Probabilities by Hugging Face's processors, in the order of `generate`."""
    chain = LogitsProcessorList()
    if sampling.repetition_penalty != 1:
        chain.append(RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    chain.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k:
        chain.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        chain.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p:
        chain.append(MinPLogitsWarper(sampling.min_p))
    return chain(seen, scores.clone()).softmax(-1)


def chi_square_bound(freedom: int) -> float:
    """Value exceeded with probability 0.001, by Wilson and Hilferty's approximation."""
    return freedom * (1 - 2 / (9 * freedom) + 3.09 * (2 / (9 * freedom)) ** 0.5) ** 3


SAMPLINGS = (
    SamplingParams(),
    SamplingParams(temperature=0.7),
    SamplingParams(top_k=3),
    SamplingParams(top_p=0.8),
    SamplingParams(min_p=0.2),
    SamplingParams(temperature=1.3, top_k=6, top_p=0.9, min_p=0.05, repetition_penalty=1.4),
    SamplingParams(temperature=0.5, top_p=0.9),
    SamplingParams(repetition_penalty=0.7),
)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_frequencies_are_the_exact_probabilities(sampling):
    draws = 20000
    seen_ids = torch.tensor([[0, 4]])
    seen = torch.zeros(draws, 8, dtype=torch.bool)
    seen[:, seen_ids[0]] = True
    uniforms = torch.from_numpy(np.random.default_rng(3).random(draws, dtype=np.float32))
    sampled = sample_tokens(
        LOGITS.repeat(draws, 1),
        build_sampling_metadata([sampling] * draws, CPU),
        uniforms,
        seen=seen if sampling.repetition_penalty != 1 else None,
    )
    expected = hugging_face(sampling, LOGITS[None], seen_ids)[0]
    counts = torch.bincount(sampled.tokens, minlength=8)
    possible = expected > 0
    assert not counts[~possible].any()
    wanted = draws * expected[possible]
    statistic = float(((counts[possible] - wanted) ** 2 / wanted).sum())
    assert statistic < chi_square_bound(int(possible.sum()) - 1)
    torch.testing.assert_close(sampled.sampler_logprobs, expected.log()[sampled.tokens], atol=1e-5, rtol=0)
    policy = (LOGITS / sampling.temperature).log_softmax(-1)
    torch.testing.assert_close(sampled.policy_logprobs, policy[sampled.tokens], atol=1e-5, rtol=0)


def test_rows_use_their_own_options():
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(len(SAMPLINGS) + 1, 64, generator=generator)
    seen_ids = torch.randint(64, (len(logits), 9), generator=generator)
    samplings = [*SAMPLINGS, SamplingParams(temperature=0, top_k=1)]
    metadata = build_sampling_metadata(samplings, CPU)
    penalized = metadata.repetition_penalty.rows
    seen = torch.zeros(len(logits), 64, dtype=torch.bool).scatter_(1, seen_ids, True)[penalized]
    untouched = logits.clone()
    for uniform in (0.0, 0.3, 0.6, 0.99):
        sampled = sample_tokens(logits, metadata, torch.full((len(logits),), uniform), seen=seen)
        torch.testing.assert_close(logits, untouched)
        for row, sampling in enumerate(samplings[:-1]):
            expected = hugging_face(sampling, logits[row][None], seen_ids[row][None])[0]
            token = sampled.tokens[row]
            below = expected[:token].sum()
            assert below - 1e-5 <= uniform <= below + expected[token] + 1e-5
            torch.testing.assert_close(
                sampled.sampler_logprobs[row], expected[token].log(), atol=1e-4, rtol=0
            )
        assert sampled.tokens[-1] == logits[-1].argmax()
        assert sampled.sampler_logprobs[-1] == 0
        torch.testing.assert_close(sampled.policy_logprobs[-1], logits[-1].log_softmax(-1).max())


def test_greedy_rows_take_the_best_penalized_token():
    logits = torch.tensor([[3.0, 2.9, -1.0]])
    seen = torch.tensor([[True, False, False]])
    sampled = sample_tokens(
        logits,
        build_sampling_metadata([SamplingParams(temperature=0, repetition_penalty=1.2)], CPU),
        torch.zeros(1),
        seen=seen,
    )
    assert sampled.tokens.tolist() == [1]
    torch.testing.assert_close(sampled.policy_logprobs, logits.log_softmax(-1)[:, 1])


def test_banned_tokens_are_never_sampled():
    banned = torch.zeros(1000, 8, dtype=torch.bool)
    banned[:, :3] = True
    uniforms = torch.rand(1000, generator=torch.Generator().manual_seed(0))
    sampled = sample_tokens(
        LOGITS.repeat(1000, 1),
        build_sampling_metadata([SamplingParams()] * 1000, CPU),
        uniforms,
        banned=banned,
    )
    assert sampled.tokens.min() == 3
    expected = LOGITS[3:].log_softmax(-1)[sampled.tokens - 3]
    torch.testing.assert_close(sampled.sampler_logprobs, expected)
    torch.testing.assert_close(sampled.policy_logprobs, LOGITS.log_softmax(-1)[sampled.tokens])


def test_half_precision_logits_are_sampled_in_float32():
    logits = LOGITS.bfloat16().repeat(4, 1)
    sampled = sample_tokens(
        logits, build_sampling_metadata([SamplingParams()] * 4, CPU), torch.tensor([0.0, 0.4, 0.8, 0.999])
    )
    expected = logits.float().log_softmax(-1)[range(4), sampled.tokens]
    torch.testing.assert_close(sampled.policy_logprobs, expected)


@settings(max_examples=200, deadline=None)
@given(
    vocab=st.sampled_from([1, 7, 8, 50, 64, 192, 256, 50257]),
    seed=st.integers(0, 2**32 - 1),
    uniform=st.floats(0, 1, exclude_max=True, width=32),
    kept=st.floats(0.01, 1),
)
def test_invert_cdf_equals_a_plain_cumulative_sum(vocab, seed, uniform, kept):
    rng = np.random.default_rng(seed)
    weights = rng.random(vocab) * (rng.random(vocab) < kept)
    weights[rng.integers(vocab)] += 1
    probabilities = torch.from_numpy((weights / weights.sum()).astype(np.float32))[None]
    token = int(invert_cdf(probabilities, torch.tensor([uniform])))
    assert probabilities[0, token] > 0
    cdf = np.cumsum(weights / weights.sum())
    assert (cdf[token - 1] if token else 0) - 1e-5 <= uniform <= cdf[token] + 1e-5


@settings(max_examples=50, deadline=None)
@given(vocab=st.sampled_from([1, 7, 50, 64, 192, 50257]), seed=st.integers(0, 2**32 - 1))
def test_argmax_is_the_first_of_the_highest(vocab, seed):
    scores = torch.from_numpy(np.random.default_rng(seed).integers(0, 9, size=(3, vocab)).astype(np.float32))
    assert argmax_tokens(scores).tolist() == scores.numpy().argmax(1).tolist()


@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_log_probs_that_are_not_finite_are_an_error(tiny, temperature):
    """As those of a policy that has diverged, or of a damaged config.json; no index may be past the end."""
    weights = [(name, weight * torch.nan) for name, weight in named_weights(tiny().model)]
    engine = NativeEngine(
        tiny().model.config,
        weights,
        NativeEngineConfig(),
        tiny().tokenizer,
        device="cpu",
        dtype=torch.float32,
    )
    sampling = SamplingParams(max_tokens=2, temperature=temperature)
    with pytest.raises(InferenceError, match="log-probs that are NaN or infinite"):
        sample(engine, requests_for(random_prompts(4), sampling))


def test_some_rows_at_a_time_give_the_same_tokens(monkeypatch: pytest.MonkeyPatch):
    random = torch.Generator().manual_seed(0)
    logits, uniforms = torch.randn(7, 40, generator=random).bfloat16(), torch.rand(7, generator=random)
    metadata = build_sampling_metadata(
        [SamplingParams(temperature=1 + 0.5 * (row % 3)) for row in range(7)], CPU
    )
    whole = sample_tokens(logits, metadata, uniforms)
    monkeypatch.setattr(token_sampling, "_SCORES_AT_ONCE", 2 * 40)
    parts = sample_tokens(logits, metadata, uniforms)
    assert torch.equal(parts.tokens, whole.tokens)
    assert torch.equal(parts.sampler_logprobs, whole.sampler_logprobs)
    scores = logits.float() / torch.tensor([1, 1.5, 2, 1, 1.5, 2, 1])[:, None]
    chosen = scores.log_softmax(-1).gather(1, whole.tokens[:, None])[:, 0]
    torch.testing.assert_close(whole.sampler_logprobs, chosen)
