"""The command line in this process, a run file whose files exist, and a finished run."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from strop.cli.main import app
from strop.models.tiny import make_model

Cli = Callable[..., Result]


def invoke(*words: object) -> Result:
    """Run `strop` with arguments in this process."""
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Function that runs `strop` with arguments, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STROP_HERE", raising=False)
    return invoke


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a model with a chat template."""
    return make_model(tmp_path_factory.mktemp("tiny") / "m", ["1+1 is 2"], vocab_size=300, hidden_size=16)


def write_run_file(folder: Path, model: Path) -> Path:
    """Write a run file whose model and data pass the checks before a start."""
    shutil.copytree(model, folder / "m")
    (folder / "train.jsonl").write_text('{"prompt": "1+1", "answer": "2"}\n' * 64)
    path = folder / "run.yaml"
    path.write_text("model: {path: ./m}\ndata:\n  train: {path: train.jsonl}\nreward: exact\n")
    return path


@pytest.fixture
def run_file(tmp_path: Path, tiny_model: Path) -> Path:
    return write_run_file(tmp_path, tiny_model)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> tuple[Path, str]:
    """Folder with a finished run of two steps, in `runs/strop/run`, and what its training printed; to be read only."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.delenv("STROP_HERE", raising=False)
        given = ["data.eval=[{name: sums, path: train.jsonl, limit_tasks: 2}]", "data.max_response_tokens=4"]
        sizes = ["trainer={duration: 2 steps, tasks_per_step: 2}", "algorithm.rollouts_per_task=2"]
        result = invoke("train", write_run_file(folder, tiny_model), *given, *sizes)
        assert result.exit_code == 0, result.output
    return folder, result.output
