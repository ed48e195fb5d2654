"""Roles as local processes: start, stop, restart, and the report of errors."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml

import strop
from strop.errors import StropError
from tests.files import digest

from .groups_by_id import states as states_of
from .test_distributed import rows_of

pytest.importorskip("sqlalchemy")


def start(tmp_path: Path, values: dict, *overrides: str) -> subprocess.Popen:
    run_file = tmp_path / "run.yaml"
    run_file.write_text(yaml.safe_dump(values))
    return subprocess.Popen(
        [sys.executable, "-m", "strop", "train", str(run_file), *overrides],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


@pytest.mark.slow
def test_a_stopped_and_resumed_run_equals_the_run_in_one_process(values, tmp_path):
    reference = strop.train(strop.load(values(name="one")))
    run = values(name="two", synchronizer="checkpoint")
    folder = tmp_path / "runs" / "strop" / "two"
    process = start(tmp_path, run)
    wait_for(folder / "metrics.jsonl", lines=3, process=process)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate()
    assert process.returncode == 128 + signal.SIGTERM, output
    assert "Explorer and trainer have saved their states" in output
    assert "Traceback" not in output
    process = start(tmp_path, run)
    output, _ = process.communicate()
    assert process.returncode == 0, output
    assert "explorer | " in output and "trainer  | " in output
    assert rows_of(folder) == rows_of(reference.folder)
    weights = "model.safetensors"
    assert digest(folder / "model" / weights) == digest(reference.model / weights)
    assert set(states_of(folder).values()) == {"done"}


@pytest.mark.faults
def test_no_group_is_lost_when_the_buffer_process_is_killed(values, tmp_path):
    reference = strop.train(strop.load(values(name="one")))
    run = values(name="two", synchronizer="checkpoint", buffer="queue")
    folder = tmp_path / "runs" / "strop" / "two"
    process = start(tmp_path, run)
    wait_for(folder / "metrics.jsonl", lines=2, process=process)
    assert kill_one(process, "buffer")
    output, _ = process.communicate()
    assert process.returncode == 0, output
    assert (
        "The buffer ended by signal 9 (Killed). It is restarted from its last saved state (restart 1 of at most 3)"
        in output
    )
    assert "Traceback" not in output
    assert rows_of(folder) == rows_of(reference.folder)
    assert states_of(folder) == dict.fromkeys(group_ids(4), "done")
    assert not (folder / "buffer-address.json").exists()


def kill_one(process: subprocess.Popen, name: str) -> bool:
    """Kill the role of this name with SIGKILL; returns False if it does not run."""
    for child in psutil.Process(process.pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile, or is a zombie
            if child.cmdline()[-1:] == [name]:
                child.kill()
                return True
    return False


def group_ids(steps: int) -> set[str]:
    """The ids of all groups of a small run."""
    return {f"train-{step:06d}-{number:05d}" for step in range(1, steps + 1) for number in range(8)}


def wait_for(file: Path, *, lines: int, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 900
    while not (file.exists() and file.read_text().count("\n") >= lines):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()[0]
        time.sleep(0.02)


@pytest.mark.slow
def test_a_users_reward_function_runs_in_the_explorer_and_its_error_is_reported(values, capfd):
    run = values(synchronizer="checkpoint", checkpoint__every="1 steps")
    del run["reward"]

    def broken(completion, answer):
        raise KeyError("no such answer")

    with pytest.raises(StropError, match="no such answer") as caught:
        strop.train(strop.load(run), reward=broken)
    assert caught.value.exit_code == 1
    assert "Traceback" not in capfd.readouterr().out


@pytest.mark.faults
def test_a_trainer_is_restarted_after_a_kill_of_its_rank(values, tmp_path):
    run = values(synchronizer="checkpoint", trainer__engine={"type": "fsdp2", "ranks": 2, "device": "cpu"})
    folder = tmp_path / "runs" / "strop" / "small"
    process = start(tmp_path, run)
    wait_for(folder / "metrics.jsonl", lines=2, process=process)
    (rank,) = (
        child
        for child in psutil.Process(process.pid).children(recursive=True)
        if child.cmdline()[-1:] == ["rank-1"]
    )
    rank.kill()
    output, _ = process.communicate()
    assert process.returncode == 0, output
    assert "Rank 1 of the trainer ended by signal 9" in output and "It is restarted" in output
    assert [row["step"] for row in rows_of(folder)] == list(range(5))
    assert set(states_of(folder).values()) == {"done"}
