"""Continuous batching: admission, cache limits, shared prompts, and their independence of results."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from strop.errors import InferenceError
from strop.inference.native.model.decoder import build_prompt_sharing, padded_width
from strop.inference.native.model.runner import plan_compaction
from strop.types import SampleRequest, SamplingParams
from tests.inference.helpers import assert_close, random_prompts, requests_for, sample


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


@pytest.mark.parametrize(
    ("family", "bound"),
    [
        ("qwen2", {"kv_cache_tokens": 100}),
        ("qwen2", {"max_sequences": 3}),
        ("mistral", {"kv_cache_tokens": 100}),
        ("gemma", {"kv_cache_tokens": 100}),
        ("gemma", {"max_sequences": 1}),
    ],
)
def test_a_small_cache_gives_the_same_completions(tiny, family, bound):
    requests = mixed_requests()
    assert_close(sample(tiny(family).engine(), requests), sample(tiny(family).engine(**bound), requests))


def test_limits_hold_at_every_step(tiny):
    engine = tiny().engine(kv_cache_tokens=200, max_sequences=5)
    runner, used = engine._runner, []

    async def main() -> None:
        answers = asyncio.create_task(engine.sample(mixed_requests()))
        while not answers.done():
            await asyncio.sleep(0)
            tokens = sum(store.count * store.width for store in (runner._own, runner._prompts))
            used.append((tokens, engine.stats.running))
        await answers

    asyncio.run(main())
    assert max(tokens for tokens, _ in used) <= 200
    assert max(rows for _, rows in used) == 5
    assert engine.stats.running == engine.stats.waiting == 0
    assert runner._own._layers[0].numel() == 0, "an idle engine holds no cache"


def test_a_request_may_fill_the_cache_and_not_exceed_it(tiny):
    engine = tiny().engine(kv_cache_tokens=63)
    fine, large = requests_for(random_prompts(33, 40), SamplingParams(max_tokens=30, ignore_eos=True))
    with pytest.raises(
        InferenceError, match=r"request '1.0': a prompt of 40 tokens .*kv_cache_tokens \(63\)"
    ):
        sample(engine, [fine, large])
    assert len(sample(engine, [fine])[0].token_ids) == 30


def test_a_group_has_one_prefill(tiny):
    engine = tiny().engine()
    sampling = SamplingParams(max_tokens=4, ignore_eos=True)
    sample(engine, requests_for(random_prompts(20, 30), sampling, samples=8))
    assert (engine.stats.prompt_tokens, engine.stats.generated_tokens) == (50, 2 * 8 * 4)


def test_later_rows_join_a_cached_prompt(tiny):
    engine = tiny().engine(max_sequences=4)
    (prompt,) = random_prompts(20)
    samplings = [SamplingParams(max_tokens=3 + n, ignore_eos=True) for n in range(12)]
    requests = [SampleRequest(str(n), prompt, sampling, seed=n) for n, sampling in enumerate(samplings)]
    assert_close(sample(tiny().engine(), requests), sample(engine, requests))
    assert engine.stats.prompt_tokens == 20


def test_tokens_do_not_depend_on_the_rest_of_the_batch(tiny):
    engine, requests = tiny().engine(), mixed_requests()
    for request, answer in list(zip(requests, sample(engine, requests), strict=True))[::7]:
        alone = sample(engine, [request])[0]
        assert alone.token_ids.tolist() == answer.token_ids.tolist()


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
