"""Whole runs whose rollouts come from several engines, each a process of its own.

`test_distributed_kill.py` kills an engine in CI.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest
from safetensors.torch import load_file
from torch.testing import assert_close

import strop
from strop.errors import EngineLostError
from tests.cases import nightly
from tests.kill_log import kills, record_kill

from .groups_by_id import states as states_of
from .results import WEIGHTS, train
from .test_distributed import rows_of, run_distributed
from .test_launch import start, wait_for

pytestmark = pytest.mark.slow
KILLS = kills(2, sources=2)


def train_together(values: dict) -> Path:
    """The folder of a run in one process, with its engines."""
    return train(values).folder


def engines_of(pid: int) -> list[psutil.Process]:
    """A run's engines, those that work for its explorer included."""
    found = []
    for child in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, IndexError):  # it has just ended
            if child.cmdline()[-1].startswith("engine-"):
                found.append(child)
    return found


def close(first: list[dict], second: list[dict]) -> None:
    """But for rounding, which depends on what goes through an engine side by side."""
    assert len(first) == len(second)
    for row, other in zip(first, second, strict=True):
        assert row == pytest.approx(other, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(("engines", "run"), [(2, train_together), *nightly((3, run_distributed))])
def test_several_engines_give_the_run_of_one(values, engines, run):
    one = train_together(values(name="one"))
    folder = run(values(name="several", rollout__pool={"engines": engines}))
    close(rows_of(folder), rows_of(one))
    weights = [load_file(at / "model" / WEIGHTS) for at in (folder, one)]
    assert_close(*weights, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("pool", [None, *nightly({"engines": 1})], ids=["one process", "pool"])
def test_engines_that_release_their_memory_during_updates_give_the_same_run(values, pool):
    kept = strop.train(strop.load(values(name="kept", rollout__pool=pool)))
    released = strop.train(
        strop.load(values(name="released", rollout={"pool": pool, "release_memory": True}))
    )
    assert rows_of(released.folder) == rows_of(kept.folder)


@pytest.mark.nightly
def test_engines_end_with_a_run_that_is_killed_and_it_goes_on_with_others(values, tmp_path):
    whole = strop.train(strop.load(values(name="whole", rollout__pool={"engines": 2})))
    run = values(name="killed", rollout__pool={"engines": 2})
    folder = tmp_path / "runs" / "strop" / "killed"
    process = start(tmp_path, run)
    wait_for(folder / "metrics.jsonl", lines=3, process=process)
    engines = engines_of(process.pid)
    assert len(engines) == 2
    process.kill()
    process.communicate()
    _, alive = psutil.wait_procs(engines, timeout=600)
    assert not [engine for engine in alive if engine.status() != psutil.STATUS_ZOMBIE], "they outlive the run"
    strop.train(strop.load(run))
    assert rows_of(folder) == rows_of(whole.folder)


def test_a_run_whose_engine_dies_again_and_again_stops_with_a_clear_word(values):
    loaded = strop.load(
        values(rollout__pool={"engines": 1, "max_restarts": 0}, trainer__duration="500 steps")
    )
    folder = Path(loaded.run.folder_path)

    def kill() -> None:
        deadline = time.monotonic() + 900
        while not (folder / "metrics.jsonl").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        for engine in engines_of(os.getpid()):
            engine.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(
        EngineLostError, match=r"engine-0 ended by signal 9 .*max_restarts.*resumes from the last saved state"
    ):
        strop.train(loaded)
    killer.join()


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("apart", [False, True], ids=["together", "apart"])
def test_engines_killed_at_random_moments_change_nothing(values, tmp_path, apart):
    settings = {"synchronizer": {"type": "checkpoint", "style": "fixed"}} if apart else {}
    run = values(
        name="killed",
        rollout__pool={"engines": 2, "max_restarts": KILLS},
        trainer__duration=f"{10 * KILLS} steps",
        data__max_response_tokens=24,
        **settings,
    )
    draw = random.Random(KILLS)
    process = start(tmp_path, run)
    folder = tmp_path / "runs" / "strop" / "killed"
    killed = 0
    for number in range(KILLS):
        wait_for(folder / "metrics.jsonl", lines=10 * number + draw.randrange(1, 8), process=process)
        time.sleep(draw.uniform(0, 0.3))
        with contextlib.suppress(psutil.NoSuchProcess, IndexError):  # it is just being replaced
            draw.choice(engines_of(process.pid)).send_signal(signal.SIGKILL)
            killed += 1
            record_kill("rollout engine")
    said = process.finish()
    assert killed and said.count("Restarting it with its latest weights and its pending requests") == killed
    if apart:
        everything = {f"train-{s:06d}-{n:05d}" for s in range(1, 10 * KILLS + 1) for n in range(8)}
        assert states_of(folder) == dict.fromkeys(everything, "done")
    whole = strop.load(run | {"name": "whole"})
    strop.train(whole)
    assert rows_of(folder) == rows_of(Path(whole.run.folder_path))
