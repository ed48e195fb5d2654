"""A run that is killed at any moment goes on as if nothing had been.

Metrics and final weights of the resumed run equal those of the uninterrupted one, bit for bit. How
many kills: `STROP_KILLS`, 4 unless set (`make evidence` sets 20).
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

KILLS = int(os.environ.get("STROP_KILLS", "4"))
STEPS = 12


def not_timing(row):
    clocks = ("time/", "tokens_per_second", "memory/")
    return {name: value for name, value in row.items() if not name.startswith(clocks)}


def rows(folder: Path) -> list[dict]:
    return [not_timing(json.loads(line)) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def start(run_file: Path, name: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "strop", "train", str(run_file), f"name={name}"]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def finish(process: subprocess.Popen) -> str:
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    return output


@pytest.fixture(scope="module")
def uninterrupted(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("kill")
    run = {
        "output": str(folder),
        "model": {"path": str(tiny / "model"), "lora": {"rank": 4, "dropout": 0.1}},
        "data": {
            "train": {"path": str(tiny / "tasks.jsonl")},
            "eval": [{"name": "held-out", "path": str(tiny / "tasks.jsonl"), "limit_tasks": 20}],
            "max_prompt_tokens": 32,
            "max_response_tokens": 16,
        },
        "reward": f"{Path(__file__).parent / 'rewards.py'}:digit_share",
        "algorithm": {"rollouts_per_task": 4, "kl_loss": {"coef": 0.01}},
        "trainer": {
            "duration": f"{STEPS} steps",
            "tasks_per_step": 24,
            "tasks_per_update": 8,
            "passes": 2,
            "shuffle_passes": True,
            "optimizer": {"type": "adamw", "lr": 3e-3},
            "schedule": {"type": "cosine", "warmup": "2 steps"},
        },
        "checkpoint": {"every": "1 steps", "keep": 2},
        "evaluate": {"every": "3 steps"},
        "record": {"report": False},
    }
    run_file = folder / "run.yaml"
    run_file.write_text(yaml.safe_dump(run))
    began = time.monotonic()
    finish(start(run_file, "whole"))
    return run_file, folder / "strop" / "whole", time.monotonic() - began


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("number", range(KILLS))
def test_a_killed_run_goes_on_to_the_same_end(uninterrupted, number):
    run_file, whole, _ = uninterrupted
    draw = random.Random(number)
    folder = whole.with_name(f"killed-{number}")
    process = start(run_file, folder.name)
    after_rows = draw.randrange(STEPS)
    wait_for_rows(process, folder, after_rows)
    time.sleep(draw.uniform(0, 0.5))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    finish(start(run_file, folder.name))
    assert rows(folder) == rows(whole)
    for file in sorted((whole / "model").rglob("*.safetensors")):
        same = folder / "model" / file.relative_to(whole / "model")
        assert same.read_bytes() == file.read_bytes(), file.name


def wait_for_rows(process: subprocess.Popen, folder: Path, count: int) -> None:
    metrics = folder / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        if metrics.exists() and metrics.read_text().count("\n") > count:
            return
        time.sleep(0.02)
    assert process.poll() is None, process.communicate()[0]


@pytest.mark.faults
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_saves_says_so_and_goes_on_to_the_same_end(uninterrupted, number):
    run_file, whole, _ = uninterrupted
    folder = whole.with_name(f"stopped-{number}")
    process = start(run_file, folder.name)
    wait_for_rows(process, folder, 4)
    process.send_signal(number)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 128 + number, output
    assert f"Stopped by {signal.Signals(number).name}" in output
    assert "Traceback" not in output
    finish(start(run_file, folder.name))
    assert rows(folder) == rows(whole)
