"""Concurrent calls, cancellation, pause, memory release and validation of the native engine."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch

from strop.errors import InferenceError
from strop.types import SampleRequest, SamplingParams
from tests.inference.helpers import random_prompts, requests_for, same, sample

PROMPTS = random_prompts(5, 11, 8, 20)
REQUESTS = requests_for(PROMPTS, SamplingParams(max_tokens=24, ignore_eos=True), samples=3)


def test_no_requests_no_completions(tiny):
    assert sample(tiny().engine(), []) == []


def test_concurrent_calls_are_batched(tiny):
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

    separate = asyncio.run(main())
    assert largest == len(REQUESTS)
    together = sample(tiny().engine(), REQUESTS)
    assert all(same(one, other) for one, other in zip(together, separate, strict=True))


def test_an_engine_serves_one_event_loop_after_another(tiny):
    engine = tiny().engine()
    first, second = sample(engine, REQUESTS), sample(engine, REQUESTS)
    assert all(same(one, other) for one, other in zip(first, second, strict=True))


def test_a_cancelled_call_is_removed_and_others_continue(tiny):
    engine = tiny().engine(max_sequences=8)

    async def main():
        cancelled = asyncio.create_task(engine.sample(REQUESTS[:6]))
        kept = asyncio.create_task(engine.sample(REQUESTS[6:]))
        for _ in range(6):
            await asyncio.sleep(0)
        assert engine.stats.running == 8 and engine.stats.waiting == 4
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert engine.stats.running + engine.stats.waiting == 6
        return await kept

    kept = asyncio.run(main())
    for completion, expected in zip(kept, sample(tiny().engine(), REQUESTS[6:]), strict=True):
        assert completion.token_ids.tolist() == expected.token_ids.tolist()
    assert engine.stats.running == engine.stats.waiting == 0


def test_the_engine_stays_usable_after_its_event_loop_ended_early(tiny):
    engine = tiny().engine()

    async def impatient() -> None:
        await asyncio.wait_for(engine.sample(REQUESTS), timeout=0)

    with pytest.raises(TimeoutError):
        asyncio.run(impatient())
    assert engine.stats.running == engine.stats.waiting == 0
    expected = sample(tiny().engine(), REQUESTS)
    assert all(same(one, other) for one, other in zip(sample(engine, REQUESTS), expected, strict=True))


def test_resume_continues_paused_completions(tiny):
    engine = tiny().engine()

    async def main():
        call = asyncio.create_task(engine.sample(REQUESTS))
        for _ in range(5):
            await asyncio.sleep(0)
        engine.pause()
        generated = engine.stats.generated_tokens
        for _ in range(20):
            await asyncio.sleep(0)
        assert engine.stats.generated_tokens <= generated + len(REQUESTS) and not call.done()
        generated = engine.stats.generated_tokens
        await asyncio.sleep(0.01)
        assert engine.stats.generated_tokens == generated
        engine.resume()
        return await call

    expected = sample(tiny().engine(), REQUESTS)
    assert all(same(one, other) for one, other in zip(asyncio.run(main()), expected, strict=True))


def test_a_paused_engine_accepts_requests(tiny):
    engine = tiny().engine()

    async def main():
        engine.pause()
        call = asyncio.create_task(engine.sample(REQUESTS))
        await asyncio.sleep(0.01)
        assert engine.stats.waiting == len(REQUESTS) and engine.stats.generated_tokens == 0
        engine.resume()
        return await call

    assert len(asyncio.run(main())) == len(REQUESTS)


def test_an_error_of_the_model_is_raised_in_all_calls(tiny, monkeypatch):
    engine = tiny().engine()
    decode = engine._runner.decode
    monkeypatch.setattr(engine._runner, "decode", lambda tokens: 1 / 0)

    async def main():
        calls = [engine.sample(REQUESTS[:3]), engine.sample(REQUESTS[3:])]
        return await asyncio.gather(*calls, return_exceptions=True)

    assert all(isinstance(error, ZeroDivisionError) for error in asyncio.run(main()))
    monkeypatch.setattr(engine._runner, "decode", decode)
    expected = sample(tiny().engine(), REQUESTS)
    assert all(same(one, other) for one, other in zip(sample(engine, REQUESTS), expected, strict=True))


def test_stats_count_tokens(tiny):
    engine = tiny().engine()
    sample(engine, REQUESTS)
    stats = engine.stats
    assert (stats.generated_tokens, stats.prompt_tokens) == (24 * len(REQUESTS), sum(map(len, PROMPTS)))


def test_completions_have_the_version_and_array_types(tiny):
    engine = tiny().engine()
    engine.load([], version=7)
    completion = sample(engine, REQUESTS[:1])[0]
    assert completion.version == 7
    assert completion.token_ids.dtype == np.int32
    assert completion.sampler_logprobs.dtype == completion.policy_logprobs.dtype == np.float32


INVALID = {
    "an empty prompt": (np.array([], np.int32), {}, "must be a list of one token or more"),
    "an unknown token": (
        np.array([3, 5000], np.int32),
        {},
        "has token 5000, but the model's tokens are 0 to",
    ),
    "a negative token": (np.array([3, -1], np.int32), {}, "has token -1"),
    "temperature": (PROMPTS[0], {"temperature": -1.0}, "temperature is -1.0; it must be 0"),
    "top_p": (PROMPTS[0], {"top_p": 0.0}, "top_p is 0.0"),
    "top_k": (PROMPTS[0], {"top_k": -1}, "top_k is -1"),
    "min_p": (PROMPTS[0], {"min_p": 1.0}, "min_p is 1.0"),
    "repetition penalty": (PROMPTS[0], {"repetition_penalty": 0.0}, "repetition_penalty is 0.0"),
    "max_tokens": (PROMPTS[0], {"max_tokens": 0}, "max_tokens is 0"),
    "min_tokens": (
        PROMPTS[0],
        {"min_tokens": 24},
        "min_tokens is 24; it must be 0 or more and below max_tokens",
    ),
    "an empty stop": (PROMPTS[0], {"stop": ("a", "")}, "strings that are not empty"),
}


@pytest.mark.parametrize("case", INVALID)
def test_invalid_requests_are_rejected_with_a_reason(tiny, case):
    prompt, changes, message = INVALID[case]
    sampling = replace(SamplingParams(max_tokens=24), **changes)
    engine = tiny().engine()
    with pytest.raises(InferenceError, match="request 'bad'") as caught:
        sample(engine, [REQUESTS[0], SampleRequest("bad", prompt, sampling, seed=0)])
    assert message in str(caught.value)
    assert engine.stats.waiting == 0, "no request of the call is added"


def test_a_negative_seed_is_rejected(tiny):
    with pytest.raises(InferenceError, match="the seed is -1"):
        sample(tiny().engine(), [replace(REQUESTS[0], seed=-1)])


def test_load_from_another_thread_takes_effect_between_two_steps(tiny):
    engine = tiny().engine()

    async def main():
        call = asyncio.create_task(engine.sample(REQUESTS))
        for _ in range(4):
            await asyncio.sleep(0)
        await asyncio.to_thread(engine.load, [], 3)
        later = await engine.sample(REQUESTS[:1])
        return await call, later

    first, later = asyncio.run(main())
    expected = sample(tiny().engine(), REQUESTS)
    assert all(same(one, other) for one, other in zip(first, expected, strict=True))
    assert {completion.version for completion in first} == {0} and later[0].version == 3


def test_requests_need_weights_after_a_release_of_copied_weights(tiny):
    model = tiny()
    engine = model.engine(dtype=torch.bfloat16)
    expected = sample(engine, REQUESTS)
    engine.release_memory()
    engine.restore_memory()
    with pytest.raises(InferenceError, match="no weights since release_memory; call load"):
        sample(engine, REQUESTS)
    engine.load(model.model.named_parameters(), 1)
    for one, other in zip(sample(engine, REQUESTS), expected, strict=True):
        assert same(replace(one, version=0), other)
    assert " 0 % of the weights used in place" in engine.describe()


def test_shared_weights_are_not_released(tiny):
    model = tiny("gemma")
    engine = model.engine()
    expected = sample(engine, REQUESTS)
    engine.release_memory()
    engine.restore_memory()
    assert all(same(one, other) for one, other in zip(sample(engine, REQUESTS), expected, strict=True))
