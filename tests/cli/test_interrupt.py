"""An interrupt (Ctrl-C) of any command prints one line, without a traceback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import yaml

from strop.models.tiny import make_model

REWARD = """
import time
from pathlib import Path

def score(completion, answer):
    Path("reached").touch()
    time.sleep(300)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Run file with a reward function that creates the file `reached` and sleeps."""
    make_model(tmp_path / "model", ["1 + 2 ="], vocab_size=280, hidden_size=16, layers=1, heads=2, kv_heads=2)
    (tmp_path / "train.jsonl").write_text(json.dumps({"prompt": "1 + 2 =", "answer": "3"}) + "\n")
    (tmp_path / "mine.py").write_text(REWARD)
    values = {
        "model": {"path": "./model"},
        "data": {
            "train": {"path": "train.jsonl"},
            "eval": [{"name": "sums", "path": "train.jsonl"}],
            "max_prompt_tokens": 16,
            "max_response_tokens": 4,
        },
        "reward": {"functions": [{"function": "mine.py:score"}]},
        "trainer": {"duration": "1 steps", "tasks_per_step": 1},
        "record": {"monitors": [], "report": False},
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(values))
    return tmp_path


def interrupt(folder: Path, *words: str, ready: Callable[[], bool]) -> tuple[int, str]:
    """Start a command in a process group, and interrupt the group when it is ready; returns code and stderr."""
    process = subprocess.Popen(
        [sys.executable, "-m", "strop", *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        while not ready():
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        time.sleep(0.3)  # Python notices a signal right before a blocking system call only after the call
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate()
    finally:
        process.kill()
    return process.returncode, errors


@contextmanager
def blocked_run_file(folder: Path) -> Iterator[Callable[[], int | None]]:
    """Replace the run file by a fifo; yields a function that opens it once the command reads it, else None."""
    (folder / "run.yaml").rename(folder / "kept.yaml")
    os.mkfifo(folder / "run.yaml")
    opened: list[int] = []

    def writer() -> int | None:
        if not opened:
            with suppress(OSError):  # ENXIO: no process reads the fifo yet
                opened.append(os.open(folder / "run.yaml", os.O_WRONLY | os.O_NONBLOCK))
        return opened[0] if opened else None

    yield writer
    for descriptor in opened:
        with suppress(OSError):
            os.close(descriptor)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["train", pytest.param("evaluate", marks=pytest.mark.slow)])
def test_while_a_reward_function_runs(folder: Path, command: str) -> None:
    code, errors = interrupt(folder, command, "run.yaml", ready=(folder / "reached").exists)
    assert code == 130
    assert errors.startswith("strop: ") and len(errors.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["explain", "run.yaml"],
        ["check", "run.yaml"],
        ["convert", "run.yaml", "--to", "verl"],
        ["train", "run.yaml"],
        ["generate", "run.yaml", "--prompts", "train.jsonl", "--out", "out.parquet"],
    ],
    ids=lambda words: words[0],
)
def test_while_the_configuration_is_read(folder: Path, words: list[str]) -> None:
    with blocked_run_file(folder) as writer:
        code, errors = interrupt(folder, *words, ready=lambda: writer() is not None)
    assert code == 130
    assert errors == "strop: Interrupted.\n"


def test_while_responses_are_generated(folder: Path) -> None:
    """The interrupt comes while torch is imported, the model is loaded, or responses are sampled."""
    (folder / "prompts.jsonl").write_text((folder / "train.jsonl").read_text() * 20000)

    def ready() -> bool:
        descriptor = writer()
        if descriptor is None:
            return False
        os.write(descriptor, (folder / "kept.yaml").read_bytes())
        os.close(descriptor)
        return True

    with blocked_run_file(folder) as writer:
        words = ["generate", "run.yaml", "--prompts", "prompts.jsonl", "--out", "out.parquet"]
        code, errors = interrupt(folder, *words, ready=ready)
    assert code == 130
    assert errors.startswith("strop: ") and len(errors.splitlines()) == 1
