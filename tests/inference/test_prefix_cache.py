"""Turns of a conversation: the keys and values of one serve the next."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch

from strop.inference.native import engine as native_engine
from strop.inference.native.prefix_cache import CachedTokens, PrefixCache
from strop.types import Completion, IntArray, SampleRequest, SamplingParams
from tests.inference.helpers import (
    assert_close,
    assert_sampled_by,
    random_prompts,
    requests_for,
    sample,
    scaled,
)

SAMPLING = SamplingParams(max_tokens=12, ignore_eos=True)


def first_turns(samples: int = 2) -> list[SampleRequest]:
    requests = requests_for(random_prompts(9, 30, 17), SAMPLING, samples=samples)
    return [replace(request, may_continue=True) for request in requests]


def next_turn(request: SampleRequest, completion: Completion, new: IntArray) -> SampleRequest:
    """A request that continues the tokens of another one."""
    prompt = np.concatenate([request.prompt_ids, completion.token_ids, new])
    return replace(request, prompt_ids=prompt, seed=request.seed + 1)


def next_turns(requests, completions) -> list[SampleRequest]:
    new = random_prompts(*range(1, len(requests) + 1), seed=7)
    return [next_turn(*turn) for turn in zip(requests, completions, new, strict=True)]


@pytest.mark.parametrize(
    ("family", "sizes"),
    [("qwen2", {}), ("qwen3", {}), ("llama", {}), ("mistral", {}), ("mistral", {"sliding_window": 8})],
)
def test_further_turns_compute_their_new_tokens_only(tiny, family, sizes):
    model = tiny(family, **sizes)
    engine, requests, new_tokens = model.engine(), first_turns(), 9 + 30 + 17
    for _ in range(4):
        completions = sample(engine, requests)
        statistics = engine.take_statistics()
        assert statistics.prompt_tokens == sum(len(request.prompt_ids) for request in requests)
        assert statistics.prompt_tokens - statistics.cached_prompt_tokens == new_tokens
        assert_sampled_by(model.model, requests, completions)
        assert_close(completions, sample(model.engine(), requests))
        before, requests = requests, next_turns(requests, completions)
        # The last token of a completion has not gone through the model.
        known = sum(len(request.prompt_ids) + SAMPLING.max_tokens - 1 for request in before)
        new_tokens = sum(len(request.prompt_ids) for request in requests) - known


def test_a_prompt_that_begins_alike_uses_the_tokens_that_are_equal(tiny):
    engine, (request, *_) = tiny().engine(), first_turns()
    (completion,) = sample(engine, [request])
    other = next_turn(request, completion, random_prompts(5)[0])
    other.prompt_ids[len(request.prompt_ids) + 3] += 1
    engine.take_statistics()
    answers = sample(engine, [other])
    assert engine.take_statistics().cached_prompt_tokens == len(request.prompt_ids) + 3
    assert_close(answers, sample(tiny().engine(), [other]))
    # The same prompt again: its last token goes through the model.
    assert_close(sample(engine, [other]), sample(tiny().engine(), [other]))
    assert engine.take_statistics().cached_prompt_tokens == len(other.prompt_ids) - 1


def test_nothing_is_kept_of_a_request_that_nothing_continues(tiny):
    engine = tiny().engine()
    requests = [replace(request, may_continue=False) for request in first_turns()]
    sample(engine, requests)
    assert engine._scheduler.prefixes.tokens == 0


def test_new_weights_drop_what_the_old_ones_computed(tiny):
    model, engine = tiny(), tiny().engine()
    requests = first_turns()
    completions = sample(engine, requests)
    assert engine._scheduler.prefixes.tokens > 0
    changed = scaled(model.model, 1.1)
    engine.load(changed.state_dict().items(), version=1)
    turns = next_turns(requests, completions)
    assert_sampled_by(changed, turns, sample(engine, turns))

    async def load_within_a_completion() -> None:
        first = asyncio.create_task(engine.sample(requests))
        await asyncio.sleep(0)
        while engine.stats.running == 0:
            await asyncio.sleep(0)
        engine.load(model.model.state_dict().items(), version=2)
        await first

    asyncio.run(load_within_a_completion())
    assert engine._scheduler.prefixes.tokens == 0


def test_kept_tokens_leave_the_running_requests_their_room(tiny):
    engine = tiny().engine(kv_cache_tokens=160)
    scheduler, runner, used = engine._scheduler, engine._runner, []

    async def converse(request: SampleRequest) -> None:
        for _ in range(3):
            (completion,) = await engine.sample([request])
            request = next_turn(request, completion, random_prompts(4)[0])

    async def main() -> None:
        turns = [asyncio.create_task(converse(request)) for request in first_turns()[:4]]
        while not all(turn.done() for turn in turns):
            await asyncio.sleep(0)
            stored = sum(store.count * store.width for store in (runner._own, runner._prompts))
            used.append((scheduler.prefixes.tokens, stored + scheduler.prefixes.tokens))
        await asyncio.gather(*turns)

    asyncio.run(main())
    assert max(total for _, total in used) <= 160
    assert max(kept for kept, _ in used) > 0


def test_an_idle_engine_drops_what_it_keeps(tiny, monkeypatch):
    monkeypatch.setattr(native_engine, "_IDLE_SECONDS", 0.01)
    engine, requests = tiny().engine(), first_turns()

    async def main() -> None:
        completions = await engine.sample(requests)
        while engine._scheduler.prefixes.tokens:
            await asyncio.sleep(0.01)
        turns = next_turns(requests, completions)
        assert_close(await engine.sample(turns), await tiny().engine().sample(turns))

    asyncio.run(main())


def test_a_release_of_memory_drops_what_is_kept(tiny):
    engine = tiny().engine()
    sample(engine, first_turns())
    assert engine._scheduler.prefixes.tokens > 0
    engine.release_memory()
    assert engine._scheduler.prefixes.tokens == 0


def test_the_oldest_conversation_is_dropped_first():
    cache = PrefixCache()
    for name, tokens in (("a", 3), ("b", 4), ("a", 5), ("c", 2)):
        cache.put(name, CachedTokens(np.arange(tokens, dtype=np.int32), torch.zeros(1, 2, 1, tokens, 4)))
    assert cache.tokens == 11
    cache.shrink(10)
    assert cache.tokens == 7
    request = SampleRequest("a", np.array([0, 1, 2, 9], np.int32), SAMPLING, seed=0)
    assert cache.take_prompt(request).cached_tokens == 3
    assert cache.take_prompt(request).cached_tokens == 0
    assert cache.take_prompt(replace(request, id="b")).cached_tokens == 0
    # Its log-probs are asked for, so that all of the prompt goes through the model.
    scored = replace(request, id="c", prompt_logprobs=True, top_logprobs=2)
    assert (cache.take_prompt(scored).cached_tokens, cache.take_prompt(scored).top_logprobs) == (0, 2)
    assert cache.tokens == 2
