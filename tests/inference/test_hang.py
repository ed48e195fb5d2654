"""Engines that stop working without ending."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from strop.errors import EngineLostError
from strop.inference.pool import EnginePool, EngineSpec
from strop.inference.pool.progress import ProgressWatch
from strop.inference.registry import running_engine
from strop.models.tiny import make_model
from strop.protocols import InferenceEngine
from strop.types import Completion, SamplingParams
from strop.workers.start import LocalPlacement
from strop.workers.worker import last_lines

from .helpers import random_prompts, requests_for, same, sample
from .test_pool import NativeFactory


def test_an_engine_hangs_after_the_timeout_without_new_tokens() -> None:
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


@pytest.mark.faults
def test_a_stopped_engine_is_restarted_and_repeats_its_requests_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    factory = NativeFactory(make_model(tmp_path / "model", ["two and two is four"], vocab_size=300))
    requests = requests_for(
        random_prompts(5, 9, 14), SamplingParams(max_tokens=64, ignore_eos=True), samples=2
    )
    pool = EnginePool(
        [EngineSpec("engine-0", factory)], LocalPlacement(), max_restarts=1, hang_timeout_seconds=5
    )
    with running_engine(pool):
        expected = sample(pool, requests)
        os.kill(pool._engines[0]._worker.pid, signal.SIGSTOP)  # it neither works nor ends

        async def counted() -> tuple[list[Completion], int]:
            call = asyncio.create_task(pool.sample(requests))
            return await call, len(pool._assignments)

        completions, left = asyncio.run(counted())
    assert left == 0 and all(map(same, expected, completions))
    assert np.unique([len(each.token_ids) for each in completions]).tolist() == [64]
    hang, restart = (record.getMessage() for record in caplog.records)
    assert hang.startswith("engine-0 has made no progress for 5 s with 6 requests pending")
    assert hang.endswith("See docs/troubleshooting.md#a-run-hangs-or-waits.")
    assert "Restarting it with its latest weights and its pending requests (restart 1 of 1)" in restart


@dataclass(frozen=True)
class SlowStart:
    """Builds an engine that prints what it waits for, and never starts."""

    def __call__(self) -> InferenceEngine:
        print("waiting for a port", flush=True)
        time.sleep(600)
        raise AssertionError


def test_an_engine_that_does_not_start_in_time_shows_its_last_output(tmp_path: Path) -> None:
    placement = LocalPlacement(tmp_path / "log")
    specs = [EngineSpec("engine-0", SlowStart())]
    pool = EnginePool(specs, placement, max_restarts=0, start_timeout_seconds=0.5)
    log = tmp_path / "log" / "engine-0.log"
    with pytest.raises(
        EngineLostError, match=r"In 0\.5 s engine-0 has not started; a longer time is `start_timeout_seconds`"
    ):
        pool.start()
    log.write_text("".join(f"line {number}\n" for number in range(100)))
    assert last_lines(log).splitlines() == [f"line {number}" for number in range(80, 100)]
