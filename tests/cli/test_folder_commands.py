"""`strop list`, `show`, `compare` and `watch` on run folders, and `strop init`."""

from __future__ import annotations

import json
import re
import time
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml

from strop.config.first_run import FirstRun
from strop.config.load.loader import load_run
from strop.models.tiny import make_model
from strop.runs.folder import LOCK_FILE, RunFolder
from strop.runs.lock import LockHolder, lock_run
from tests.report.run_folders import group, metrics, open_recorder

from .conftest import Cli


def write_run(path: Path, steps: int) -> None:
    """A run of 10 steps that has done some, with an evaluation after each."""
    with open_recorder(path) as record:
        for step in range(1, steps + 1):
            record.log_step(step, {**metrics(step), "eval/sums/reward": 0.1 * step})
        record.log_evaluation("sums", 0, [group(0, ["before"], [0.0])])
        record.log_evaluation("sums", steps, [group(0, ["after"], [1.0])])


def test_a_folder_that_is_renamed_while_runs_are_listed_is_left_out(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(Path("runs/sums/a"), 1)
    Path("runs/sums/c").mkdir()
    is_dir = Path.is_dir

    def then_gone(path: Path) -> bool:
        found = is_dir(path)
        if found and path.name == "c":
            path.rmdir()
        return found

    monkeypatch.setattr(Path, "is_dir", then_gone)
    assert [line.split()[0] for line in cli("list").output.splitlines()] == ["run", "sums/a"]


def test_each_run_below_a_folder_is_one_row(cli: Cli) -> None:
    runs = Path("runs/sums")
    write_run(runs / "a", 10)
    write_run(runs / "b", 3)
    (runs / "b" / "metrics.jsonl").write_text("{\n")
    (runs / "c").mkdir()
    header, first, second = cli("list").output.splitlines()
    assert header.split() == ["run", "status", "step", "reward", "held-out", "last", "change"]
    assert first.split()[:6] == ["sums/a", "finished", "10/10", "1", "sums", "1"] and first.endswith("ago")
    assert second.split()[:2] == ["sums/b", "damaged"]
    Path("empty").mkdir()
    assert cli("list", "empty").output == "No runs in empty.\n"


def test_a_run_without_an_end_is_running_while_its_process_is_alive(cli: Cli) -> None:
    run = Path("runs/a")
    write_run(run, 4)
    text = json.loads((run / "run.json").read_text())
    text["sessions"][-1]["outcome"] = None
    (run / "run.json").write_text(json.dumps(text))
    assert " killed " in cli("list").output
    with lock_run(RunFolder(run), mode="both", is_distributed=False):
        assert " running " in cli("list").output
        assert ": running, step 4 of 10" in cli("show", "runs/a").output
    (run / LOCK_FILE).write_text(json.dumps(asdict(LockHolder.current())))
    assert " killed " in cli("list").output  # a file that no process has locked


def test_show_has_the_summary_the_curves_and_samples(cli: Cli) -> None:
    write_run(Path("run"), 10)
    lines = cli("show", "run", "--samples", "1").output.splitlines()
    assert lines[0] == "run: finished, step 10 of 10"
    curve = next(line for line in lines if line.startswith("reward/mean"))
    assert "▁" in curve and "█" in curve and curve.endswith("0.100 -> 1")
    assert any(line.startswith("eval/sums/reward") for line in lines)
    assert "    before" in lines and "    after" in lines
    assert sum(line.startswith("Held out") for line in lines) == 1


def test_compare_shows_settings_that_differ_and_last_values(cli: Cli) -> None:
    for name, steps, rate in (("a", 10, "0.001"), ("b", 5, "0.002")):
        write_run(Path("runs") / name, steps)
        file = Path("runs") / name / "run.yaml"
        changed = file.read_text().replace("lr: 1.0e-06", f"lr: {rate}")
        file.write_text(changed.replace("eval: []", f"eval: [{{name: sums, path: {name}.jsonl}}]"))
    done = cli("compare", "runs/a", "runs/b", "--html", "both.html")
    rows = {line.split()[0]: line.split()[1:] for line in done.output.splitlines() if line}
    assert rows["setting"] == ["a", "b"] and rows["trainer.optimizer.lr"] == ["0.001", "0.002"]
    assert rows["reward/mean"] == ["1", "0.500"] and "seed" not in rows
    assert rows["data.eval.0.path"] == ["a.jsonl", "b.jsonl"] and "data.eval.0.name" not in rows
    assert "with equal last values left out." in done.output
    page = Path("both.html").read_text()
    assert "trainer.optimizer.lr" in page and page.count('<div class="card chart">') >= 3
    assert page.count(">after<") == 2


def test_watch_waits_for_a_run_to_start_and_ends_with_it(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    result = cli("watch", "none", "--wait", "0.2", "--every", "0.1")
    assert result.exit_code != 0 and "waiting 0.2 s" in result.output
    assert "is not a run folder" in result.output
    monkeypatch.setattr(time, "sleep", lambda seconds: write_run(Path("new"), 10))
    result = cli("watch", "new")
    assert result.exit_code == 0 and "step 10/10  reward 1" in result.output
    assert "step  9/10" not in result.output and "finished." in result.output


INIT = ("init", "--model", "owner/model", "--train", "sums.csv", "--reward", "exact")


def test_init_writes_a_run_file_that_can_start(cli: Cli) -> None:
    rows = [f"What is {n} + 1?,{n + 1}" for n in range(20)]
    Path("sums.csv").write_text("\n".join(["question,answer", *rows]) + "\n")
    options = (*INIT, "--prompt", "question")
    result = cli(*options, "--eval", "sums.csv", "--lora", "--steps", 30)
    assert (
        result.exit_code == 0 and "The run can start" in result.output and "train: 20 rows" in result.output
    )
    run = load_run("run.yaml").run
    assert run.data.train.prompt == "question" and run.model.lora is not None
    assert str(run.trainer.duration) == "30 steps" and str(run.evaluate.every) == "6 steps"
    assert run.project == "sums"
    schema = re.match(r"# yaml-language-server: \$schema=(.*)", Path("run.yaml").read_text())
    assert schema and json.loads(Path(schema[1]).read_text())["title"] == "A run file of Strop"
    again = cli(*options)
    assert again.exit_code != 0 and "run.yaml exists" in again.output


def test_a_first_run_without_answers_has_no_column_of_answers() -> None:
    values = {"model": "m", "train": "t.jsonl", "prompt": "question", "reward": "r.py:f", "eval": "e.jsonl"}
    switches = {"lora": False, "chat": True, "bfloat16": False}
    text = FirstRun(answer=None, steps=1, max_response_tokens=8, **values, **switches).text()
    data = yaml.safe_load(text)["data"]
    assert data["train"]["answer"] is None and data["eval"][0]["answer"] is None


def test_init_writes_what_makes_the_run_fit(cli: Cli) -> None:
    make_model(Path("model"), ["what is one and one"], hidden_size=512, layers=6)
    Path("sums.csv").write_text("prompt,answer\n" + "What is 1 + 1?,2\n" * 20)
    options = (*INIT, "--model", "model", "--force")
    said = {size: cli(*options, "--machine", f"1xT4-{size}GB").output for size in (16, 1)}
    assert "Written into the file" not in said[16] and "does not fit" not in said[16] + said[1]
    assert "Written into the file, so that the run fits into 1 GiB:\n  model.dtype=bfloat16" in said[1]
    comment = "  dtype: bfloat16  # to fit into 1 GiB: small updates are lost to rounding\n"
    assert comment in Path("run.yaml").read_text()
    assert load_run("run.yaml").run.model.dtype == "bfloat16"


def test_init_without_a_terminal_names_the_missing_option(cli: Cli) -> None:
    Path("sums.csv").write_text("question,words\nWhat is 1 + 1?,2\n")
    for words, said in (
        (INIT[:3], "--train is missing"),
        (INIT, "--prompt is missing, and there is no terminal"),
        (INIT, "question, words: write one of them."),
        ((*INIT, "--prompt", "question"), "--answer is missing, and there is no terminal"),
        ((*INIT, "--prompt", "question"), "--answer '' if the reward needs none"),
    ):
        result = cli(*words)
        assert result.exit_code != 0 and said in " ".join(result.output.split())
    assert not Path("run.yaml").exists()


def test_values_of_a_first_run_file_are_quoted(cli: Cli) -> None:
    cli("init", "--model", "a: b", "--train", "x, y.jsonl", "--reward", "exact")
    written = yaml.safe_load(Path("run.yaml").read_text())
    assert written["model"]["path"] == "a: b" and written["data"]["train"]["path"] == "x, y.jsonl"
