"""Loads of weights while completions are running: what each pause mode does with them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from strop.errors import InferenceError
from strop.inference.completion import StopStringMatcher
from strop.inference.interruptible_sampler import InterruptibleSampler, continuation, joined
from strop.types import Completion, FinishReason, SampleRequest, SamplingParams
from strop.workers.threads import EventLoopThread
from strop.workers.waiting import never_stop, wait_until
from tests.inference.helpers import LIMIT, Letters

MATCHER = StopStringMatcher(Letters())  # type: ignore[arg-type]


def part_of(tokens: Sequence[int], version: int, finish: FinishReason) -> Completion:
    logprobs = -np.asarray(tokens, dtype=np.float32)
    return Completion(np.asarray(tokens, dtype=np.int32), logprobs, logprobs, finish, version)


def request_for(**sampling: Any) -> SampleRequest:
    return SampleRequest("r", np.array([7, 8], dtype=np.int32), SamplingParams(**sampling), seed=5)


def test_the_joined_completion_has_the_log_probs_of_the_requests_own_prompt():
    """A separate explorer's check of every load reads them."""
    request = replace(request_for(max_tokens=3), prompt_logprobs=True)
    given = np.array([-1.5], dtype=np.float32)
    whole = replace(part_of([9], 1, "length"), prompt_logprobs=given)
    assert joined(request, [whole], MATCHER).prompt_logprobs is given
    assert joined(request, [part_of([], 1, "abort"), whole], MATCHER).prompt_logprobs is given
    begun = replace(part_of([9], 1, "abort"), prompt_logprobs=given)
    assert joined(request, [begun, part_of([10, 11], 2, "length")], MATCHER).prompt_logprobs is given
    assert not continuation(request, begun.token_ids).prompt_logprobs, "its prompt is another one"


class Engine:
    """Samples one token more than the last token of the prompt, whenever the test lets it."""

    def __init__(self) -> None:
        self.version = 0
        self.calls: list[str] = []
        self.running: dict[asyncio.Future[Completion], tuple[SampleRequest, list[int], int]] = {}
        """Request, tokens and version of the start of each running completion."""

    async def sample(self, requests: list[SampleRequest]) -> list[Completion]:
        futures = []
        for request in requests:
            future = asyncio.get_running_loop().create_future()
            self.running[future] = (request, [], self.version)
            futures.append(future)
        return list(await asyncio.gather(*futures))

    def step(self) -> None:
        """Sample one token for each running request, in the event loop."""
        for future, (request, tokens, version) in list(self.running.items()):
            tokens.append(int([*request.prompt_ids, *tokens][-1]) + 1)
            if len(tokens) == request.sampling.max_tokens:
                future.set_result(part_of(tokens, version, "length"))
                del self.running[future]

    def abort(self) -> None:
        self.calls.append("abort")
        for future, (_, tokens, version) in list(self.running.items()):
            completion = part_of(tokens, version, "abort")
            future.get_loop().call_soon_threadsafe(future.set_result, completion)
        self.running.clear()

    def pause(self) -> None:
        self.calls.append("pause")

    def resume(self) -> None:
        self.calls.append("resume")

    def load(self, weights: Any, version: int) -> None:
        self.calls.append("load")
        self.version = version


@pytest.fixture
def loop() -> Iterator[EventLoopThread]:
    loop = EventLoopThread("test")
    yield loop
    loop.close()


def sampler_of(engine: Any, loop: EventLoopThread, mode: Any, timeout: float = LIMIT) -> InterruptibleSampler:
    tokenizer: Any = Letters()
    return InterruptibleSampler(engine, loop, tokenizer, mode, timeout_seconds=timeout, check=never_stop)


def wait_for(condition: Callable[[], bool]) -> None:
    assert wait_until(condition, "the sampler", timeout_seconds=LIMIT, interval_seconds=0.01)


def wait_for_running(engine: Engine, number: int) -> None:
    wait_for(lambda: len(engine.running) == number)


@pytest.mark.parametrize(
    ("mode", "versions", "prompts", "calls"),
    [
        ("keep", [0, 0, 0, 0], [2], ["pause", "load", "resume"]),
        ("abort", [0, 0, 1, 1], [2, 4], ["abort", "load"]),
        ("restart", [1, 1, 1, 1], [2, 2], ["abort", "load"]),
    ],
)
def test_a_running_completion_goes_on_or_begins_again(
    loop: EventLoopThread, mode: str, versions: list[int], prompts: list[int], calls: list[str]
):
    engine = Engine()
    sampler = sampler_of(engine, loop, mode)
    call = loop.submit(sampler.sample([request_for(max_tokens=4, min_tokens=3)]))
    wait_for_running(engine, 1)
    seen = [next(iter(engine.running.values()))[0]]
    for _ in range(2):
        loop.call(engine.step)
    sampler.load([], 1)
    wait_for_running(engine, 1)
    seen.append(next(iter(engine.running.values()))[0])
    while not call.done():
        loop.call(engine.step)
    (completion,) = call.result(LIMIT)
    assert completion.token_ids.tolist() == [9, 10, 11, 12]
    assert completion.finish_reason == "length"
    found = completion.token_versions
    assert (found.tolist() if found is not None else [completion.version] * 4) == versions
    assert [len(request.prompt_ids) for request in seen][: len(prompts)] == prompts
    assert engine.calls == calls


