"""Both halves as local processes: started, stopped, started again, and their faults said once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

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
