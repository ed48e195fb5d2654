"""Studio's application with a browser's cookie, in an empty folder, and an interrupted run in it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("ruamel.yaml", reason="comes with strop[studio]")

from starlette.testclient import TestClient

from strop.errors import Interrupted
from strop.studio.app import make_app
from strop.studio.settings import StudioSettings
from tests.report.run_folders import group, metrics, open_recorder

SETTINGS = StudioSettings(Path("runs"), "the token")


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    """Client that has the token; the runs are in the folder `runs` of the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("STROP_HERE", raising=False)
    app = make_app(replace(SETTINGS, folder=tmp_path))
    with TestClient(app, base_url="http://127.0.0.1:8765") as found:
        found.headers["authorization"] = f"Bearer {SETTINGS.token}"
        yield found


@pytest.fixture
def run(client: TestClient) -> Path:
    """A run of three steps with rollouts, interrupted after them, and a second one of a step."""
    return record_runs(Path("runs/sums"))


def record_runs(project: Path) -> Path:
    """Record a run `first` of three steps with rollouts, interrupted, and `second` of a step; returns the first."""
    path = project / "first"
    with pytest.raises(Interrupted), open_recorder(path) as recorder:
        for step in (1, 2, 3):
            recorder.log_step(step, metrics(step))
            texts = [f"<b>good</b> {step}", "bad"]
            groups = [group(n, texts, [1.0, 0.25 * n], prompt=f"{n}+{step}?") for n in range(3)]
            recorder.log_rollouts(step, groups)
        raise Interrupted("Stopped by SIGTERM.", signal.SIGTERM)
    (path / "images").mkdir()
    (path / "images/a.png").write_bytes(b"png")
    with open_recorder(project / "second") as recorder:
        recorder.log_step(1, metrics(5))
    second = project / "second/run.yaml"
    second.write_text(second.read_text().replace("seed: 1", "seed: 2"))
    return path
