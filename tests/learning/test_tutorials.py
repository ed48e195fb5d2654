"""The tutorials are done as they stand: their files are written, their commands run, and the model learns."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from strop.models.tiny import make_model
from tests.models.gguf_files import write_gguf

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"
FENCE = re.compile(r"(?:`([\w.]+)`:\n\n)?```(\w+)\n(.*?)```", re.DOTALL)
"""A block of code, and the name of its file if the text before it ends with that."""


def follow(tutorial: Path, folder: Path) -> None:
    """Write the tutorial's files and run its commands, in their order."""
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(TUTORIALS.parents[1]),
        "OMP_NUM_THREADS": "1",
    }
    for name, language, text in FENCE.findall(tutorial.read_text(encoding="utf-8")):
        if name:
            (folder / name).write_text(text, encoding="utf-8")
        elif language == "sh":
            done = subprocess.run(
                ["bash", "-e", "-c", text],
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.learning
def test_own_data_and_reward(tmp_path):
    follow(TUTORIALS / "own-data-and-reward.md", tmp_path)
    lines = (tmp_path / "runs" / "tutorial" / "largest-grpo" / "metrics.jsonl").read_text().splitlines()
    name = "eval/held-out/reward"
    measured = [row[name] for row in map(json.loads, lines) if name in row]
    assert measured[-1] >= 0.75
    assert measured[-1] >= measured[0] + 0.15, "rounding, and so the CPU, decides where the warm start ends"


def metrics(run: Path) -> list[dict[str, float]]:
    """Rows of a run's metrics with a training step."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def column(run: Path, name: str) -> list[float]:
    """Values of one metric, by step."""
    return [row[name] for row in metrics(run) if name in row]


@pytest.mark.slow
def test_many_processes_and_asynchronous(tmp_path):
    follow(TUTORIALS / "many-processes.md", tmp_path)
    runs = tmp_path / "runs" / "tutorial"
    one, two = (column(runs / name, "reward/mean") for name in ("one-process", "two-ranks"))
    assert one[-1] > one[0] + 0.15
    assert one == pytest.approx(two, abs=1e-4)

    follow(TUTORIALS / "asynchronous.md", tmp_path)
    assert column(runs / "concurrent", "staleness/max") == [0] + 14 * [1]
    rewards = column(runs / "concurrent" / "explorer", "reward/mean")
    assert len(rewards) == 15
    assert rewards[-1] > rewards[0] + 0.12


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tool", "run", "rise", "converted"),
    [
        ("trl", "out", 0.12, "reward: rewards.py:vowels\n"),
        ("verl", "checkpoints/tutorial/vowels", 0.1, "reward: rewards.py:compute_score\n"),
        ("trinity", "runs/tutorial/sing", 0.1, "workflow: sing_workflow\n"),
    ],
)
def test_from_another_tool(tmp_path, tool, run, rise, converted):
    follow(TUTORIALS / f"from-{tool}.md", tmp_path)
    rewards = column(tmp_path / run, "reward/mean")
    assert len(rewards) == 15
    assert rewards[-1] > rewards[0] + rise
    assert converted in (tmp_path / "run.yaml").read_text()


@pytest.mark.slow
@pytest.mark.skipif(find_spec("gguf") is None, reason="needs the extra gguf")
def test_agent_with_tools(tmp_path):
    """A tiny random model in the real one's place goes through both stages; it is too small to learn much."""
    examples = TUTORIALS.parents[1] / "examples"
    (tmp_path / "examples").symlink_to(examples)
    real = tmp_path / "runs" / "real"
    real.mkdir(parents=True)
    corpus = (examples / "real" / "tools.jinja").read_text().splitlines()
    folder = make_model(tmp_path / "m", 4 * corpus, vocab_size=700, hidden_size=32)
    write_gguf(folder, real / "SmolLM2-135M-Instruct.Q4_1.gguf")
    follow(TUTORIALS / "agent-with-tools.md", tmp_path)
    assert len(column(real / "calculator-warm-up", "loss")) == 16
    assert len(column(real / "calculator-grpo", "reward/mean")) == 10
    assert len(column(real / "calculator-grpo", "eval/held-out/reward")) == 3
