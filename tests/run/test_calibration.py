"""`strop plan --calibrate`: steps of a run as this machine takes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

import strop
from strop.cli.main import app
from strop.config import local_workers
from strop.errors import StropError
from strop.run.entry import calibrate
from tests.cases import nightly

from .conftest import Values


class InThisProcess:
    """A fake: `strop train FILE` as a process, run by this one."""

    def __init__(self, command: list[str], **options: Any) -> None:
        self.returncode, self.stdout = 0, list[str]()
        try:
            strop.train(strop.load(command[-1]))
        except StropError as error:
            self.returncode, self.stdout = 1, [str(error)]

    def __enter__(self) -> InThisProcess:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to wait for."""


@pytest.fixture(params=[True, *nightly(False)], ids=lambda fake: "here" if fake else "process")
def plan(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str]]:
    """Exit code and output of `strop plan` on a run, with an empty cache."""
    monkeypatch.setenv("STROP_CACHE", str(tmp_path / "cache"))
    if request.param:
        fake = SimpleNamespace(Popen=InThisProcess, PIPE=None, STDOUT=None)
        monkeypatch.setattr(calibrate, "subprocess", fake)

    def invoke(run: dict[str, Any], *options: str) -> tuple[int, str]:
        file = tmp_path / "run.yaml"
        file.write_text(json.dumps(run))
        result = CliRunner().invoke(app, ["plan", str(file), *options])
        return result.exit_code, result.output

    return invoke


def test_steps_are_measured_once_and_known_afterwards(values: Values, plan: Any, tmp_path: Path) -> None:
    code, said = plan(values())
    assert code == 0 and "Seconds of a step: not known" in said
    code, said = plan(values(), "--calibrate")
    assert code == 0 and "mean of 2 steps, with responses of" in said and "for 4 steps of this length" in said
    assert not (tmp_path / "runs").exists()
    code, said = plan(values(trainer__duration="40 steps", name="another"))
    assert code == 0 and "for 40 steps of this length" in said
    code, said = plan(values(trainer__tasks_per_step=12))
    assert code == 0 and "Seconds of a step: not known" in said


def test_other_numbers_of_workers_are_measured_where_the_run_has_the_choice(
    values: Values, plan: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_workers, "usable_cores", lambda: 4)
    monkeypatch.setattr(calibrate, "_train", lambda run, folder: [steps_of(run.trainer.engine.workers)] * 3)
    code, said = plan(values(trainer__tasks_per_step=4), "--calibrate")
    assert (
        code == 0
        and "and of one with trainer.engine.workers=2, and of one with trainer.engine.workers=1" in said
    )
    assert "Step: 4.0 s" in said and "workers=2: 2.0 s" in said and "workers=1: 9.0 s" in said
    assert "trainer.engine.workers=2 is faster here than auto: write it." in said
    code, said = plan(values(trainer__tasks_per_step=4, trainer__engine={"type": "local", "workers": 4}))
    assert code == 0 and "workers=" not in said


def steps_of(workers: int | str) -> dict[str, float]:
    """The metrics of a step with a number of workers."""
    return {"time/step_seconds": {"auto": 4.0, 2: 2.0, 1: 9.0}[workers], "memory/peak_mb": 1.0}


def test_a_calibration_that_fails_shows_why(values: Values, plan: Any) -> None:
    code, said = plan(values(data__train__path="missing.jsonl"), "--calibrate")
    assert code != 0 and "The calibration's steps failed" in said and "missing.jsonl" in said


def test_what_cannot_be_measured(values: Values, plan: Any) -> None:
    queue = {"type": "sql", "url": "sqlite:////tmp/shared.db"}
    server = {"type": "openai", "model": "m", "base_url": "http://127.0.0.1:9/v1?api_key=literal"}
    for changes, options, says in (
        ({}, ["--machine", "1xA10-24GB"], "leave --machine out"),
        ({"mode": "train"}, [], "mode: both"),
        ({"buffer": queue, "synchronizer": {"type": "checkpoint"}}, [], "data at buffer.url"),
        ({"rollout__engine": server}, [], "has a password or key"),
    ):
        code, said = plan(values(**changes), "--calibrate", *options)
        assert code != 0 and says in said and "literal" not in said
