"""Examples of signals that arrive in another way: an agent that knows nothing of Strop, images, and a notebook."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import strop
from tests.cases import nightly
from tests.learning.curves import HELD_OUT, column, run_python

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOK = EXAMPLES / "notebook" / "first_run.ipynb"
CELLS = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]


@pytest.mark.slow
def test_an_agents_reward_goes_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKFLOWS", str(tmp_path))
    monkeypatch.setenv("EXAMPLES", str(EXAMPLES / "workflows"))
    run_python(EXAMPLES / "workflows" / "make.py", tmp_path)
    run = strop.load(EXAMPLES / "workflows" / "agent.yaml", [f"output={tmp_path / 'runs'}"])
    folder = strop.train(run).folder
    held_out, rewards = column(folder, HELD_OUT), column(folder, "reward/mean")
    assert held_out[0] < 0.3
    assert held_out[-1] > 0.8
    assert sum(rewards[-3:]) > sum(rewards[:3])
    assert set(column(folder, "rollouts/error_fraction")[1:]) == {0}


@pytest.mark.slow
@pytest.mark.nightly
def test_colors_in_images_are_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GRPO teaches a random model with a vision tower to name a color that only the image shows."""
    monkeypatch.setenv("IMAGES", str(tmp_path))
    run_python(EXAMPLES / "images" / "colors" / "make.py", tmp_path)
    run = strop.load(EXAMPLES / "images" / "colors" / "run.yaml", [f"output={tmp_path / 'runs'}"])
    folder = strop.train(run).folder
    held_out, sampled = column(folder, HELD_OUT), column(folder, "reward/mean")
    assert held_out[2] < 0.3, "the warm-up of 20 steps alone does not solve the task"
    assert held_out[-1] > 0.8
    assert len(sampled) == 80 - 20
    assert sampled[0] < 0.3
    assert sampled[-1] > 0.8


def test_the_notebook_has_no_outputs() -> None:
    code = [cell for cell in CELLS if cell["cell_type"] == "code"]
    assert code and all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert len({cell["id"] for cell in CELLS}) == len(CELLS)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [20, *nightly(80)])
def test_the_cells_of_the_notebook_run_in_order(tmp_path, monkeypatch, steps):
    """At its full length, the model learns: accuracy rises by 0.1."""
    monkeypatch.chdir(tmp_path)
    variables: dict[str, Any] = {"__name__": "__main__"}
    for cell in CELLS:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]).replace('"80 steps"', f'"{steps} steps"'), variables)
    curve = variables["curve"]
    assert curve["step"].tolist() == list(range(0, steps + 1, 20))
    assert len(variables["before_and_after"]) == 200
    accuracies = curve["held-out accuracy"].tolist()
    assert accuracies[0] <= 0.6, accuracies
    assert steps < 80 or accuracies[-1] >= accuracies[0] + 0.1, accuracies
