"""Both halves as local processes: started, stopped, started again, and their faults said once."""

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

from .groups_by_id import states as states_of
from .test_apart import rows_of

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


def test_stopped_and_gone_on_with_it_is_the_same_run_as_in_one_process(values, tmp_path):
    whole = strop.train(strop.load(values(name="one")))
    run = values(name="two", synchronizer="checkpoint")
    folder = tmp_path / "runs" / "strop" / "two"
    process = start(tmp_path, run)
    wait_for(folder / "metrics.jsonl", lines=3, process=process)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM, said
    assert "Explorer and trainer have saved their states" in said
    assert "Traceback" not in said
    process = start(tmp_path, run)
    said, _ = process.communicate(timeout=240)
    assert process.returncode == 0, said
    assert "explorer | " in said and "trainer  | " in said
    assert rows_of(folder) == rows_of(whole.folder)
    weights = "model.safetensors"
    assert (folder / "model" / weights).read_bytes() == (whole.model / weights).read_bytes()
    assert set(states_of(folder).values()) == {"done"}


def test_a_queue_is_a_process_of_its_own_and_when_that_is_killed_nothing_is_lost(values, tmp_path):
    whole = strop.train(strop.load(values(name="one")))
    run = values(name="two", synchronizer="checkpoint", buffer="queue")
    folder = tmp_path / "runs" / "strop" / "two"
    process = start(tmp_path, run)
    wait_for(folder / "metrics.jsonl", lines=2, process=process)
    assert kill_one(process, "buffer")
    said, _ = process.communicate(timeout=240)
    assert process.returncode == 0, said
    assert "The buffer was ended by signal 9 (Killed). It is started again" in said
    assert "Traceback" not in said
    assert rows_of(folder) == rows_of(whole.folder)
    assert states_of(folder) == dict.fromkeys(group_ids(4), "done")
    assert not (folder / "buffer-address.json").exists()


def kill_one(process: subprocess.Popen, name: str) -> bool:
    """SIGKILL the part of this name, if it is at work; whether it was."""
    for child in psutil.Process(process.pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):  # it ended meanwhile, or has not been buried yet
            if child.cmdline()[-1:] == [name]:
                child.kill()
                return True
    return False


def group_ids(steps: int) -> set[str]:
    """Of a whole run of the small one."""
    return {f"train-{step:06d}-{number:05d}" for step in range(1, steps + 1) for number in range(8)}


def wait_for(file: Path, *, lines: int, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 120
    while not (file.exists() and file.read_text().count("\n") >= lines):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()[0]
        time.sleep(0.02)


def test_a_function_of_the_users_scores_in_the_other_process_and_what_it_breaks_is_said_once(values, capfd):
    run = values(synchronizer="checkpoint", checkpoint__every="1 steps")
    del run["reward"]

    def broken(completion, answer):
        raise KeyError("no such answer")

    with pytest.raises(StropError, match="no such answer") as caught:
        strop.train(strop.load(run), reward=broken)
    assert caught.value.exit_code == 1
    assert "Traceback" not in capfd.readouterr().out


@pytest.mark.faults
def test_a_trainer_whose_rank_is_killed_is_started_again(values, tmp_path):
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
    said, _ = process.communicate(timeout=240)
    assert process.returncode == 0, said
    assert "Rank 1 of the trainer ended by signal 9" in said and "It is started again" in said
    assert [row["step"] for row in rows_of(folder)] == list(range(5))
    assert set(states_of(folder).values()) == {"done"}
