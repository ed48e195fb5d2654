"""Ranks that are killed in real runs: the run names them, and resumes to the end of an undisturbed run.

CI kills the first rank between two writes of a checkpoint; the nightly run kills at other moments, which it finds by
looking at the files and processes.
"""

from __future__ import annotations

import contextlib
import random
import time
from pathlib import Path

import psutil
import pytest

from strop.models.tiny import make_model
from strop.training.checkpoints import checkpoint
from tests.cases import nightly
from tests.files import digest
from tests.kill_log import kills, record_kill

from . import killed
from .results import train
from .test_distributed import rows_of
from .test_launch import kill_one, start, wait_for

pytestmark = pytest.mark.slow
STEPS = 5


def settings(values, model: Path, name: str, beside: bool) -> dict:
    """Large enough that a part is not written in an instant."""
    return values(
        name=name,
        model={"path": str(model)},
        trainer__engine={"type": "fsdp2", "ranks": 2, "device": "cpu"},
        trainer__duration=f"{STEPS} steps",
        checkpoint={"every": "1 steps", "keep": None, "async_save": beside, "save_concurrency": "thread"},
        evaluate={"at_start": False, "every": "never"},
    )


def kill_in_a_save(process, root: Path, first: int, rank: int) -> int:
    """SIGKILL while a step's checkpoint is being written, from the first step given on; returns that step.

    On a busy machine a whole save can pass between two looks: then the next save will do.
    """
    deadline = time.monotonic() + 900
    while not (step := being_written(root, first)):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()[0]
        time.sleep(0.001)
    if rank:
        assert kill_one(process, f"rank-{rank}")
    else:
        process.kill()
    record_kill("a rank in a save")
    return step


def being_written(root: Path, first: int) -> int | None:
    """Step of a draft of a checkpoint that has a file."""
    steps = (
        int(path.parent.name[len(".step-") :].split(".")[0])
        for path in root.glob(".step-*.*/*")
        if path.is_file()
    )
    return next((step for step in steps if step >= first), None)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("large") / "model"
    return make_model(folder, ["max 1 2"], vocab_size=300, hidden_size=256, layers=4)


def assert_same(folder: Path, whole: Path) -> None:
    """Metrics and all tensors of two runs are equal, and nothing is left of a save that ended early."""
    assert rows_of(folder) == rows_of(whole)
    assert not list((folder / "checkpoints").glob(".step-*"))
    for file in whole.rglob("*.safetensors"):
        assert digest(folder / file.relative_to(whole)) == digest(file), file.name


def test_a_first_rank_that_is_killed_in_a_save_leaves_the_checkpoint_before(values, tiny):
    """The ranks have written their files, and the checkpoint is not complete yet."""
    whole = train(settings(values, tiny / "model", "whole", beside=False)).folder
    run = settings(values, tiny / "model", "killed", beside=False)
    killed.train_killed_at("strop.training.ranks.group:gather_written_files", 3, run)
    root = whole.with_name("killed") / "checkpoints"
    assert checkpoint.latest(root) == (checkpoint.folder_for_step(root, 2), ())
    assert list(root.glob(".step-000003.*/*"))
    assert_same(train(run).folder, whole)


@pytest.mark.nightly
@pytest.mark.parametrize("number", range(kills(1, sources=3)))
@pytest.mark.parametrize(("rank", "beside"), [(0, True), (1, True), (1, False)])
def test_a_rank_that_is_killed_in_a_save_leaves_the_checkpoint_before(
    values, tmp_path, model, rank, beside, number
):
    whole = train(settings(values, model, "whole", beside)).folder
    run = settings(values, model, "killed", beside)
    folder = whole.with_name("killed")
    root = folder / "checkpoints"
    process = start(tmp_path, run)
    step = kill_in_a_save(process, root, 3, rank)
    said, _ = process.communicate()
    assert process.returncode != 0
    assert rank == 0 or "Rank 1 of the trainer ended by signal 9 (Killed)" in said
    assert not checkpoint.folder_for_step(root, step).exists()
    assert checkpoint.latest(root) == (checkpoint.folder_for_step(root, step - 1), ())
    assert f"Resuming after step {step - 1}" in start(tmp_path, run).finish()
    assert_same(folder, whole)


