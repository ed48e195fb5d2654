"""The command line starts without the heavy libraries."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {
    "datasets",
    "jinja2",
    "numpy",
    "peft",
    "pyarrow",
    "ray",
    "rich.console",
    "sympy",
    "tensorboard",
    "torch",
    "transformers",
}
"""Modules that take long to import; `benchmarks/startup.py` measures the time of the commands."""

COMMANDS = [
    ["--help"],
    ["explain", "run.yaml", "trainer.tasks_per_step=8"],
    ["convert", "run.yaml", "--to", "strop"],
    ["verl", "ppo", "--explain", "algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=4"],
    ["keys", "verl"],
]


def heavy_modules(words: list[str], folder: Path) -> str:
    """The heavy modules that a command imports."""
    program = (
        "import sys\n"
        "from strop.cli.main import app\n"
        f"app({words!r}, standalone_mode=False)\n"
        f"print(*sorted({HEAVY!r} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=folder, check=True
    )
    return done.stdout.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_nothing_heavy_is_imported(run_file: Path, words: list[str]) -> None:
    assert heavy_modules(words, run_file.parent) == ""


@pytest.mark.slow
def test_check_imports_only_what_reads_data(run_file: Path) -> None:
    """A tokenizer on this machine is loaded, to encode the first prompts; one of the Hub is not."""
    assert heavy_modules(["check", "run.yaml", "model.path=owner/model"], run_file.parent) == "numpy pyarrow"
