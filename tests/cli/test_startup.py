"""The command line starts quickly, and without the heavy libraries."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {"torch", "transformers", "pyarrow", "datasets", "peft", "numpy", "sympy"}
CPU_SECONDS = 0.5
SLACK = 1.6
"""For a slow or busy machine; on the one that the half second was set on, `explain` takes 0.3."""

COMMANDS = [
    ["--help"],
    ["check", "run.yaml"],
    ["explain", "run.yaml", "trainer.tasks_per_step=8"],
    ["convert", "run.yaml", "--to", "strop"],
    ["verl", "ppo", "--explain", "algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=4"],
]


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_nothing_heavy_is_imported(run_file: Path, words: list[str]) -> None:
    program = (
        "import sys\n"
        "from strop.cli.main import app\n"
        f"app({words!r}, standalone_mode=False)\n"
        f"print('HEAVY', sorted({HEAVY!r} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=run_file.parent, check=True
    )
    assert done.stdout.splitlines()[-1] == "HEAVY []"


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_it_takes_under_half_a_second_of_cpu(run_file: Path, words: list[str]) -> None:
    took = min(_cpu_seconds(words, run_file.parent) for _ in range(3))
    assert took < CPU_SECONDS * SLACK


def _cpu_seconds(words: list[str], folder: Path) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "strop", *words], capture_output=True, cwd=folder, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
