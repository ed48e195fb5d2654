"""`strop init` and `strop watch`."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from strop.cli.main import app
from strop.config.load.loader import load_run
from tests.report.run_folders import metrics, open_recorder


def invoke(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [*map(str, arguments)])
    return result.exit_code, result.output


def test_init_writes_a_run_file_that_can_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [f"What is {n} + 1?,{n + 1}" for n in range(20)]
    Path("sums.csv").write_text("\n".join(["question,answer", *rows]) + "\n")
    options = ("--model", "owner/model", "--train", "sums.csv", "--reward", "exact", "--prompt", "question")
    code, said = invoke("init", *options, "--eval", "sums.csv", "--lora", "--steps", 30)
    assert code == 0 and "The run can start" in said and "train: 20 rows" in said
    run = load_run("run.yaml").run
    assert run.data.train.prompt == "question" and run.model.lora is not None
    assert str(run.trainer.duration) == "30 steps" and str(run.evaluate.every) == "3 steps"
    assert run.project == "sums"
    code, said = invoke("init", *options)
    assert code != 0 and "run.yaml exists" in said


def test_init_without_a_terminal_names_the_missing_option(tmp_path: Path) -> None:
    code, said = invoke("init", tmp_path / "run.yaml", "--model", "owner/model")
    assert code != 0 and "--train is missing" in said


def test_values_of_a_run_file_are_quoted(tmp_path: Path) -> None:
    options = ("--model", "a: b", "--train", "x, y.jsonl", "--reward", "exact", "--force")
    invoke("init", tmp_path / "run.yaml", *options)
    written = yaml.safe_load((tmp_path / "run.yaml").read_text())
    assert written["model"]["path"] == "a: b" and written["data"]["train"]["path"] == "x, y.jsonl"


def test_watch_of_a_run_that_has_ended(tmp_path: Path) -> None:
    with open_recorder(tmp_path) as record:
        for step in range(1, 4):
            record.log_step(step, metrics(step))
    code, said = invoke("watch", tmp_path)
    assert code == 0 and "step  3/10  reward 0.3" in said and "step  2/10" not in said
    assert "finished." in said
