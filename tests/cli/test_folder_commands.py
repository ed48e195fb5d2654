"""`strop list` and `strop show`: what they print of run folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strop.runs.lock import LockHolder
from tests.report.run_folders import group, metrics, open_recorder

from .conftest import Cli


def write_run(path: Path, steps: int) -> None:
    """A run of 10 steps that has done some, with an evaluation after each."""
    with open_recorder(path) as record:
        for step in range(1, steps + 1):
            record.log_step(step, {**metrics(step), "eval/sums/reward": 0.1 * step})
        record.log_evaluation("sums", 0, [group(0, ["before"], [0.0])])
        record.log_evaluation("sums", steps, [group(0, ["after"], [1.0])])


def test_each_run_below_a_folder_is_one_row(cli: Cli, tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "sums" / "a", 10)
    write_run(tmp_path / "runs" / "sums" / "b", 3)
    (tmp_path / "runs" / "sums" / "b" / "metrics.jsonl").write_text("{\n")
    (tmp_path / "runs" / "sums" / "c").mkdir()
    done = cli("list")
    header, first, second = done.output.splitlines()
    assert done.exit_code == 0 and header.split() == [
        "run",
        "status",
        "step",
        "reward",
        "held-out",
        "last",
        "change",
    ]
    assert first.split()[:6] == ["sums/a", "finished", "10/10", "1", "sums", "1"] and first.endswith("ago")
    assert second.split()[:2] == ["sums/b", "damaged"]


def test_a_run_without_an_end_is_running_while_its_process_is_alive(cli: Cli, tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "a", 4)
    sessions = tmp_path / "runs" / "a" / "run.json"
    text = json.loads(sessions.read_text())
    text["sessions"][-1]["outcome"] = None
    sessions.write_text(json.dumps(text))
    assert " killed " in cli("list").output
    holder = LockHolder.current()
    (tmp_path / "runs" / "a" / ".lock").write_text(
        json.dumps({"host": holder.host, "pid": holder.pid, "since": holder.since})
    )
    assert " running " in cli("list").output
    assert ": running, step 4 of 10" in cli("show", "runs/a").output


@pytest.mark.parametrize("words", [("list", "nowhere"), ("show", "nowhere")])
def test_a_missing_folder_is_one_paragraph(cli: Cli, words: tuple[str, ...]) -> None:
    done = cli(*words)
    assert done.exit_code != 0 and done.output.startswith("strop: ") and "nowhere" in done.output


def test_a_folder_without_runs_says_so(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    assert cli("list").output == "No runs in runs.\n"


def test_show_has_the_summary_the_curves_and_samples(cli: Cli, tmp_path: Path) -> None:
    write_run(tmp_path / "run", 10)
    done = cli("show", "run", "--samples", "1")
    lines = done.output.splitlines()
    assert lines[0] == "run: finished, step 10 of 10"
    curve = next(line for line in lines if line.startswith("reward/mean"))
    assert "▁" in curve and "█" in curve and curve.endswith("0.100 -> 1")
    assert any(line.startswith("eval/sums/reward") for line in lines)
    assert "    before" in lines and "    after" in lines
    assert sum(line.startswith("Held out") for line in lines) == 1


def test_version_and_help_have_their_usual_options(cli: Cli) -> None:
    assert cli("--version").output == cli("version").output
    assert cli("list", "-h").output == cli("list", "--help").output


def test_compare_shows_settings_that_differ_and_last_values(cli: Cli, tmp_path: Path) -> None:
    for name, steps, rate in (("a", 10, "0.001"), ("b", 5, "0.002")):
        write_run(tmp_path / "runs" / name, steps)
        file = tmp_path / "runs" / name / "run.yaml"
        changed = file.read_text().replace("lr: 1.0e-06", f"lr: {rate}")
        file.write_text(changed.replace("eval: []", f"eval: [{{name: sums, path: {name}.jsonl}}]"))
    done = cli("compare", "runs/a", "runs/b", "--html", "both.html")
    rows = {line.split()[0]: line.split()[1:] for line in done.output.splitlines() if line}
    assert rows["setting"] == ["a", "b"] and rows["trainer.optimizer.lr"] == ["0.001", "0.002"]
    assert rows["reward/mean"] == ["1", "0.500"] and "seed" not in rows
    assert rows["data.eval.0.path"] == ["a.jsonl", "b.jsonl"] and "data.eval.0.name" not in rows
    assert "with equal last values left out." in done.output
    page = (tmp_path / "both.html").read_text()
    assert "trainer.optimizer.lr" in page and page.count('<div class="card chart">') >= 3
    assert page.count(">after<") == 2


def test_a_comparison_needs_two_runs(cli: Cli, tmp_path: Path) -> None:
    write_run(tmp_path / "a", 2)
    assert "needs two or more run folders" in cli("compare", "a").output
