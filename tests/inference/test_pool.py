"""Pools of engine processes: same completions as one engine, load, restarts with their state, hangs and failures."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from strop.errors import (
    EngineLostError,
    InferenceError,
    ModelError,
    WeightTransferError,
)
from strop.inference.native import NativeEngine
from strop.inference.native.engine import NATIVE_CAPABILITIES
from strop.inference.pool import EnginePool, EngineSpec
from strop.inference.pool.messages import EngineCreated, PoolRequest, ProgressWatch
from strop.inference.registry import running_engine
from strop.protocols import TrainerAddress
from strop.types import Completion, EngineStatistics, SampleRequest, SamplingParams
from strop.workers.connection import Address
from strop.workers.start import LocalPlacement, RayPlacement
from strop.workers.worker import last_lines
from tests.inference.helpers import (
    NativeFactory,
    assert_close,
    assert_same,
    pool_of,
    random_prompts,
    requests_for,
    sample,
    scaled,
    sharp_model,
)
from tests.inference.thread_worker import engines_in_threads

SAMPLING = SamplingParams(temperature=1.0, max_tokens=24, ignore_eos=True)
REQUESTS = requests_for(random_prompts(5, 9, 14, 7, 5), SAMPLING, samples=6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pool") / "model"
    sharp_model(folder, vocab_size=300)
    return folder


@pytest.fixture(scope="module")
def single(folder: Path) -> NativeEngine:
    return NativeFactory(folder)()


@pytest.fixture(scope="module")
def pool(folder: Path) -> Iterator[EnginePool]:
    """Two engines, each of which is restarted once."""
    with running_engine(pool_of(NativeFactory(folder), 2, max_restarts=1)) as pool:
        yield pool


async def sampled_concurrently(pool: EnginePool, requests: list[SampleRequest]) -> list[Completion]:
    """One call for each request, all at once, as workflows call."""
    calls = await asyncio.gather(*(pool.sample([request]) for request in requests))
    return [completion for call in calls for completion in call]


def sample_concurrently(pool: EnginePool, requests: list[SampleRequest]) -> list[Completion]:
    return asyncio.run(sampled_concurrently(pool, requests))


def sample_while_killing(pool: EnginePool, number: int, requests: list[SampleRequest]) -> list[Completion]:
    """Kill one engine once it has requests."""

    async def sampled() -> list[Completion]:
        call = asyncio.create_task(sampled_concurrently(pool, requests))
        while not pool._engines[number]._pending:
            await asyncio.sleep(0.001)
        os.kill(pool._engines[number]._worker.pid, signal.SIGKILL)
        return await call

    return asyncio.run(sampled())


@pytest.mark.slow
def test_two_engines_equal_one_and_each_group_is_sampled_by_one_of_them(pool, single, monkeypatch):
    engines_of_prompt: dict[bytes, set[str]] = {}
    choose = pool._choose

    def recording_choose(pending):
        engine = choose(pending)
        engines_of_prompt.setdefault(pending.request.prompt_ids.tobytes(), set()).add(engine.name)
        return engine

    with monkeypatch.context() as patch:
        patch.setattr(pool, "_choose", recording_choose)
        first = sample_concurrently(pool, REQUESTS)
    assert all(len(names) == 1 for names in engines_of_prompt.values())
    names = [name for names in engines_of_prompt.values() for name in names]
    assert sorted(map(names.count, set(names))) == [2, 3]
    statistics = pool.take_statistics()
    assert (statistics.sampled_tokens, statistics.prompt_tokens) == (
        30 * 24,
        40 + statistics.cached_prompt_tokens,
    )
    assert_close(first, sample(single, REQUESTS), atol=2e-5)
    # Requests that are submitted together are reproducible bit for bit.
    assert_same(first, sample_concurrently(pool, REQUESTS))
    assert not pool._assignments and not pool._engine_of_prompt and not any(pool._pending_count.values())


@pytest.mark.slow
def test_cancelled_requests_are_removed(pool):
    async def cancel():
        pool.pause()
        call = asyncio.create_task(pool.sample(REQUESTS[:1]))
        while not any(engine._pending for engine in pool._engines):
            await asyncio.sleep(0.001)
        call.cancel()
        await asyncio.wait([call])
        assert call.cancelled() and not any(engine._pending for engine in pool._engines)
        pool.resume()
        return await pool.sample(REQUESTS[:1])

    (completion,) = asyncio.run(cancel())
    assert len(completion.token_ids) == 24


@pytest.mark.slow
def test_an_engine_that_is_killed_while_its_memory_is_released_is_restarted_without_it(pool, folder):
    model = scaled(AutoModelForCausalLM.from_pretrained(folder), 0.9)
    pool.load(model.named_parameters(), 3)
    expected = sample_concurrently(pool, REQUESTS)
    pool.release_memory()
    os.kill(pool._engines[0]._worker.pid, signal.SIGKILL)
    pool.restore_memory()
    pool.load(model.named_parameters(), 3)
    assert_same(expected, sample_concurrently(pool, REQUESTS))


@pytest.mark.slow
def test_a_killed_engine_is_restarted_with_its_weights_and_requests_and_then_given_up(pool, folder, caplog):
    pool.load(scaled(AutoModelForCausalLM.from_pretrained(folder), 0.8).named_parameters(), 4)
    sampling = SamplingParams(max_tokens=400, ignore_eos=True)
    requests = requests_for(random_prompts(5, 9, 14, 7), sampling, samples=2)
    expected = sample_concurrently(pool, requests)
    assert_same(expected, sample_while_killing(pool, 1, requests))
    (record,) = (each for each in caplog.records if each.name == "strop.inference")
    assert record.getMessage().startswith("engine-1 ended by signal 9 (Killed). Restarting it")
    assert "(restart 1 of 1)" in record.getMessage()
    lost = r"^engine-1 ended by signal 9 .* is not restarted: .*max_restarts is 1"
    with pytest.raises(EngineLostError, match=lost):
        sample_while_killing(pool, 1, requests)
    with pytest.raises(EngineLostError, match="is not restarted"):
        sample_concurrently(pool, requests)
    with pytest.raises(EngineLostError, match="is not restarted"):
        pool.load([], 1)


@pytest.mark.slow
def test_a_stopped_engine_is_restarted_and_repeats_its_requests_once(folder, caplog):
    """And weights of another model are refused across processes."""
    requests = REQUESTS[:6]
    with running_engine(pool_of(NativeFactory(folder), max_restarts=1, hang_timeout_seconds=10)) as pool:
        expected = sample(pool, requests)
        os.kill(pool._engines[0]._worker.pid, signal.SIGSTOP)  # it neither works nor ends

        async def counted() -> tuple[list[Completion], int]:
            return await pool.sample(requests), len(pool._assignments)

        completions, left = asyncio.run(counted())
        with pytest.raises(ModelError, match="no weight 'nonsense'"):
            pool.load([("nonsense", torch.zeros(1))], 1)
    assert left == 0 and {len(each.token_ids) for each in completions} == {24}
    assert_same(expected, completions)
    hang, restart = (record.getMessage() for record in caplog.records if record.name == "strop.inference")
    assert hang.startswith("engine-0 has made no progress for 10 s with 6 requests pending")
    assert hang.endswith("See `strop help troubleshooting#a-run-hangs-or-waits`.")
    assert "Restarting it with its latest weights and its pending requests (restart 1 of 1)" in restart


def test_an_engine_hangs_after_the_timeout_without_new_tokens():
    clock = [0.0]
    watch = ProgressWatch(4.0, lambda: clock[0])
    assert watch.report_seconds == 1.0
    for seconds, tokens, hangs in ((3.0, 5, False), (6.0, 5, False), (7.5, 5, True), (8.0, 6, False)):
        clock[0] = seconds
        watch.observe(tokens)
        assert watch.is_hanging(is_busy=True) is hangs
    clock[0] = 100.0
    assert not watch.is_hanging(is_busy=False), "an idle engine has nothing to do"
    clock[0] = 103.0
    assert not watch.is_hanging(is_busy=True), "it has had work for 3 s"


@pytest.fixture
def in_threads() -> Iterator[None]:
    with engines_in_threads():
        yield


@dataclass(frozen=True)
class FailingFactory:
    """Raises an error instead of building an engine."""

    error: Exception

    def __call__(self) -> NativeEngine:
        raise self.error


def test_an_error_of_a_factory_is_raised_by_start(in_threads):
    pool = pool_of(FailingFactory(ValueError("no such engine")), max_restarts=1)
    with pytest.raises(InferenceError, match=r"(?s)^engine-0 failed:\n.*ValueError: no such engine"):
        pool.start()


@dataclass(frozen=True)
class EndlessFactory:
    """Never builds an engine."""

    def __call__(self) -> NativeEngine:
        threading.Event().wait()
        raise AssertionError


@pytest.mark.slow
def test_an_engine_that_does_not_start_in_time_shows_its_last_output(tmp_path: Path):
    specs, placement = [EngineSpec("engine-0", EndlessFactory())], LocalPlacement(tmp_path)
    pool = EnginePool(specs, placement, max_restarts=0, start_timeout_seconds=0.5)
    late = r"In 0\.5 s engine-0 has not started; a longer time is `start_timeout_seconds`"
    with pytest.raises(EngineLostError, match=late):
        pool.start()
    log = tmp_path / "engine-0.log"
    log.write_text("".join(f"line {number}\n" for number in range(100)))
    assert last_lines(log).splitlines() == [f"line {number}" for number in range(80, 100)]


def test_a_pool_must_be_started(folder):
    with pytest.raises(InferenceError, match="has not been started; call start first"):
        sample(pool_of(NativeFactory(folder)), [])


@dataclass
class StubEngine:
    """Answers with the adapter's text; the first `losses` engines lose their processes at a request."""

    folder: Path
    losses: int
    capabilities = replace(
        NATIVE_CAPABILITIES,
        adapters=True,
        weight_transports=frozenset(("tensors", "path", "process_group")),
    )
    adapter = ""
    version = 0
    processed_tokens = 0

    def start(self) -> None:
        (self.folder / f"start-{len(list(self.folder.iterdir()))}").touch()

    def close(self) -> None:
        pass

    def describe(self) -> str:
        return "a stub"

    async def sample(self, requests: list[SampleRequest]) -> list[Completion]:
        while self.version < 0:
            await asyncio.sleep(0.01)
        if len(list(self.folder.glob("start-*"))) <= self.losses:
            raise EngineLostError("a process of the stub has ended")
        tokens = np.frombuffer(self.adapter.encode(), dtype=np.uint8).astype(np.int32)
        logprobs = np.zeros(len(tokens), dtype=np.float32)
        return [Completion(tokens, logprobs, None, "stop", self.version) for _ in requests]

    def load_adapter(self, folder: Path, version: int) -> None:
        self.adapter, self.version = (folder / "adapter").read_text(), version

    def load_process_group(self, trainer: TrainerAddress, version: int) -> None:
        """Receive weights from a trainer, which is a file: its host is the file's name."""
        self.version = -1  # nothing is sampled with it
        address = trainer()
        if address is None or not Path(address.host).exists():
            raise WeightTransferError("the trainer is gone")
        self.version, self.adapter = version, Path(address.host).read_text()


