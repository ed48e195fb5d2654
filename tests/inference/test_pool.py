"""Pools of engine processes: same completions as one engine, load, pause, restarts and failures."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from strop.config.schema.inference_engine import NativeEngineConfig
from strop.errors import EngineLostError, InferenceError, ModelError
from strop.inference.native import NativeEngine
from strop.inference.pool import EnginePool, EngineSpec
from strop.inference.registry import running_engine
from strop.models.tiny import make_model
from strop.types import Completion, SampleRequest, SamplingParams
from strop.workers.start import LocalPlacement

from .helpers import random_prompts, requests_for, same, sample

SAMPLING = SamplingParams(temperature=1.0, max_tokens=24, ignore_eos=True)


@dataclass(frozen=True)
class NativeFactory:
    """Builds a native engine on a model folder."""

    folder: Path

    def __call__(self) -> NativeEngine:
        torch.set_num_threads(1)
        model = AutoModelForCausalLM.from_pretrained(self.folder)
        tokenizer = AutoTokenizer.from_pretrained(self.folder)
        return NativeEngine.from_model(model, NativeEngineConfig(kv_cache_tokens=4096), tokenizer)


@dataclass(frozen=True)
class FailingFactory:
    """Raises an error instead of building an engine."""

    error: Exception

    def __call__(self) -> NativeEngine:
        raise self.error


def pool_of(engines: int, factory: object, max_restarts: int) -> EnginePool:
    """A pool that has not been started."""
    specs = [EngineSpec(f"engine-{number}", factory) for number in range(engines)]
    return EnginePool(specs, LocalPlacement(), max_restarts=max_restarts)


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
def single(folder: Path) -> NativeEngine:
    return NativeFactory(folder)()


@pytest.fixture(scope="module")
def pool(folder: Path) -> Iterator[EnginePool]:
    with running_engine(pool_of(2, NativeFactory(folder), max_restarts=2)) as pool:
        yield pool


def assert_close(first: Completion, second: Completion) -> None:
    """Equal tokens; log-probs may differ by rounding, which depends on the batch."""
    np.testing.assert_array_equal(first.token_ids, second.token_ids)
    np.testing.assert_allclose(first.sampler_logprobs, second.sampler_logprobs, atol=2e-5)
    np.testing.assert_allclose(first.policy_logprobs, second.policy_logprobs, atol=2e-5)
    assert (first.finish_reason, first.version) == (second.finish_reason, second.version)


def sample_concurrently(pool: EnginePool, requests: list[SampleRequest]) -> list[Completion]:
    """One call for each request, all at once, as workflows call."""

    async def gather() -> list[Completion]:
        calls = await asyncio.gather(*(pool.sample([request]) for request in requests))
        return [completion for call in calls for completion in call]

    return asyncio.run(gather())


def kill_later(pool: EnginePool, number: int, seconds: float) -> threading.Thread:
    """Send SIGKILL to one engine while it works."""
    pid = pool._engines[number]._worker.pid

    def kill() -> None:
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    return thread


@pytest.mark.slow
def test_two_engines_equal_one_and_each_group_is_sampled_by_one_of_them(pool, single):
    requests = requests_for(random_prompts(5, 9, 14, 7, 5), SAMPLING, samples=6)
    engines_of_prompt: dict[bytes, set[str]] = {}
    choose = pool._choose

    def recording_choose(pending):
        engine = choose(pending)
        engines_of_prompt.setdefault(pending.request.prompt_ids.tobytes(), set()).add(engine.name)
        return engine

    pool._choose = recording_choose
    try:
        first = sample_concurrently(pool, requests)
    finally:
        del pool._choose
    assert all(len(names) == 1 for names in engines_of_prompt.values())
    names = [name for names in engines_of_prompt.values() for name in names]
    assert sorted(map(names.count, set(names))) == [2, 3]
    for from_pool, expected in zip(first, sample(single, requests), strict=True):
        assert_close(from_pool, expected)
    again = sample_concurrently(pool, requests)
    assert all(map(same, first, again)), "requests submitted together are reproducible bit for bit"
    assert not pool._assignments and not pool._engine_of_prompt and not any(pool._pending_count.values())


def test_load_reaches_all_engines_and_sets_the_version(pool, single, folder):
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.9)
    requests = requests_for(random_prompts(6, 8, 11, 7), SAMPLING, samples=3)
    before = sample_concurrently(pool, requests)
    for engine in (pool, single):
        engine.load(model.named_parameters(), 7)
    after = sample_concurrently(pool, requests)
    for from_pool, expected in zip(after, sample(single, requests), strict=True):
        assert_close(from_pool, expected)
    assert {completion.version for completion in after} == {7}
    assert any(not np.array_equal(a.token_ids, b.token_ids) for a, b in zip(before, after, strict=True))


def test_an_invalid_request_fails_alone(pool):
    valid, invalid = requests_for(random_prompts(5, 6), SAMPLING)
    invalid = SampleRequest("bad", invalid.prompt_ids + 10_000, SAMPLING, 1)

    async def both():
        return await asyncio.gather(pool.sample([invalid]), pool.sample([valid]), return_exceptions=True)

    error, (completion,) = asyncio.run(both())
    assert isinstance(error, InferenceError) and "request 'bad'" in str(error)
    assert len(completion.token_ids) == 24


def test_cancelled_requests_are_removed(pool):
    (request,) = requests_for(random_prompts(5), SAMPLING)

    async def cancel():
        pool.pause()
        call = asyncio.create_task(pool.sample([request]))
        done, _ = await asyncio.wait([call], timeout=0.3)
        assert not done, "a paused engine completes nothing"
        call.cancel()
        await asyncio.wait([call])
        assert call.cancelled() and not any(engine._pending for engine in pool._engines)
        pool.resume()
        return await pool.sample([request])

    (completion,) = asyncio.run(cancel())
    assert len(completion.token_ids) == 24


@pytest.mark.slow
def test_a_killed_engine_is_restarted_and_repeats_its_requests(pool, caplog):
    sampling = SamplingParams(temperature=1.0, max_tokens=400, ignore_eos=True)
    requests = requests_for(random_prompts(5, 9, 14, 7), sampling, samples=2)
    expected = sample_concurrently(pool, requests)
    killer = kill_later(pool, 1, seconds=0.1)
    completions = sample_concurrently(pool, requests)
    killer.join()
    assert all(map(same, expected, completions))
    (record,) = caplog.records
    message = record.getMessage()
    assert message.startswith("engine-1 ended by signal 9 (Killed). Restarting it")
    assert "(restart 1 of 2)" in message


@pytest.mark.slow
def test_a_restarted_engine_keeps_its_memory_released(folder):
    (request,) = requests_for(random_prompts(5), SAMPLING)
    with running_engine(pool_of(1, NativeFactory(folder), max_restarts=1)) as pool:
        model = AutoModelForCausalLM.from_pretrained(folder)
        pool.load(model.named_parameters(), 3)
        expected = sample_concurrently(pool, [request])
        pool.release_memory()
        kill_later(pool, 0, seconds=0.0).join()
        pool.restore_memory()
        pool.load(model.named_parameters(), 3)
        assert all(map(same, expected, sample_concurrently(pool, [request])))


@pytest.mark.slow
def test_an_engine_beyond_its_restarts_is_given_up(folder):
    with running_engine(pool_of(1, NativeFactory(folder), max_restarts=0)) as pool:
        pool.pause()
        (request,) = requests_for(random_prompts(5), SAMPLING)
        killer = kill_later(pool, 0, seconds=0.1)
        with pytest.raises(
            EngineLostError, match=r"^engine-0 ended by signal 9 .* is not restarted: .*max_restarts is 0"
        ):
            sample_concurrently(pool, [request])
        killer.join()
        with pytest.raises(EngineLostError, match="is not restarted"):
            sample_concurrently(pool, [request])
        with pytest.raises(EngineLostError, match="is not restarted"):
            pool.load([], 1)


@pytest.mark.slow
def test_an_error_of_a_factory_is_raised_by_start():
    pool = pool_of(1, FailingFactory(ValueError("no such engine")), max_restarts=1)
    with pytest.raises(InferenceError, match=r"(?s)^engine-0 failed:\n.*ValueError: no such engine"):
        pool.start()


@pytest.mark.slow
def test_weights_of_another_model_are_rejected(folder):
    pool = pool_of(1, NativeFactory(folder), max_restarts=1)
    with running_engine(pool), pytest.raises(ModelError, match="no weight 'nonsense'"):
        pool.load([("nonsense", torch.zeros(1))], 1)


def test_a_pool_must_be_started(folder):
    pool = pool_of(1, NativeFactory(folder), max_restarts=0)
    with pytest.raises(InferenceError, match="has not been started; call start first"):
        sample(pool, [])
