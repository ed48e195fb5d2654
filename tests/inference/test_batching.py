"""Continuous batching: admission, cache limits, shared prompts, and their independence of results."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from strop.errors import InferenceError
from strop.inference.native.model.attention import build_prompt_sharing
from strop.inference.native.model.compaction import plan_compaction
from strop.inference.native.model.kv_cache import padded_width
from strop.types import SampleRequest, SamplingParams
from tests.inference.helpers import random_prompts, requests_for, same, sample


def mixed_requests(seed: int = 0) -> list[SampleRequest]:
    """Groups of several prompts and lengths, some stopping early."""
    prompts = random_prompts(3, 14, 6, 25, 9, seed=seed)
    return [
        SampleRequest(
            f"{p}.{n}",
            prompts[p],
            SamplingParams(max_tokens=4 + 5 * ((p + n) % 4), stop_token_ids=tuple(range(5, 300, 11))),
            seed=10 * p + n,
        )
        for p in range(len(prompts))
        for n in range(6)
    ]


@pytest.mark.parametrize("family", ["qwen2", "mistral", "gemma"])
@pytest.mark.parametrize("bound", [{"kv_cache_tokens": 100}, {"max_sequences": 3}, {"max_sequences": 1}])
def test_a_small_cache_gives_the_same_completions(tiny, family, bound):
    requests = mixed_requests()
    large, small = tiny(family).engine(), tiny(family).engine(**bound)
    for one, other in zip(sample(large, requests), sample(small, requests), strict=True):
        assert one.finish_reason == other.finish_reason
        assert one.token_ids.tolist() == other.token_ids.tolist()
        np.testing.assert_allclose(one.policy_logprobs, other.policy_logprobs, atol=1e-4)


def test_limits_hold_at_every_step(tiny):
    engine = tiny().engine(kv_cache_tokens=200, max_sequences=5)
    used = []

    async def main() -> None:
        answers = asyncio.create_task(engine.sample(mixed_requests()))
        while not answers.done():
            await asyncio.sleep(0)
            runner = engine._runner
            used.append(
                (
                    sum(store.count * store.width for store in (runner._own, runner._prompts)),
                    engine.stats.running,
                )
            )
        await answers

    asyncio.run(main())
    assert max(tokens for tokens, _ in used) <= 200
    assert max(rows for _, rows in used) == 5
    assert engine.stats.running == engine.stats.waiting == 0
    assert engine._runner._own._layers[0].numel() == 0, "an idle engine holds no cache"


def test_a_request_larger_than_the_cache_is_rejected(tiny):
    engine = tiny().engine(kv_cache_tokens=64)
    fine, large = requests_for(random_prompts(10, 40), SamplingParams(max_tokens=30))
    with pytest.raises(
        InferenceError, match=r"request '1.0': a prompt of 40 tokens .*kv_cache_tokens \(64\)"
    ):
        sample(engine, [fine, large])
    assert len(sample(engine, [fine])) == 1


def test_a_request_of_the_size_of_the_cache_is_completed(tiny):
    request = requests_for(random_prompts(33), SamplingParams(max_tokens=30, ignore_eos=True))
    assert len(sample(tiny().engine(kv_cache_tokens=63), request)[0].token_ids) == 30


def test_a_group_has_one_prefill(tiny):
    engine = tiny().engine()
    sample(
        engine, requests_for(random_prompts(20, 30), SamplingParams(max_tokens=4, ignore_eos=True), samples=8)
    )
    assert engine.stats.prompt_tokens == 50
    assert engine.stats.generated_tokens == 2 * 8 * 4


def test_later_rows_join_a_cached_prompt(tiny):
    engine = tiny().engine(max_sequences=4)
    requests = [
        SampleRequest(
            str(n), random_prompts(20)[0], SamplingParams(max_tokens=3 + n, ignore_eos=True), seed=n
        )
        for n in range(12)
    ]
    together = sample(tiny().engine(), requests)
    for first, second in zip(together, sample(engine, requests), strict=True):
        assert first.token_ids.tolist() == second.token_ids.tolist()
    assert engine.stats.prompt_tokens == 20


def test_tokens_do_not_depend_on_the_rest_of_the_batch(tiny):
    engine = tiny().engine()
    requests = mixed_requests()
    together = sample(engine, requests)
    for request, answer in list(zip(requests, together, strict=True))[::7]:
        alone = sample(engine, [request])[0]
        assert alone.token_ids.tolist() == answer.token_ids.tolist()


def test_the_same_requests_give_the_same_bits(tiny):
    requests = mixed_requests()
    first, again = sample(tiny().engine(), requests), sample(tiny().engine(), requests)
    assert all(same(one, other) for one, other in zip(first, again, strict=True))
    other_seeds = [SampleRequest(r.id, r.prompt_ids, r.sampling, r.seed + 1000) for r in requests]
    third = sample(tiny().engine(), other_seeds)
    assert not all(same(one, other) for one, other in zip(first, third, strict=True))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=12))
def test_compaction_fills_every_gap_once(removed):
    compaction = plan_compaction(np.array(removed, dtype=np.bool_), torch.device("cpu"))
    indices = torch.arange(len(removed))
    compaction.apply(indices)
    names = list(range(len(removed)))
    compaction.apply_to_list(names)
    remaining = [n for n, is_removed in enumerate(removed) if not is_removed]
    assert sorted(names) == remaining and indices[: compaction.after].tolist() == names
    new = compaction.new_indices().tolist()
    assert all(new[n] == -1 if is_removed else names[new[n]] == n for n, is_removed in enumerate(removed))


@settings(max_examples=100, deadline=None)
@given(
    slots=st.lists(st.integers(0, 4), min_size=1, max_size=12),
    kv_heads=st.integers(1, 3),
)
def test_prompt_sharing_finds_every_row(slots, kv_heads):
    sharing = build_prompt_sharing(slots, 5, kv_heads, torch.device("cpu"))
    assert sharing.stack[sharing.unstack].tolist() == list(range(len(slots) * kv_heads))
    for row, slot in enumerate(slots):
        for head in range(kv_heads):
            place = int(sharing.unstack[row * kv_heads + head])
            assert place // sharing.rows_per_prompt == slot * kv_heads + head


@given(st.integers(1, 100_000))
def test_padded_width_has_little_padding(tokens):
    assert tokens <= padded_width(tokens) <= tokens + max(15, tokens // 8)
    assert padded_width(padded_width(tokens)) == padded_width(tokens)
