"""Fixtures: a run file and a Trinity file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.config.conftest import run_file

from .trinity_file import BASE

__all__ = ["run_file", "trinity_file"]


@pytest.fixture
def trinity_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Write `t.yaml` in an empty folder and simulate a machine without a GPU."""
    monkeypatch.setattr("strop.dialects.verl.gpus.count_cuda_devices", lambda: 0)
    for name in ("STROP_HERE", "TRINITY_CHECKPOINT_ROOT_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    Path("t.yaml").write_text(BASE)
