"""Tokens come from the distribution that is meant: exact probabilities, Hugging Face's processors."""

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

from strop.inference.native.drawing import choice_of, draw, invert_cdf, likeliest
from strop.types import Sampling

CPU = torch.device("cpu")
LOGITS = torch.tensor([2.0, 1.5, 1.0, 0.5, 0.0, -0.5, -1.0, -3.0])


def hugging_face(sampling: Sampling, scores: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """[n, V] probabilities by Hugging Face's processors, in the order of `generate`."""
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
    """What one chance in a thousand exceeds, by Wilson and Hilferty's approximation."""
    return freedom * (1 - 2 / (9 * freedom) + 3.09 * (2 / (9 * freedom)) ** 0.5) ** 3


SAMPLINGS = (
    Sampling(),
    Sampling(temperature=0.7),
    Sampling(top_k=3),
    Sampling(top_p=0.8),
    Sampling(min_p=0.2),
    Sampling(temperature=1.3, top_k=6, top_p=0.9, min_p=0.05, repetition_penalty=1.4),
    Sampling(temperature=0.5, top_p=0.9),
    Sampling(repetition_penalty=0.7),
)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_frequencies_are_the_exact_probabilities(sampling):
    draws = 20000
    seen_ids = torch.tensor([[0, 4]])
    seen = torch.zeros(draws, 8, dtype=torch.bool)
    seen[:, seen_ids[0]] = True
    uniforms = torch.from_numpy(np.random.default_rng(3).random(draws, dtype=np.float32))
    drawn = draw(
        LOGITS.repeat(draws, 1),
        choice_of([sampling] * draws, CPU),
        uniforms,
        seen=seen if sampling.repetition_penalty != 1 else None,
    )
    expected = hugging_face(sampling, LOGITS[None], seen_ids)[0]
    counts = torch.bincount(drawn.tokens, minlength=8)
    possible = expected > 0
    assert not counts[~possible].any()
    wanted = draws * expected[possible]
    statistic = float(((counts[possible] - wanted) ** 2 / wanted).sum())
    assert statistic < chi_square_bound(int(possible.sum()) - 1)
    torch.testing.assert_close(drawn.sampler_logprobs, expected.log()[drawn.tokens], atol=1e-5, rtol=0)
    policy = (LOGITS / sampling.temperature).log_softmax(-1)
    torch.testing.assert_close(drawn.policy_logprobs, policy[drawn.tokens], atol=1e-5, rtol=0)


def test_rows_keep_to_their_own_settings():
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(len(SAMPLINGS) + 1, 64, generator=generator)
    seen_ids = torch.randint(64, (len(logits), 9), generator=generator)
    samplings = [*SAMPLINGS, Sampling(temperature=0, top_k=1)]
    choice = choice_of(samplings, CPU)
    penalised = choice.repetition_penalty.rows
    seen = torch.zeros(len(logits), 64, dtype=torch.bool).scatter_(1, seen_ids, True)[penalised]
    untouched = logits.clone()
    for uniform in (0.0, 0.3, 0.6, 0.99):
        drawn = draw(logits, choice, torch.full((len(logits),), uniform), seen=seen)
        torch.testing.assert_close(logits, untouched)
        for row, sampling in enumerate(samplings[:-1]):
            expected = hugging_face(sampling, logits[row][None], seen_ids[row][None])[0]
            token = drawn.tokens[row]
            below = expected[:token].sum()
            assert below - 1e-5 <= uniform <= below + expected[token] + 1e-5
            torch.testing.assert_close(drawn.sampler_logprobs[row], expected[token].log(), atol=1e-4, rtol=0)
        assert drawn.tokens[-1] == logits[-1].argmax()
        assert drawn.sampler_logprobs[-1] == 0
        torch.testing.assert_close(drawn.policy_logprobs[-1], logits[-1].log_softmax(-1).max())


def test_greedy_rows_take_the_penalised_best():
    logits = torch.tensor([[3.0, 2.9, -1.0]])
    seen = torch.tensor([[True, False, False]])
    drawn = draw(
        logits, choice_of([Sampling(temperature=0, repetition_penalty=1.2)], CPU), torch.zeros(1), seen=seen
    )
    assert drawn.tokens.tolist() == [1]
    torch.testing.assert_close(drawn.policy_logprobs, logits.log_softmax(-1)[:, 1])


def test_barred_tokens_are_never_drawn():
    barred = torch.zeros(1000, 8, dtype=torch.bool)
    barred[:, :3] = True
    uniforms = torch.rand(1000, generator=torch.Generator().manual_seed(0))
    drawn = draw(LOGITS.repeat(1000, 1), choice_of([Sampling()] * 1000, CPU), uniforms, barred=barred)
    assert drawn.tokens.min() == 3
    expected = LOGITS[3:].log_softmax(-1)[drawn.tokens - 3]
    torch.testing.assert_close(drawn.sampler_logprobs, expected)
    torch.testing.assert_close(drawn.policy_logprobs, LOGITS.log_softmax(-1)[drawn.tokens])


def test_half_precision_logits_are_drawn_from_in_float32():
    logits = LOGITS.bfloat16().repeat(4, 1)
    drawn = draw(logits, choice_of([Sampling()] * 4, CPU), torch.tensor([0.0, 0.4, 0.8, 0.999]))
    expected = logits.float().log_softmax(-1)[range(4), drawn.tokens]
    torch.testing.assert_close(drawn.policy_logprobs, expected)


@settings(max_examples=200, deadline=None)
@given(
    vocab=st.sampled_from([1, 7, 8, 50, 64, 192, 256, 50257]),
    seed=st.integers(0, 2**32 - 1),
    uniform=st.floats(0, 1, exclude_max=True, width=32),
    kept=st.floats(0.01, 1),
)
def test_inverse_cdf_is_the_plain_one(vocab, seed, uniform, kept):
    rng = np.random.default_rng(seed)
    weights = rng.random(vocab) * (rng.random(vocab) < kept)
    weights[rng.integers(vocab)] += 1
    shares = torch.from_numpy((weights / weights.sum()).astype(np.float32))[None]
    token = int(invert_cdf(shares, torch.tensor([uniform])))
    assert shares[0, token] > 0
    cdf = np.cumsum(weights / weights.sum())
    assert (cdf[token - 1] if token else 0) - 1e-5 <= uniform <= cdf[token] + 1e-5


@settings(max_examples=50, deadline=None)
@given(vocab=st.sampled_from([1, 7, 50, 64, 192, 50257]), seed=st.integers(0, 2**32 - 1))
def test_likeliest_is_the_first_of_the_highest(vocab, seed):
    scores = torch.from_numpy(np.random.default_rng(seed).integers(0, 9, size=(3, vocab)).astype(np.float32))
    assert likeliest(scores).tolist() == scores.numpy().argmax(1).tolist()
