"""Run folders in place of run files: resumed, changed, and used after they were moved."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path

import pytest
import yaml

from strop.runs.folder import RunFolder
from strop.runs.metrics_file import recorded_steps

from .conftest import Cli

RUN = Path("runs/strop/run")


@pytest.fixture
def project(cli: Cli, tmp_path: Path, trained: tuple[Path, str]) -> Path:
    """A copy of the project of the finished run in the working directory, whose first directory is not there."""
    shutil.copytree(trained[0], tmp_path, dirs_exist_ok=True)
    file = tmp_path / RUN / "run.json"
    file.write_text(file.read_text().replace(str(trained[0]), str(tmp_path / "gone")))
    return tmp_path


def test_a_finished_run_names_the_next_commands(trained: tuple[Path, str]) -> None:
    lines = trained[1].splitlines()
    assert f"Report: {RUN}/report.html." in lines
    named = [line.split() for line in lines[lines.index("Next:") + 1 :]]
    assert [words[:3] for words in named] == [
        ["strop", name, str(RUN)] for name in ("show", "chat", "evaluate")
    ]


def test_a_refused_resume_names_the_change_that_continues(cli: Cli, project: Path) -> None:
    refused = cli("train", RUN, "trainer.optimizer.lr=3e-5", "data.shuffle=false", "trainer.duration=3 steps")
    assert refused.exit_code == 1
    changes = ["--change", "data.shuffle=false", "--change", "trainer.optimizer.lr=3e-05"]
    assert f"To continue with what changed, add to the command: {' '.join(changes)}." in refused.stderr
    done = cli("train", RUN, "trainer.duration=3 steps", *changes)
    assert done.exit_code == 0 and "trainer.optimizer.lr was 1e-06, is 3e-05" in done.output, done.output
    assert recorded_steps(project / RUN / "metrics.jsonl") == 3


def test_a_run_folder_is_continued_in_the_directory_that_it_was_started_in(
    cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = project / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    before = (project / RUN / "run.yaml").read_text()
    done = cli("train", f"../{RUN}", "trainer.duration=3 steps")
    assert done.exit_code == 0 and f"Continuing in {project}, where the run was started" in done.output, (
        done.output
    )
    written = yaml.safe_load((project / RUN / "run.yaml").read_text())
    assert written == yaml.safe_load(before) | {"trainer": {**written["trainer"], "duration": "3 steps"}}
    assert recorded_steps(project / RUN / "metrics.jsonl") == 3 and not list(elsewhere.iterdir())


@pytest.mark.parametrize("command", ["check", "plan", "explain"])
def test_a_run_folder_is_read_where_a_run_file_is(cli: Cli, project: Path, command: str) -> None:
    from_folder, from_file = cli(command, RUN), cli(command, RUN / "run.yaml")
    assert from_folder.exit_code == 0 and from_folder.output == from_file.output


def test_a_folder_that_was_moved_alone_has_what_its_checkpoints_need(cli: Cli, project: Path) -> None:
    """Neither the model that the run started from nor its data are where the run file names them."""
    shutil.move(RUN, "moved")
    shutil.move("train.jsonl", "other.jsonl")
    shutil.rmtree("m")
    eval_data = "data.eval.0.path=other.jsonl"
    done = cli("evaluate", "moved", eval_data)
    assert done.exit_code == 0 and "checkpoint = moved/checkpoints/step-000002" in done.output, done.output
    done = cli("generate", "moved", "--prompts", "other.jsonl", "--out", "out.parquet")
    assert done.exit_code == 0 and "Wrote responses to 64 prompts" in done.output, done.output
    assert cli("export", "moved", "--to", "exported").exit_code == 0
    weights = [Path(folder, "model.safetensors").read_bytes() for folder in ("moved/model", "exported")]
    assert weights[0] == weights[1]
    assert cli("chat", "moved", "--ask", "1+1").exit_code == 0
    refused = cli("chat", "moved", "--before", "--ask", "1+1")
    assert refused.exit_code == 1 and "The run in moved started from ./m, which is not here" in refused.stderr
    assert cli("evaluate", "moved").exit_code != 0
    Path("other.jsonl").rename("moved/train.jsonl")
    assert cli("evaluate", "moved").exit_code == 0, "a relative path may be one in the folder"


def test_the_paths_of_a_moved_project_are_found_from_its_run_folder(cli: Cli, project: Path) -> None:
    shutil.copytree(project, project / "copy", ignore=shutil.ignore_patterns("copy"))
    for name in ("m", "runs"):
        shutil.rmtree(project / name)
    (project / "train.jsonl").unlink()
    assert cli("evaluate", f"copy/{RUN}").exit_code == 0
    assert cli("chat", f"copy/{RUN}", "--before", "--ask", "1+1").exit_code == 0


def test_files_of_weights_are_as_readable_as_the_files_next_to_them(trained: tuple[Path, str]) -> None:
    folder = RunFolder(trained[0] / RUN)
    files = [file for file in folder.path.rglob("*") if file.is_file() and not file.name.startswith(".")]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files if file.suffix == ".safetensors"} == {
        stat.S_IMODE(folder.run_file.stat().st_mode)
    }
    assert sum(file.suffix == ".safetensors" for file in files) >= 3
