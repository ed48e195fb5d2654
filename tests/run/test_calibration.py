"""`strop plan --calibrate`: steps of a run as this machine takes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from strop.cli.main import app

Values = Callable[..., dict[str, Any]]


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str]]:
    """Exit code and output of `strop plan` on a run, with an empty cache."""
    monkeypatch.setenv("STROP_CACHE", str(tmp_path / "cache"))

    def invoke(run: dict[str, Any], *options: str) -> tuple[int, str]:
        file = tmp_path / "run.yaml"
        file.write_text(json.dumps(run))
        result = CliRunner().invoke(app, ["plan", str(file), *options])
        return result.exit_code, result.output

    return invoke


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_calibration_that_fails_shows_why(values: Values, plan: Any) -> None:
    code, said = plan(values(data__train__path="missing.jsonl"), "--calibrate")
    assert code != 0 and "The calibration's steps failed" in said and "missing.jsonl" in said


def test_what_cannot_be_measured(values: Values, plan: Any) -> None:
    code, said = plan(values(), "--calibrate", "--machine", "1xA10-24GB")
    assert code != 0 and "leave --machine out" in said
    code, said = plan(values(mode="train"), "--calibrate")
    assert code != 0 and "mode: both" in said
    queue = {"type": "sql", "url": "sqlite:////tmp/shared.db"}
    code, said = plan(values(buffer=queue, synchronizer={"type": "checkpoint"}), "--calibrate")
    assert code != 0 and "data at buffer.url" in said
    server = {"type": "openai", "model": "m", "base_url": "http://127.0.0.1:9/v1?api_key=literal"}
    code, said = plan(values(rollout__engine=server), "--calibrate")
    assert code != 0 and "has a password or key" in said and "literal" not in said
