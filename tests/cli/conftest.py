"""The command line in this process, and a run file whose files exist."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from strop.cli.main import app
from strop.models.tiny import make_model

Cli = Callable[..., Result]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Function that runs `strop` with arguments, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STROP_HERE", raising=False)
    runner = CliRunner()
    return lambda *words: runner.invoke(app, [str(word) for word in words])


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a model with a chat template."""
    return make_model(tmp_path_factory.mktemp("tiny") / "m", ["1+1 is 2"], vocab_size=300, hidden_size=16)


@pytest.fixture
def run_file(tmp_path: Path, tiny_model: Path) -> Path:
    """Run file whose model and data pass the checks before a start."""
    shutil.copytree(tiny_model, tmp_path / "m")
    (tmp_path / "train.jsonl").write_text('{"prompt": "1+1", "answer": "2"}\n' * 64)
    path = tmp_path / "run.yaml"
    path.write_text("model: {path: ./m}\ndata:\n  train: {path: train.jsonl}\nreward: exact\n")
    return path
