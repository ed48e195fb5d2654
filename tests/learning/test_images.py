"""GRPO teaches a random model with a vision tower to name a color that only the image shows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import strop

EXAMPLE = Path(__file__).parents[2] / "examples" / "images" / "colors"
WARM_UP_STEPS = 20


@pytest.mark.learning
def test_colors_in_images_are_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMAGES", str(tmp_path))
    subprocess.run([sys.executable, EXAMPLE / "make.py", tmp_path], check=True)
    folder = strop.train(strop.load(EXAMPLE / "run.yaml", [f"output={tmp_path / 'runs'}"])).folder
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    held_out = {row["step"]: row["eval/held-out/reward"] for row in rows if "eval/held-out/reward" in row}
    assert held_out[WARM_UP_STEPS] < 0.3, "the warm-up alone does not solve the task"
    assert held_out[max(held_out)] > 0.8
    sampled = [row["reward/mean"] for row in rows if "reward/mean" in row]
    assert len(sampled) == max(held_out) - WARM_UP_STEPS
    assert sampled[0] < 0.3
    assert sampled[-1] > 0.8