def test_finish_waits_for_running_completions_and_holds_new_ones(loop: EventLoopThread):
    engine = Engine()
    sampler = sampler_of(engine, loop, "finish")
    call = loop.submit(sampler.sample([request_for(max_tokens=2)]))
    wait_for_running(engine, 1)
    other = EventLoopThread("loader")
    try:
        load = other.submit(asyncio.to_thread(sampler.load, [], 1))
        wait_for(lambda: not sampler._admitting.is_set())
        late = loop.submit(sampler.sample([request_for(max_tokens=1)]))
        for _ in range(2):
            loop.call(engine.step)
        load.result(LIMIT)
    finally:
        other.close()
    assert call.result(LIMIT)[0].version == 0
    wait_for_running(engine, 1)
    loop.call(engine.step)
    assert late.result(LIMIT)[0].version == 1
    assert engine.calls == ["load"]


def test_finish_gives_up_after_the_timeout(loop: EventLoopThread):
    engine = Engine()
    sampler = sampler_of(engine, loop, "finish", timeout=0.02)
    loop.submit(sampler.sample([request_for(max_tokens=2)]))
    wait_for_running(engine, 1)
    with pytest.raises(InferenceError, match=r"pause_mode: finish.*synchronizer.timeout_seconds"):
        sampler.load([], 1)


def test_after_a_failed_load_nothing_is_passed_to_the_engine_until_the_next(
    loop: EventLoopThread,
):
    engine = Engine()
    sampler = sampler_of(engine, loop, "keep")

    def broken() -> Iterator[Any]:
        raise InferenceError("lost")
        yield

    engine.load = lambda weights, version: list(weights)  # type: ignore[method-assign,assignment,return-value]
    with pytest.raises(InferenceError, match="lost"):
        sampler.load(broken(), 1)
    assert engine.calls == ["pause"]
    call = loop.submit(sampler.sample([request_for(max_tokens=1)]))
    loop.call(lambda: None)
    assert not engine.running
    sampler.load([], 2)
    wait_for_running(engine, 1)
    loop.call(engine.step)
    assert call.result(LIMIT)[0].token_ids.tolist() == [9]


def test_a_continuation_has_what_remains_and_a_seed_of_its_own():
    request = request_for(max_tokens=6, min_tokens=2, temperature=0.5)
    rest = continuation(request, np.array([1, 2, 3], dtype=np.int32))
    assert rest.prompt_ids.tolist() == [7, 8, 1, 2, 3]
    assert (rest.sampling.max_tokens, rest.sampling.min_tokens, rest.sampling.temperature) == (3, 0, 0.5)
    assert rest.seed != request.seed
    assert continuation(request, np.zeros(0, dtype=np.int32)) is request
    with pytest.raises(ValueError, match="6 of 6"):
        continuation(request, np.arange(6, dtype=np.int32))


def test_a_stop_string_over_two_parts_ends_the_completion():
    parts = [part_of([0, 1], 0, "abort"), part_of([2, 3, 1], 1, "length")]  # ab, cdb
    whole = joined(request_for(max_tokens=5, stop=("bc",)), parts, MATCHER)
    assert whole.token_ids.tolist() == [0, 1, 2] and whole.finish_reason == "stop"
    assert whole.token_versions is not None and whole.token_versions.tolist() == [0, 0, 1]
    assert whole.sampler_logprobs.tolist() == [0, -1, -2]
    late = joined(request_for(max_tokens=5, stop=("bc",), min_tokens=3), parts, MATCHER)
    assert late.token_ids.tolist() == [0, 1, 2, 3, 1] and late.finish_reason == "length"


def test_parts_without_policy_logprobs_or_tokens_are_joined():
    first = Completion(np.array([4], dtype=np.int32), np.array([-1.0], dtype=np.float32), None, "abort", 2)
    parts = [part_of([], 1, "abort"), first, part_of([5], 3, "stop")]
    whole = joined(request_for(max_tokens=5), parts, MATCHER)
    assert whole.token_ids.tolist() == [4, 5] and whole.policy_logprobs is None
    assert whole.version == 2 and whole.finish_reason == "stop"
