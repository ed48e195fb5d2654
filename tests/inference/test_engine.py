"""The native engine's batches, event loops, cancellation, checks and statistics; the contract has the rest."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch

from strop.errors import InferenceError
from strop.types import SampleRequest, SamplingParams
from tests.inference.helpers import assert_same, random_prompts, requests_for, sample

PROMPTS = random_prompts(5, 11, 8, 20)
REQUESTS = requests_for(PROMPTS, SamplingParams(max_tokens=24, ignore_eos=True), samples=3)


@pytest.fixture(scope="module")
def expected(tiny):
    return sample(tiny().engine(), REQUESTS)


async def steps(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


def test_concurrent_calls_are_batched(tiny, expected):
    engine = tiny().engine()
    largest = 0

    async def watch() -> None:
        nonlocal largest
        while True:
            largest = max(largest, engine.stats.running)
            await asyncio.sleep(0)

    async def main():
        watcher = asyncio.create_task(watch())
        calls = await asyncio.gather(*(engine.sample([request]) for request in REQUESTS))
        watcher.cancel()
        return [call[0] for call in calls]

    assert_same(asyncio.run(main()), expected)
    assert largest == len(REQUESTS)


def test_a_cancelled_call_is_removed_and_others_continue(tiny):
    engine = tiny().engine(max_sequences=8)

    async def main():
        cancelled = asyncio.create_task(engine.sample(REQUESTS[:6]))
        kept = asyncio.create_task(engine.sample(REQUESTS[6:]))
        await steps(6)
        assert engine.stats.running == 8 and engine.stats.waiting == 4
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert engine.stats.running + engine.stats.waiting == 6
        return await kept

    kept = asyncio.run(main())
    for completion, alone in zip(kept, sample(tiny().engine(), REQUESTS[6:]), strict=True):
        assert completion.token_ids.tolist() == alone.token_ids.tolist()
    assert engine.stats.running == engine.stats.waiting == 0


def test_the_engine_serves_other_event_loops_after_one_that_ended_early(tiny, expected):
    engine = tiny().engine()

    async def impatient() -> None:
        await asyncio.wait_for(engine.sample(REQUESTS), timeout=0)

    with pytest.raises(TimeoutError):
        asyncio.run(impatient())
    assert engine.stats.running == engine.stats.waiting == 0
    for _ in range(2):
        assert_same(sample(engine, REQUESTS), expected)


def test_a_paused_engine_takes_requests_and_no_steps(tiny, expected):
    engine = tiny().engine()

    async def main():
        engine.pause()
        call = asyncio.create_task(engine.sample(REQUESTS))
        await steps(20)
        assert engine.stats.waiting == len(REQUESTS) and engine.stats.generated_tokens == 0
        engine.resume()
        await steps(5)
        engine.pause()
        await steps(20)
        generated = engine.stats.generated_tokens
        assert 0 < generated < 24 * len(REQUESTS)
        await steps(20)
        assert engine.stats.generated_tokens == generated and not call.done()
        engine.resume()
        return await call

    assert_same(asyncio.run(main()), expected)


def test_an_error_of_the_model_is_raised_in_all_calls(tiny, expected, monkeypatch):
    engine = tiny().engine()

    async def main():
        calls = [engine.sample(REQUESTS[:3]), engine.sample(REQUESTS[3:])]
        return await asyncio.gather(*calls, return_exceptions=True)

    with monkeypatch.context() as patch:
        patch.setattr(engine._runner, "decode", lambda tokens: 1 / 0)
        assert all(isinstance(error, ZeroDivisionError) for error in asyncio.run(main()))
    assert_same(sample(engine, REQUESTS), expected)


def test_an_error_of_a_prefill_is_raised_in_the_calls_that_it_admitted(tiny, expected, monkeypatch):
    engine = tiny().engine()
    with monkeypatch.context() as patched:
        patched.setattr(engine._runner, "prefill", _fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            asyncio.run(asyncio.wait_for(engine.sample(REQUESTS), 60))
    assert engine.stats.running == engine.stats.waiting == 0
    assert_same(sample(engine, REQUESTS), expected)


def _fail(*arguments: object) -> None:
    raise RuntimeError("out of memory")


def test_completions_have_the_version_and_array_types(tiny):
    engine = tiny().engine()
    engine.load([], version=7)
    (completion,) = sample(engine, REQUESTS[:1])
    assert completion.version == 7
    assert completion.token_ids.dtype == np.int32
    assert completion.sampler_logprobs.dtype == completion.policy_logprobs.dtype == np.float32


INVALID = {
    "must be a list of one token or more": (np.array([], np.int32), {}),
    "has token 5000, but the model's tokens are 0 to": (np.array([3, 5000], np.int32), {}),
    "has token -1": (np.array([3, -1], np.int32), {}),
    "temperature is -1.0; it must be 0": (PROMPTS[0], {"temperature": -1.0}),
    "top_p is 0.0": (PROMPTS[0], {"top_p": 0.0}),
    "top_k is -1": (PROMPTS[0], {"top_k": -1}),
    "min_p is 1.0": (PROMPTS[0], {"min_p": 1.0}),
    "repetition_penalty is 0.0": (PROMPTS[0], {"repetition_penalty": 0.0}),
    "max_tokens is 0": (PROMPTS[0], {"max_tokens": 0}),
    "min_tokens is 24; it must be 0 or more and below max_tokens": (PROMPTS[0], {"min_tokens": 24}),
    "strings that are not empty": (PROMPTS[0], {"stop": ("a", "")}),
}


@pytest.mark.parametrize("message", INVALID)
def test_invalid_requests_are_rejected_with_a_reason(tiny, message):
    prompt, changes = INVALID[message]
    sampling = replace(SamplingParams(max_tokens=24), **changes)
    engine = tiny().engine()
    with pytest.raises(InferenceError, match="request 'bad'") as caught:
        sample(engine, [REQUESTS[0], SampleRequest("bad", prompt, sampling, seed=0)])
    assert message in str(caught.value)
    assert engine.stats.waiting == 0, "no request of the call is added"


def test_a_negative_seed_is_rejected(tiny):
    with pytest.raises(InferenceError, match="the seed is -1"):
        sample(tiny().engine(), [replace(REQUESTS[0], seed=-1)])


def test_load_from_another_thread_takes_effect_between_two_steps(tiny, expected):
    engine = tiny().engine()

    async def main():
        call = asyncio.create_task(engine.sample(REQUESTS))
        await steps(4)
        await asyncio.to_thread(engine.load, [], 3)
        return await engine.sample(REQUESTS[:1]), await call

    later, first = asyncio.run(main())
    assert_same(first, expected)
    assert {completion.version for completion in first} == {0} and later[0].version == 3


def test_requests_need_weights_after_a_release_of_copied_weights(tiny):
    model = tiny()
    engine = model.engine(dtype=torch.bfloat16)
    before = sample(engine, REQUESTS)
    engine.release_memory()
    engine.restore_memory()
    with pytest.raises(InferenceError, match="no weights since release_memory; call load"):
        sample(engine, REQUESTS)
    engine.load(model.model.named_parameters(), 1)
    assert_same(sample(engine, REQUESTS), before)
    assert " 0 % of the weights used in place" in engine.describe()


def test_shared_weights_are_not_released(tiny):
    engine = tiny("gemma").engine()
    before = sample(engine, REQUESTS)
    engine.release_memory()
    engine.restore_memory()
    assert_same(sample(engine, REQUESTS), before)


def test_the_load_is_added_up_until_it_is_taken(tiny):
    engine = tiny().engine(kv_cache_tokens=4096, max_sequences=3)
    requests = requests_for(random_prompts(10, 20), SamplingParams(max_tokens=4, ignore_eos=True), samples=2)
    sample(engine, requests)
    assert (engine.stats.generated_tokens, engine.stats.prompt_tokens) in ((16, 30), (16, 50))
    taken = engine.take_statistics()
    assert (taken.max_running, taken.max_waiting, taken.preemptions) == (3, 1, 0)
    # The first three requests have both prompts; the fourth finds the second prompt in the cache or computes it again.
    assert taken.prompt_tokens == 60 and taken.cached_prompt_tokens in (10, 30)
    assert taken.sampled_tokens == 16 and taken.busy_seconds > 0
    assert 0 < taken.max_kv_usage <= 1
    again = engine.take_statistics()
    assert (again.max_running, again.sampled_tokens, again.prompt_tokens) == (0, 0, 0)