@dataclass(frozen=True)
class StubFactory:
    folder: Path
    losses: int = 0

    def __call__(self) -> Any:
        return StubEngine(self.folder, self.losses)


@pytest.fixture
def starts(tmp_path: Path) -> Path:
    """A folder with a file for each start of an engine."""
    (tmp_path / "starts").mkdir()
    return tmp_path / "starts"


def test_an_engine_that_loses_its_processes_is_replaced_with_its_adapter_and_requests(
    in_threads, starts, tmp_path
):
    (tmp_path / "adapter").write_text("v7")
    with running_engine(pool_of(StubFactory(starts, losses=1), max_restarts=1)) as pool:
        pool.load_adapter(tmp_path, 7)
        completions = sample(pool, requests_for(random_prompts(3, 4), SamplingParams(), samples=2))
    assert len(list(starts.iterdir())) == 2
    assert [bytes(each.token_ids.astype(np.uint8)) for each in completions] == [b"v7"] * 4
    assert {each.version for each in completions} == {7}


def test_a_restarted_engine_receives_its_version_again_from_a_restarted_trainer(in_threads, starts, tmp_path):
    """The trainer of the first load is gone when the engine is started again, and comes back at another address."""
    files = [tmp_path / "first", tmp_path / "second"]
    files[0].write_text("v7")
    asked: list[int] = []
    requests = requests_for(random_prompts(3), SamplingParams())

    def trainer() -> Address | None:
        asked.append(len(asked))
        if len(asked) == 4:  # asked again and again by the restarted engine
            files[1].write_text("v7 again")
        return Address(str(files[0 if len(asked) == 1 else 1]), 1, "token")

    with running_engine(pool_of(StubFactory(starts, losses=1), max_restarts=1)) as pool:
        pool.load_process_group(trainer, 7)
        (completion,) = sample(pool, requests)
        with pytest.raises(WeightTransferError, match="engine-0: the trainer is gone"):
            pool.load_process_group(lambda: None, 8)
        pool.load_process_group(trainer, 9)
        (later,) = sample(pool, requests)
    assert len(list(starts.iterdir())) == 2 and len(asked) == 5
    assert (completion.version, bytes(completion.token_ids.astype(np.uint8))) == (7, b"v7 again")
    assert later.version == 9


