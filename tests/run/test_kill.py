"""A run that is killed at any moment resumes bit for bit: with rollouts, and with offline data.

Metrics and final weights of the resumed run equal those of the uninterrupted one, bit for bit.
"""

from __future__ import annotations

import json
import os
import random
import signal
import string
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from tests.files import digest
from tests.kill_log import kills, record_kill

STEPS = 12


def not_timing(row):
    clocks = ("time/", "tokens_per_second", "engine/", "memory/")
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
    output, _ = process.communicate()
    assert process.returncode == 0, output
    return output


def from_rollouts(tiny: Path, folder: Path) -> dict:
    return {
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
            "epochs_per_step": 2,
            "shuffle_each_epoch": True,
            "optimizer": {"type": "adamw", "lr": 3e-3},
            "schedule": {"type": "cosine", "warmup": "2 steps"},
        },
        "checkpoint": {"every": "1 steps", "keep": 2, "best": {}},
        "evaluate": {"every": "3 steps"},
        "record": {"report": False},
    }


def from_answers(kind: str, tiny: Path, folder: Path) -> dict:
    pairs = [(a, b) for a in range(10) for b in range(10) if a != b]
    rows = [{"prompt": f"max {a} {b}", "better": str(max(a, b)), "worse": str(min(a, b))} for a, b in pairs]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = {"response": "better"} if kind == "sft" else {"chosen": "better", "rejected": "worse"}
    answers = {"path": str(folder / "pairs.jsonl"), **columns}
    run = from_rollouts(tiny, folder)
    del run["reward"], run["trainer"]["epochs_per_step"], run["trainer"]["shuffle_each_epoch"]
    run["checkpoint"]["best"] = {"metric": "eval/held-out/loss", "mode": "min"}
    run["data"] |= {"train": answers, "eval": [{"name": "held-out", "limit_tasks": 20, **answers}]}
    return run | {"algorithm": kind}


@pytest.fixture(scope="module")
def uninterrupted(request, tiny, tmp_path_factory):
    """Run file and folder of an uninterrupted run: with rollouts, or with sft or dpo where asked."""
    kind = getattr(request, "param", "grpo")
    folder = tmp_path_factory.mktemp(kind)
    run = from_rollouts(tiny, folder) if kind == "grpo" else from_answers(kind, tiny, folder)
    run_file = folder / "run.yaml"
    run_file.write_text(yaml.safe_dump(run))
    finish(start(run_file, "whole"))
    return run_file, folder / "strop" / "whole"


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("uninterrupted", "number"),
    [(kind, n) for kind, default in (("grpo", 2), ("sft", 1), ("dpo", 1)) for n in range(kills(default))],
    indirect=["uninterrupted"],
)
def test_a_killed_run_resumes_to_the_same_end(uninterrupted, number):
    run_file, whole = uninterrupted
    draw = random.Random(f"{whole.parents[1].name} {number}")
    folder = whole.with_name(f"killed-{number}")
    process = start(run_file, folder.name)
    if number % 2:
        # Before its first step: among what is computed once, such as a reference's log-probs.
        time.sleep(draw.uniform(2, 6))
    else:
        wait_for_rows(process, folder, draw.randrange(STEPS))
        time.sleep(draw.uniform(0, 0.5))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    record_kill(f"one process, {whole.parents[1].name.rstrip(string.digits)}")
    finish(start(run_file, folder.name))
    assert rows(folder) == rows(whole)
    for file in sorted((whole / "model").rglob("*.safetensors")):
        same = folder / "model" / file.relative_to(whole / "model")
        assert digest(same) == digest(file), file.name


def wait_for_rows(process: subprocess.Popen, folder: Path, count: int) -> None:
    metrics = folder / "metrics.jsonl"
    deadline = time.monotonic() + 900
    while process.poll() is None and time.monotonic() < deadline:
        if metrics.exists() and metrics.read_text().count("\n") > count:
            return
        time.sleep(0.02)
    assert process.poll() is None, process.communicate()[0]


@pytest.mark.faults
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_saves_its_state_and_resumes_to_the_same_end(uninterrupted, number):
    run_file, whole = uninterrupted
    folder = whole.with_name(f"stopped-{number}")
    process = start(run_file, folder.name)
    wait_for_rows(process, folder, 4)
    process.send_signal(number)
    output, _ = process.communicate()
    assert process.returncode == 128 + number, output
    assert f"Stopped by {signal.Signals(number).name}" in output
    assert "Traceback" not in output
    finish(start(run_file, folder.name))
    assert rows(folder) == rows(whole)
