"""Fixtures: an empty folder with the files that configurations name, on a machine without GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from strop.config.machine import Machine, Node

from .trinity_file import BASE

DEEPSPEED = '{"zero_optimization": {"stage": 3}}'


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The current folder, with Trinity's `t.yaml` and DeepSpeed's `ds.json`."""
    monkeypatch.setattr("strop.config.machine._local_machine", lambda: Machine((Node("this machine", 0),)))
    for name in ("STROP_HERE", "TRINITY_CHECKPOINT_ROOT_DIR", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    Path("t.yaml").write_text(BASE)
    Path("ds.json").write_text(DEEPSPEED)
    return tmp_path