def next_rank_process(process, before: set[int]) -> psutil.Process:
    """The process of rank 1 that is not one of those before, to which it is added."""
    deadline = time.monotonic() + 900
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()[0]
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if child.pid not in before and "rank-1" in child.cmdline():
                    before.add(child.pid)
                    return child
        time.sleep(0.01)
    raise AssertionError("rank 1 was not started")


DELAYS = (0.0, 1.0, 2.0, 3.0, 4.0)
"""Seconds after the start of its process at which a rank is killed: while it starts, joins, loads and trains."""


@pytest.mark.nightly
@pytest.mark.parametrize("number", range(kills(1, sources=2 * len(DELAYS))))
@pytest.mark.parametrize("delay", DELAYS)
def test_a_rank_that_is_killed_early_is_named(values, tmp_path, tiny, delay, number):
    run = settings(values, tiny / "model", "early", False)
    process = start(tmp_path, run, "trainer.duration=500 steps")
    rank = next_rank_process(process, set())
    time.sleep(delay)
    rank.kill()
    record_kill("a rank at its start")
    said, _ = process.communicate()
    assert process.returncode == 75, said
    assert "Rank 1 of the trainer ended by signal 9 (Killed)" in said
    assert "Traceback" not in said


@pytest.mark.nightly
def test_a_trainer_whose_ranks_are_killed_early_is_restarted(values, tmp_path, tiny):
    """The trainer's processes end, one after the other, at different seconds of their start; the last one hangs."""
    steps = ("trainer.duration=40 steps", "checkpoint.every=10 steps")
    start(tmp_path, settings(values, tiny / "model", "whole", False), *steps).finish()
    run = settings(values, tiny / "model", "killed", False)
    run["trainer"]["engine"] |= {"hang_timeout_seconds": 20}
    events = (
        (0.5, lambda rank: rank.kill()),
        (2.5, lambda rank: kill_one(process, "trainer")),
        (4.0, lambda rank: rank.kill()),
        (4.0, lambda rank: rank.suspend()),
    )
    run["synchronizer"] = {"type": "checkpoint", "max_restarts": len(events)}
    process = start(tmp_path, run, *steps)
    before: set[int] = set()
    for delay, end in events:
        rank = next_rank_process(process, before)
        time.sleep(delay)
        with contextlib.suppress(psutil.NoSuchProcess):
            end(rank)
            record_kill("a rank at its start")
    said = process.finish()
    assert f"restart {len(events) - 1} of at most" in said
    assert "Rank 1 of the trainer hangs" in said
    folder = tmp_path / "runs" / "strop" / "killed"
    assert rows_of(folder) == rows_of(folder.with_name("whole"))


WORKERS = ("rank-1", "engine-0")
RANDOM_KILLS = [(worker, number) for worker in WORKERS for number in range(kills(1, sources=len(WORKERS)))]


@pytest.mark.parametrize(
    ("worker", "number"), [*((worker, None) for worker in WORKERS), *nightly(*RANDOM_KILLS)]
)
def test_a_local_worker_that_is_killed_costs_nothing(values, tmp_path, worker, number):
    """A sampler is started again and repeats its requests; after the loss of a trainer the same command resumes.

    CI kills in the third step, and the nightly run at random moments from the start of the worker on.
    """
    lines, pause = 3, 0.0
    if number is not None:
        draw = random.Random(number)
        lines = draw.randrange(20)
        pause = draw.uniform(0, 0.3 if lines else 3)
    run = values(
        name="whole",
        trainer__engine={"type": "local", "workers": 2},
        trainer__duration="6 steps" if number is None else "30 steps",
        checkpoint={"every": "1 steps"},
    )
    whole = train(run).folder
    folder = whole.with_name("killed")
    process = start(tmp_path, run | {"name": "killed"})
    if lines:
        wait_for(folder / "metrics.jsonl", lines=lines, process=process)
    time.sleep(pause)
    while not kill_one(process, worker):  # it is being started
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)
    record_kill(f"local worker, {worker}")
    said, _ = process.communicate()
    if worker == "rank-1":
        assert process.returncode == 75
        assert "Rank 1 of the trainer ended by signal 9 (Killed)" in said
        is_resumed = any((folder / "checkpoints").glob("step-*"))
        assert ("Resuming after step" in start(tmp_path, run | {"name": "killed"}).finish()) == is_resumed
    assert process.returncode in (0, 75)
    assert_same(folder, whole)
