"""The notebook is a clean file, and its cells run from top to bottom and teach the model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples" / "notebook" / "first_run.ipynb"
CELLS = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]


def test_the_notebook_has_no_outputs():
    code = [cell for cell in CELLS if cell["cell_type"] == "code"]
    assert code and all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert len({cell["id"] for cell in CELLS}) == len(CELLS)


@pytest.mark.learning
def test_its_cells_run_in_order(tmp_path):
    cells = ["".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "code"]
    program = "\n\n".join([*cells, 'curve.to_json("curve.json", orient="records")'])
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    accuracies = [row["held-out accuracy"] for row in json.loads((tmp_path / "curve.json").read_text())]
    assert accuracies[0] <= 0.6, accuracies
    assert accuracies[-1] >= accuracies[0] + 0.1, accuracies
