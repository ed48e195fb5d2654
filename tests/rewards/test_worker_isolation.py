"""Reward worker processes: resource limits, environment, and the end of all processes that a function starts."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from typing import Any

import psutil
import pytest

from strop.config.schema.reward import RewardConfig
from strop.rewards.execution import worker_pool
from strop.rewards.scorer import Scorer
from strop.types import Rollout
from tests.rewards.builders import group

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits and subreapers are Linux's")


def score(function: Any, texts: list[str], **options: Any) -> tuple[Rollout, ...]:
    section = RewardConfig(workers=1, **{"timeout_seconds": 20.0, **options})
    with Scorer(section, function) as scorer:
        return scorer.score([group(texts)])[0].rollouts


def test_memory_and_file_size_are_limited(tmp_path):
    def greedy(completion: str) -> float:
        if completion == "memory":
            return float(len(bytearray(2_000_000_000)))
        if completion == "file":
            (tmp_path / "large").write_bytes(bytes(3_000_000))
        return 1.0

    limits = {"memory_gb": 1.0, "file_gb": 0.002}
    memory, file, ordinary = score(greedy, ["memory", "file", "ordinary"], worker=limits)
    assert "raised MemoryError" in (memory.error or "")
    assert "File too large" in (file.error or "")
    assert ordinary.reward == 1.0


@pytest.mark.skipif(os.getuid() == 0, reason="the kernel exempts root")
def test_the_number_of_processes_is_limited():
    def many(completion: str) -> float:
        started = [subprocess.Popen(["sleep", "60"]) for _ in range(200)]
        return float(len(started))

    (rollout,) = score(many, ["a"], worker={"processes": 50})
    assert "BlockingIOError" in (rollout.error or "")


def test_the_environment_is_an_allow_list(monkeypatch):
    names = ["HOME", "HF_HOME", "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "MY_DATA", "LC_ALL"]
    for name in names:
        monkeypatch.setenv(name, "x")

    def has(completion: str) -> float:
        return float(completion in os.environ)

    for worker, expected in (
        ({}, [1, 1, 1, 0, 0, 1]),
        ({"more_environment": ["MY_*"]}, [1, 1, 1, 0, 1, 1]),
        ({"environment": ["HOME", "PATH"]}, [1, 0, 0, 0, 0, 0]),
    ):
        assert [r.reward for r in score(has, names, worker=worker)] == expected


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["exit", "hang", "return"])
def test_what_a_function_started_ends_with_its_worker(tmp_path, monkeypatch, ending):
    """A process with a session of its own, and one whose parent has ended, which both hold the pipe."""
    pids = tmp_path / "pids"
    seconds = f"60.{os.getpid()}"  # other test processes run this test, too

    def starts(completion: str) -> float:
        script = "import os; os.fork() and os._exit(0); os.setsid(); print(os.getpid(), flush=True)"
        script += f"; os.execlp('sleep', 'sleep', '{seconds}')"
        for descriptor in range(3, 32):
            with contextlib.suppress(OSError):
                os.set_inheritable(descriptor, True)
        with pids.open("w") as output:
            subprocess.Popen([sys.executable, "-c", script], stdout=output, close_fds=False).wait()
            subprocess.Popen(["sleep", seconds], close_fds=False, start_new_session=True)
        while not pids.read_text():
            time.sleep(0.01)
        if ending == "exit":
            os._exit(3)
        while ending == "hang":
            time.sleep(1)
        return 1.0

    # Nothing but "hang" reaches the limit; it must have started its processes by then.
    monkeypatch.setattr(worker_pool, "GRACE_SECONDS", 1.0)
    texts, limit = (["a"], 10.0) if ending == "hang" else (["a", "b"], 60.0)
    rollouts = score(starts, texts, timeout_seconds=limit)
    assert {r.reward for r in rollouts} == {1.0 if ending == "return" else None}
    said = {"exit": "ended its process with exit code 3", "hang": "took longer than 10 s"}
    assert said.get(ending, "") in (rollouts[0].error or "")  # "exit": the pool knew at once
    assert not psutil.pid_exists(int(pids.read_text()))
    assert ["sleep", seconds] not in [process.info["cmdline"] for process in psutil.process_iter(["cmdline"])]


def test_a_fork_of_the_worker_sends_nothing():
    def forks(completion: str) -> float:
        os.fork()
        return float(completion)

    assert [r.reward for r in score(forks, ["1", "2", "3"])] == [1.0, 2.0, 3.0]
