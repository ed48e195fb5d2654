"""Two algorithms of different kinds lift held-out accuracy by 0.2; docs/algorithms/learning.md has them all.

A critic, and DAPO's parts; the quickstart is GRPO itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder in which the first test writes data and a warm start for the others."""
    return tmp_path_factory.mktemp("learning")


@pytest.mark.learning
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", [pytest.param("ppo", marks=pytest.mark.evidence), "dapo"])
def test_it_learns(name: str, shared: Path) -> None:
    script = ROOT / "benchmarks" / "learning.py"
    done = subprocess.run(
        [sys.executable, script, "--only", name, "--seeds", "1", "--out", shared],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    measured = json.loads((shared / "measured" / f"{name}-1.json").read_text())
    (accuracy,) = measured["values"].values()
    assert accuracy[0] < 0.5
    assert accuracy[-1] >= accuracy[0] + 0.2