def test_statistics_of_engines_are_their_largest_loads_and_their_sums():
    one = EngineStatistics(3, 1, 0.5, 10, 4, 2, sampled_tokens=7, busy_seconds=1.5)
    other = EngineStatistics(2, 5, 0.75, 20, 8, 1, sampled_tokens=1, busy_seconds=0.5)
    assert one.combined_with(other) == EngineStatistics(3, 5, 0.75, 30, 12, 3, 8, 2.0)


@pytest.mark.parametrize("keeps_prefixes", [True, False])
def test_the_next_turn_of_a_rollout_goes_to_the_engine_that_has_its_prefix(
    tmp_path: Path, keeps_prefixes: bool
):
    """Without processes: three rollouts of one turn each, then their second turns in another order."""
    pool = pool_of(StubFactory(tmp_path), 2)
    pool._engines = [Mock(name=f"engine-{number}") for number in range(2)]
    pool._created = EngineCreated("stubs", replace(StubEngine.capabilities, keeps_prefixes=keeps_prefixes))
    first = requests_for(random_prompts(3, 4, 5), SamplingParams())
    longer = [
        replace(each, prompt_ids=np.concatenate([each.prompt_ids, [7, 8]]), seed=9)
        for each in reversed(first)
    ]
    chosen: dict[str, list[int]] = {}
    for number, request in enumerate([*first, *longer]):
        pending = PoolRequest(number, request, Mock(**{"done.return_value": True}))
        chosen.setdefault(request.id, []).append(pool._engines.index(pool._choose(pending)))
        if request.id == "2.0":
            pool._remove([pending])
    if keeps_prefixes:
        assert chosen == {"0.0": [0, 0], "1.0": [1, 1], "2.0": [0, 0]}
    else:
        assert chosen == {"0.0": [0, 1], "1.0": [1, 0], "2.0": [0, 0]}
    assert len(pool._engine_of_rollout) == (3 if keeps_prefixes else 0)


@pytest.fixture
def start_ray() -> Iterator[Callable[[], Any]]:
    ray = pytest.importorskip("ray")
    yield lambda: ray.init(
        address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR"
    )
    ray.shutdown()


@pytest.mark.slow
@pytest.mark.nightly  # in CI, tests/run/test_ray.py kills an engine that is an actor
def test_ray_actors_sample_load_weights_and_are_restarted(folder, single, start_ray, caplog):
    start_ray()
    specs = [EngineSpec(f"explorer-engine-{number}", NativeFactory(folder)) for number in range(2)]
    with running_engine(EnginePool(specs, RayPlacement(cpus=0.5), max_restarts=1)) as pool:
        for engine in (pool, single):
            engine.load(AutoModelForCausalLM.from_pretrained(folder).named_parameters(), 3)
        first = sample_concurrently(pool, REQUESTS)
        assert_close(first, sample(single, REQUESTS), atol=2e-5)
        os.kill(pool._engines[0]._worker.pid, signal.SIGKILL)
        assert_same(first, sample_concurrently(pool, REQUESTS))
    (record,) = (each for each in caplog.records if each.name == "strop.inference")
    assert record.getMessage().startswith("explorer-engine-0 ended with its actor: ")
