"""`strop init` and `strop watch`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

import strop
from strop.cli.main import app
from strop.config.first_run import FirstRun
from strop.config.load.loader import load_run
from strop.models.tiny import make_model
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
    assert str(run.trainer.duration) == "30 steps" and str(run.evaluate.every) == "6 steps"
    assert run.project == "sums"
    code, said = invoke("init", *options)
    assert code != 0 and "run.yaml exists" in said


def test_a_reward_without_answers_has_no_column_of_answers() -> None:
    values = {"model": "m", "train": "t.jsonl", "prompt": "question", "reward": "r.py:f", "eval": "e.jsonl"}
    first = FirstRun(
        answer=None, steps=1, lora=False, max_response_tokens=8, chat=True, bfloat16=False, **values
    )
    data = yaml.safe_load(first.text())["data"]
    assert data["train"]["answer"] is None and data["eval"][0]["answer"] is None


def test_init_writes_what_makes_the_run_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_model(tmp_path / "model", ["what is one and one"], hidden_size=512, layers=6)
    Path("sums.csv").write_text("prompt,answer\n" + "What is 1 + 1?,2\n" * 20)
    options = ("--model", "model", "--train", "sums.csv", "--reward", "exact", "--force")
    said = {size: invoke("init", *options, "--machine", f"1xT4-{size}GB")[1] for size in (16, 1)}
    assert "Written into the file" not in said[16] and "does not fit" not in said[16] + said[1]
    assert "Written into the file, so that the run fits into 1 GiB:\n  model.dtype=bfloat16" in said[1]
    assert "  dtype: bfloat16  # to fit into 1 GiB: small updates are lost to rounding\n" in (
        Path("run.yaml").read_text()
    )
    assert load_run("run.yaml").run.model.dtype == "bfloat16"


def test_init_without_a_terminal_names_the_missing_option(tmp_path: Path) -> None:
    code, said = invoke("init", tmp_path / "run.yaml", "--model", "owner/model")
    assert code != 0 and "--train is missing" in said
    (tmp_path / "qa.csv").write_text("question,words\nWhat is 1 + 1?,2\n")
    options = ["--model", "owner/model", "--train", tmp_path / "qa.csv", "--reward", "exact"]
    code, said = invoke("init", tmp_path / "run.yaml", *options)
    assert code != 0 and "--prompt is missing" in said and "question, words: write one of them." in said
    code, said = invoke("init", tmp_path / "run.yaml", *options, "--prompt", "question")
    assert code != 0 and "--answer is missing" in said and "--answer '' if the reward needs none" in said
    assert not (tmp_path / "run.yaml").exists()


def test_init_asks_in_a_terminal(tmp_path: Path) -> None:
    """In a real pseudo-terminal: wrong answers are asked again, with what would be right."""
    rows = [{"question": f"What is {n} + 1?", "solution": str(n + 1)} for n in range(20)]
    (tmp_path / "qa.jsonl").write_text("\n".join(map(json.dumps, rows)))
    make_model(tmp_path / "model", ["what is one and one"])
    answers = ["model", "qa.jsonl", "questions", "question", "solution", "exakt", "exact", "", "cpu"]
    said = _in_terminal(tmp_path, answers, "init")
    assert "there is no column 'questions'; the data has question, solution" in said
    assert "reward 'exakt': did you mean 'exact'?" in said
    assert "train: 20 rows" in said and "Train with `strop train run.yaml`." in said
    run = load_run(tmp_path / "run.yaml").run
    assert (run.data.train.prompt, run.data.train.answer) == ("question", "solution")


def _in_terminal(folder: Path, answers: list[str], *command: str) -> str:
    """Output of a command of Strop in a pseudo-terminal, in which each prompt gets the next answer."""
    ours, theirs = os.openpty()
    environment = os.environ | {"PYTHONPATH": str(Path(strop.__file__).parents[1]), "NO_COLOR": "1"}
    started = subprocess.Popen(
        [sys.executable, "-m", "strop", *command],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=folder,
        env=environment,
    )
    os.close(theirs)
    said, waiting = "", list(answers)
    while True:
        try:
            new = os.read(ours, 4096).decode()
        except OSError:  # the other end is closed
            break
        said += new
        if waiting and said.endswith(": "):
            os.write(ours, f"{waiting.pop(0)}\n".encode())
    assert started.wait() == 0, said
    return said


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


def test_watch_waits_for_a_run_to_start(tmp_path: Path) -> None:
    code, said = invoke("watch", tmp_path / "none", "--wait", "0.2", "--every", "0.1")
    assert code != 0 and "waiting 0.2 s" in said and "is not a run folder" in said

    def start() -> None:
        with open_recorder(tmp_path / "other") as record:
            for step in range(1, 11):
                record.log_step(step, metrics(step))
        (tmp_path / "other").rename(tmp_path / "new")

    later = threading.Timer(0.3, start)
    later.start()
    code, said = invoke("watch", tmp_path / "new", "--every", "0.1")
    later.join()
    assert code == 0 and "step 10/10" in said
