"""A run file to start from."""

from __future__ import annotations

from pathlib import Path

import pytest

from .trinity_file import BASE

RUN = """\
project: sums
name: first
model: {path: m, lora: {rank: 8}}
data:
  train: {path: train.jsonl}
  eval:
    - {name: held-out, path: test.jsonl, sampling: {temperature: 0.5}}
reward: exact
rollout: {engine: native}
trainer:
  tasks_per_step: 64
  optimizer: {lr: 3e-6}
  schedule: cosine
checkpoint: {every: 20 steps}
"""


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(RUN)
    return path


@pytest.fixture
def trinity_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`t.yaml` in an empty folder, on a machine without a GPU."""
    monkeypatch.setattr("strop.config.dialects.verl.trainer.cuda_devices", lambda: 0)
    for name in ("STROP_HERE", "TRINITY_CHECKPOINT_ROOT_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    Path("t.yaml").write_text(BASE)
