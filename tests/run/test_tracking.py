"""Tracking services, for real: W&B offline, MLflow and Trackio in local databases, SwanLab offline."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from strop.errors import MissingExtraError, MonitorError, RunFolderError
from strop.run.recording import trackers

from .conftest import Values
from .results import train

SERVICES = ["wandb", "mlflow", "swanlab"]
RECORD = {
    "monitors": SERVICES,
    "wandb": {"mode": "offline", "tags": ["first", "second"]},
    "mlflow": {"tags": {"team": "blue"}},
    "swanlab": {"mode": "offline"},
    "eval_answers": 2,
    "report": False,
}


@pytest.fixture(autouse=True)
def _no_settings_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_MODE", "MLFLOW_TRACKING_URI", "SWANLAB_MODE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.slow
def test_a_resumed_run_continues_the_runs_of_the_services(values: Values) -> None:
    from mlflow.tracking import MlflowClient

    run = values(record=RECORD)
    folder = train(run, "trainer.duration=2 steps").folder
    ids = json.loads((folder / "tracking.json").read_text())
    assert set(ids) == set(SERVICES)
    train(run)
    assert json.loads((folder / "tracking.json").read_text()) == ids

    client = MlflowClient(f"sqlite:///{Path(run['output']).absolute() / 'mlflow.db'}")
    tracked = client.get_run(ids["mlflow"])
    assert tracked.info.status == "FINISHED"
    assert tracked.data.tags["team"] == "blue"
    assert tracked.data.params["algorithm.rollouts_per_task"] == "4"
    steps = [metric.step for metric in client.get_metric_history(ids["mlflow"], "reward/mean")]
    assert steps == [1, 2, 3, 4]
    artifacts = [found.path for found in client.list_artifacts(ids["mlflow"], "eval/held-out")]
    assert "eval/held-out/step-000004.md" in artifacts

    sessions = sorted((folder / "wandb").glob(f"offline-run-*-{ids['wandb']}"))
    assert len(sessions) == 2, "one folder for each session, of one run"
    for session in sessions:
        content = (session / f"run-{ids['wandb']}.wandb").read_bytes()
        assert b"reward/mean" in content and b"second" in content
        assert list(session.glob("files/media/table/eval/held-out/*.json"))

    sessions = sorted((folder / "swanlab").glob(f"run-*-{ids['swanlab']}"))
    assert len(sessions) == 2
    for session in sessions:
        assert b"reward/mean" in (session / f"run-{ids['swanlab']}.swanlab").read_bytes()


def test_a_resumed_run_continues_the_run_of_trackio(
    values: Values, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the environment of `make environments`: trackio excludes the version of pillow in constraints.txt."""
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    pytest.importorskip("trackio", reason="comes with strop[trackio]")
    run = values(record={"monitors": ["trackio"], "eval_answers": 2, "report": False})
    folder = train(run, "trainer.duration=2 steps").folder
    ids = json.loads((folder / "tracking.json").read_text())
    train(run)
    assert json.loads((folder / "tracking.json").read_text()) == ids
    project = run.get("project", "strop")
    query = "SELECT step, metrics FROM metrics WHERE run_name = ?"
    with closing(sqlite3.connect(tmp_path / "trackio" / f"{project}.db")) as database:
        rows = database.execute(query, [ids["trackio"]]).fetchall()
    logged = [(step, name) for step, metrics in rows for name in json.loads(metrics)]
    assert sorted(step for step, name in logged if name == "reward/mean") == [1, 2, 3, 4]
    assert (4, "eval/held-out/samples") in logged


def test_a_trackio_server_without_a_token_is_one_paragraph(
    values: Values, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("trackio", reason="comes with strop[trackio]")
    monkeypatch.delenv("TRACKIO_WRITE_TOKEN", raising=False)
    record = {"monitors": ["trackio"], "trackio": {"server_url": "http://127.0.0.1:9"}}
    with pytest.raises(MonitorError, match=r"^trackio could not start the run: .*Check record\.trackio"):
        train(values(record=record))


def test_a_server_that_does_not_answer_is_one_paragraph(
    values: Values, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    record = {"monitors": ["mlflow"], "mlflow": {"tracking_uri": "http://user:secret@127.0.0.1:9"}}
    with pytest.raises(
        MonitorError, match=r"(?s)^MLflow at http.*Check record\.mlflow\.tracking_uri\.$"
    ) as caught:
        train(values(record=record))
    assert "secret" not in str(caught.value)


def test_a_missing_package_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda _: None)
    with pytest.raises(
        MissingExtraError, match=r"^record.monitors lists wandb, .*pip install 'strop\[wandb\]'$"
    ):
        trackers.require_package("wandb")


@pytest.mark.parametrize("content", ["{", "[1]", "5"])
def test_a_damaged_file_of_ids_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "tracking.json").write_text(content)
    with pytest.raises(RunFolderError, match=r"tracking\.json: damaged.*delete it"):
        trackers.load_run_id(tmp_path, "wandb")
