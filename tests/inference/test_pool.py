"""Engines that are processes of their own answer as one engine does, whatever befalls them."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from strop.config.schema.rollout import NativeEngine as NativeSection
from strop.errors import EngineLost, InferenceError, ModelError
from strop.inference.native import NativeEngine
from strop.inference.pool import EnginePool, Wanted
from strop.models.tiny import make_model
from strop.types import Completion, SampleRequest, Sampling
from strop.workers.start import Local

from .helpers import random_prompts, requests_for, same, sample

SAMPLING = Sampling(temperature=1.0, max_tokens=24, ignore_eos=True)


@dataclass(frozen=True)
class Make:
    """The engine of a model folder."""

    folder: Path

    def __call__(self) -> NativeEngine:
        torch.set_num_threads(1)
        model = AutoModelForCausalLM.from_pretrained(self.folder)
        tokenizer = AutoTokenizer.from_pretrained(self.folder)
        return NativeEngine.from_model(model, NativeSection(kv_cache_tokens=4096), tokenizer)


@dataclass(frozen=True)
class Broken:
    """What cannot be made."""

    error: Exception

    def __call__(self) -> NativeEngine:
        raise self.error


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_model(tmp_path_factory.mktemp("pool") / "model", ["two and two is four"], vocab_size=300)
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(5)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def alone(folder: Path) -> NativeEngine:
    return Make(folder)()


@pytest.fixture(scope="module")
def pool(folder: Path) -> Iterator[EnginePool]:
    wanted = [Wanted(f"engine-{number}", Make(folder)) for number in range(2)]
    with closing(EnginePool(wanted, Local(), max_restarts=2)) as pool:
        yield pool


def agree(first: Completion, second: Completion) -> None:
    """The same draws; what goes through the model side by side may change a rounding."""
    np.testing.assert_array_equal(first.token_ids, second.token_ids)
    np.testing.assert_allclose(first.sampler_logprobs, second.sampler_logprobs, atol=2e-5)
    np.testing.assert_allclose(first.policy_logprobs, second.policy_logprobs, atol=2e-5)
    assert (first.finish, first.version) == (second.finish, second.version)


def ask(pool: EnginePool, requests: list[SampleRequest]) -> list[Completion]:
    """As workflows ask: each by itself, all at once."""

    async def all_at_once() -> list[Completion]:
        answers = await asyncio.gather(*(pool.sample([request]) for request in requests))
        return [completion for answer in answers for completion in answer]

    return asyncio.run(all_at_once())


def kill_soon(pool: EnginePool, number: int, seconds: float) -> threading.Thread:
    """SIGKILL one engine in the middle of its work."""
    pid = pool._members[number]._worker.pid

    def kill() -> None:
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    return thread


def test_two_engines_give_what_one_gives_each_group_on_one_of_them(pool, alone):
    requests = requests_for(random_prompts(5, 9, 14, 7, 5), SAMPLING, samples=6)
    dealt: dict[bytes, set[str]] = {}
    choose = pool._choose

    def watched(ticket):
        member = choose(ticket)
        dealt.setdefault(ticket.request.prompt_ids.tobytes(), set()).add(member.name)
        return member

    pool._choose = watched
    try:
        first = ask(pool, requests)
    finally:
        del pool._choose
    assert all(len(names) == 1 for names in dealt.values())
    names = [name for names in dealt.values() for name in names]
    assert sorted(map(names.count, set(names))) == [2, 3]
    for mine, theirs in zip(first, sample(alone, requests), strict=True):
        agree(mine, theirs)
    again = ask(pool, requests)
    assert all(map(same, first, again)), "the same requests at once: bit for bit"
    assert not pool._of and not pool._at and not any(pool._loads.values())


def test_new_weights_reach_all_and_a_version_stays_with_what_began_under_it(pool, alone, folder):
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.9)
    requests = requests_for(random_prompts(6, 8, 11, 7), SAMPLING, samples=3)
    before = ask(pool, requests)
    for engine in (pool, alone):
        engine.load(model.named_parameters(), 7)
    after = ask(pool, requests)
    for mine, theirs in zip(after, sample(alone, requests), strict=True):
        agree(mine, theirs)
    assert {completion.version for completion in after} == {7}
    assert any(not np.array_equal(a.token_ids, b.token_ids) for a, b in zip(before, after, strict=True))


def test_what_cannot_be_taken_is_said_and_the_others_are_answered(pool):
    good, bad = requests_for(random_prompts(5, 6), SAMPLING)
    bad = SampleRequest("bad", bad.prompt_ids + 10_000, SAMPLING, 1)

    async def both():
        return await asyncio.gather(pool.sample([bad]), pool.sample([good]), return_exceptions=True)

    error, (completion,) = asyncio.run(both())
    assert isinstance(error, InferenceError) and "request 'bad'" in str(error)
    assert len(completion.token_ids) == 24


def test_what_nobody_waits_for_is_forgotten_and_a_pause_holds(pool):
    (request,) = requests_for(random_prompts(5), SAMPLING)

    async def given_up():
        pool.pause()
        asked = asyncio.create_task(pool.sample([request]))
        done, _ = await asyncio.wait([asked], timeout=0.3)
        assert not done, "a paused engine draws nothing"
        asked.cancel()
        await asyncio.wait([asked])
        assert asked.cancelled() and not any(member._owed for member in pool._members)
        pool.resume()
        return await pool.sample([request])

    (completion,) = asyncio.run(given_up())
    assert len(completion.token_ids) == 24


def test_a_killed_engine_is_replaced_and_nothing_is_lost(pool, caplog):
    sampling = Sampling(temperature=1.0, max_tokens=400, ignore_eos=True)
    requests = requests_for(random_prompts(5, 9, 14, 7), sampling, samples=2)
    calm = ask(pool, requests)
    killing = kill_soon(pool, 1, seconds=0.1)
    disturbed = ask(pool, requests)
    killing.join()
    assert all(map(same, calm, disturbed))
    (record,) = caplog.records
    said = record.getMessage()
    assert (
        said.startswith("engine-1 ended by signal 9 (Killed). It is started again")
        and "(1 of 2 times)" in said
    )


def test_one_that_dies_too_often_is_given_up_with_a_clear_word(folder):
    with closing(EnginePool([Wanted("engine-0", Make(folder))], Local(), max_restarts=0)) as pool:
        pool.pause()
        (request,) = requests_for(random_prompts(5), SAMPLING)
        killing = kill_soon(pool, 0, seconds=0.1)
        with pytest.raises(
            EngineLost, match=r"^engine-0 ended by signal 9 .* not started again: .*max_restarts is 0"
        ):
            ask(pool, [request])
        killing.join()
        with pytest.raises(EngineLost, match="not started again"):
            ask(pool, [request])
        with pytest.raises(EngineLost, match="not started again"):
            pool.load([], 1)


def test_what_fails_in_an_engine_is_raised_here():
    broken = [Wanted("engine-0", Broken(ValueError("what is this?")))]
    with pytest.raises(InferenceError, match=r"(?s)^engine-0 failed:\n.*ValueError: what is this\?"):
        EnginePool(broken, Local(), max_restarts=1)


def test_weights_of_another_model_are_refused(folder):
    pool = EnginePool([Wanted("engine-0", Make(folder))], Local(), max_restarts=1)
    with closing(pool), pytest.raises(ModelError, match="no weight 'nonsense'"):
        pool.load([("nonsense", torch.zeros(1))], 1)
