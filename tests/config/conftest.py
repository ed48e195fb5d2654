"""A run file that the tests change."""

from __future__ import annotations

from pathlib import Path

import pytest

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
