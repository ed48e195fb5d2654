"""Who waits, who enters, and that neither changes an answer."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from strop.errors import InferenceError
from strop.inference.native.attention import sharing_of
from strop.inference.native.cache import stored_width
from strop.inference.native.moves import moves_for
from strop.types import SampleRequest, Sampling
from tests.inference.helpers import random_prompts, requests_for, same, sample


def mixed_requests(seed: int = 0) -> list[SampleRequest]:
    """Groups of several prompts and lengths, some stopping early."""
    prompts = random_prompts(3, 14, 6, 25, 9, seed=seed)
    return [
        SampleRequest(
            f"{p}.{n}",
            prompts[p],
            Sampling(max_tokens=4 + 5 * ((p + n) % 4), stop_token_ids=tuple(range(5, 300, 11))),
            seed=10 * p + n,
        )
        for p in range(len(prompts))
        for n in range(6)
    ]


@pytest.mark.parametrize("family", ["qwen2", "mistral", "gemma"])
@pytest.mark.parametrize("bound", [{"kv_cache_tokens": 100}, {"max_sequences": 3}, {"max_sequences": 1}])
def test_a_small_cache_gives_the_same_answers_later(tiny, family, bound):
    requests = mixed_requests()
    roomy, narrow = tiny(family).engine(), tiny(family).engine(**bound)
    for wide, tight in zip(sample(roomy, requests), sample(narrow, requests), strict=True):
        assert wide.finish == tight.finish
        assert wide.token_ids.tolist() == tight.token_ids.tolist()
        np.testing.assert_allclose(wide.policy_logprobs, tight.policy_logprobs, atol=1e-4)


def test_the_bound_is_kept_at_every_step(tiny):
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
                    engine.stats.rows,
                )
            )
        await answers

    asyncio.run(main())
    assert max(tokens for tokens, _ in used) <= 200
    assert max(rows for _, rows in used) == 5
    assert engine.stats.rows == engine.stats.waiting == 0
    assert engine._runner._own._layers[0].numel() == 0, "an idle engine holds no cache"


def test_a_request_that_can_never_fit_is_refused(tiny):
    engine = tiny().engine(kv_cache_tokens=64)
    fine, large = requests_for(random_prompts(10, 40), Sampling(max_tokens=30))
    with pytest.raises(
        InferenceError, match=r"request '1.0': a prompt of 40 tokens .*kv_cache_tokens \(64\)"
    ):
        sample(engine, [fine, large])
    assert len(sample(engine, [fine])) == 1


def test_a_request_that_just_fits_is_answered(tiny):
    request = requests_for(random_prompts(33), Sampling(max_tokens=30, ignore_eos=True))
    assert len(sample(tiny().engine(kv_cache_tokens=63), request)[0].token_ids) == 30


def test_one_prefill_for_a_group(tiny):
    engine = tiny().engine()
    sample(engine, requests_for(random_prompts(20, 30), Sampling(max_tokens=4, ignore_eos=True), samples=8))
    assert engine.stats.prompt_tokens == 50
    assert engine.stats.tokens == 2 * 8 * 4


def test_late_rows_join_a_prompt_that_is_still_there(tiny):
    engine = tiny().engine(max_sequences=4)
    requests = [
        SampleRequest(str(n), random_prompts(20)[0], Sampling(max_tokens=3 + n, ignore_eos=True), seed=n)
        for n in range(12)
    ]
    together = sample(tiny().engine(), requests)
    for first, second in zip(together, sample(engine, requests), strict=True):
        assert first.token_ids.tolist() == second.token_ids.tolist()
    assert engine.stats.prompt_tokens == 20


def test_draws_do_not_depend_on_the_rest_of_the_batch(tiny):
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
def test_moves_fill_every_gap_once(leaving):
    moves = moves_for(torch.tensor(leaving))
    places = torch.arange(len(leaving))
    moves.apply(places)
    names = list(range(len(leaving)))
    moves.apply_to_list(names)
    stayed = [n for n, left in enumerate(leaving) if not left]
    assert sorted(names) == stayed and places[: moves.after].tolist() == names
    new = moves.new_places().tolist()
    assert all(new[n] == -1 if left else names[new[n]] == n for n, left in enumerate(leaving))


@settings(max_examples=100, deadline=None)
@given(
    slots=st.lists(st.integers(0, 4), min_size=1, max_size=12),
    kv_heads=st.integers(1, 3),
)
def test_sharing_finds_every_row_in_its_prompt(slots, kv_heads):
    sharing = sharing_of(torch.tensor(slots), 5, kv_heads)
    assert sharing.stack[sharing.unstack].tolist() == list(range(len(slots) * kv_heads))
    for row, slot in enumerate(slots):
        for head in range(kv_heads):
            place = int(sharing.unstack[row * kv_heads + head])
            assert place // sharing.rows_per_prompt == slot * kv_heads + head


@given(st.integers(1, 100_000))
def test_stored_width_is_little_more_than_asked(tokens):
    assert tokens <= stored_width(tokens) <= tokens + max(15, tokens // 8)
    assert stored_width(stored_width(tokens)) == stored_width(tokens)
