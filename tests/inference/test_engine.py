"""The engine as a server of concurrent calls."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from strop.errors import InferenceError
from strop.types import SampleRequest, Sampling
from tests.inference.helpers import random_prompts, requests_for, same, sample

PROMPTS = random_prompts(5, 11, 8, 20)
REQUESTS = requests_for(PROMPTS, Sampling(max_tokens=24, ignore_eos=True), samples=3)


def test_nothing_asked_nothing_answered(tiny):
    assert sample(tiny().engine(), []) == []


def test_concurrent_calls_go_through_the_model_together(tiny):
    engine = tiny().engine()
    most = 0

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, engine.stats.rows)
            await asyncio.sleep(0)

    async def main():
        watching = asyncio.create_task(watch())
        answers = await asyncio.gather(*(engine.sample([request]) for request in REQUESTS))
        watching.cancel()
        return [answer[0] for answer in answers]

    apart = asyncio.run(main())
    assert most == len(REQUESTS)
    together = sample(tiny().engine(), REQUESTS)
    assert all(same(one, other) for one, other in zip(together, apart, strict=True))


def test_an_engine_serves_one_event_loop_after_another(tiny):
    engine = tiny().engine()
    first, second = sample(engine, REQUESTS), sample(engine, REQUESTS)
    assert all(same(one, other) for one, other in zip(first, second, strict=True))


def test_a_cancelled_call_leaves_and_the_others_stay(tiny):
    engine = tiny().engine(max_sequences=8)

    async def main():
        gone = asyncio.create_task(engine.sample(REQUESTS[:6]))
        kept = asyncio.create_task(engine.sample(REQUESTS[6:]))
        for _ in range(6):
            await asyncio.sleep(0)
        assert engine.stats.rows == 8 and engine.stats.waiting == 4
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        assert engine.stats.rows + engine.stats.waiting == 6
        return await kept

    kept = asyncio.run(main())
    for answer, expected in zip(kept, sample(tiny().engine(), REQUESTS[6:]), strict=True):
        assert answer.token_ids.tolist() == expected.token_ids.tolist()
    assert engine.stats.rows == engine.stats.waiting == 0


def test_a_loop_that_ends_in_the_middle_leaves_a_usable_engine(tiny):
    engine = tiny().engine()

    async def impatient() -> None:
        await asyncio.wait_for(engine.sample(REQUESTS), timeout=0)

    with pytest.raises(TimeoutError):
        asyncio.run(impatient())
    assert engine.stats.rows == engine.stats.waiting == 0
    expected = sample(tiny().engine(), REQUESTS)
    assert all(same(one, other) for one, other in zip(sample(engine, REQUESTS), expected, strict=True))


def test_pause_keeps_the_state_and_resume_goes_on(tiny):
    engine = tiny().engine()

    async def main():
        answers = asyncio.create_task(engine.sample(REQUESTS))
        for _ in range(5):
            await asyncio.sleep(0)
        engine.pause()
        drawn = engine.stats.tokens
        for _ in range(20):
            await asyncio.sleep(0)
        assert engine.stats.tokens <= drawn + len(REQUESTS) and not answers.done()
        drawn = engine.stats.tokens
        await asyncio.sleep(0.01)
        assert engine.stats.tokens == drawn
        engine.resume()
        return await answers

    expected = sample(tiny().engine(), REQUESTS)
    assert all(same(one, other) for one, other in zip(asyncio.run(main()), expected, strict=True))


def test_a_paused_engine_takes_requests_and_waits(tiny):
    engine = tiny().engine()

    async def main():
        engine.pause()
        answers = asyncio.create_task(engine.sample(REQUESTS))
        await asyncio.sleep(0.01)
        assert engine.stats.waiting == len(REQUESTS) and engine.stats.tokens == 0
        engine.resume()
        return await answers

    assert len(asyncio.run(main())) == len(REQUESTS)


def test_when_the_model_breaks_every_caller_hears_of_it(tiny, monkeypatch):
    engine = tiny().engine()
    working = engine._runner.decode
    monkeypatch.setattr(engine._runner, "decode", lambda tokens: 1 / 0)

    async def main():
        calls = [engine.sample(REQUESTS[:3]), engine.sample(REQUESTS[3:])]
        return await asyncio.gather(*calls, return_exceptions=True)

    assert all(isinstance(error, ZeroDivisionError) for error in asyncio.run(main()))
    monkeypatch.setattr(engine._runner, "decode", working)
    expected = sample(tiny().engine(), REQUESTS)
    assert all(same(one, other) for one, other in zip(sample(engine, REQUESTS), expected, strict=True))


def test_stats_count_what_was_drawn(tiny):
    engine = tiny().engine()
    sample(engine, REQUESTS)
    stats = engine.stats
    assert (stats.tokens, stats.prompt_tokens) == (24 * len(REQUESTS), sum(map(len, PROMPTS)))


def test_completions_carry_the_version_and_arrays_of_the_right_kind(tiny):
    engine = tiny().engine()
    engine.load([], version=7)
    completion = sample(engine, REQUESTS[:1])[0]
    assert completion.version == 7
    assert completion.token_ids.dtype == np.int32
    assert completion.sampler_logprobs.dtype == completion.policy_logprobs.dtype == np.float32


WRONG = {
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
    "an empty stop": (PROMPTS[0], {"stop": ("a", "")}, "texts that are not empty"),
}


@pytest.mark.parametrize("case", WRONG)
def test_bad_requests_are_refused_with_a_reason(tiny, case):
    prompt, changes, words = WRONG[case]
    sampling = replace(Sampling(max_tokens=24), **changes)
    engine = tiny().engine()
    with pytest.raises(InferenceError, match="request 'bad'") as caught:
        sample(engine, [REQUESTS[0], SampleRequest("bad", prompt, sampling, seed=0)])
    assert words in str(caught.value)
    assert engine.stats.waiting == 0, "none of the call's requests was taken"


def test_a_negative_seed_is_refused(tiny):
    with pytest.raises(InferenceError, match="the seed is -1"):
        sample(tiny().engine(), [replace(REQUESTS[0], seed=-1)])
