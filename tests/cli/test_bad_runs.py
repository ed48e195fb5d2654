"""Errors of a running run: one paragraph on stderr, a non-zero exit code, no traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from strop.models.tiny import make_model
from strop.run.drivers.explorer_loop import ExplorerState
from strop.runs.folder import RunFolder
from strop.sync.folder_store import FolderVersionStore
from tests.config.refused import has_parts

from .conftest import Cli
from .foreign import write_rows

pytest.importorskip("sqlalchemy")
SMALL = {"vocab_size": 280, "layers": 1, "heads": 2, "kv_heads": 2}
APART = ["buffer={type: sql, read_timeout_seconds: 1, lease_seconds: 0.3}", "synchronizer.timeout_seconds=1"]
WORKFLOWS = """
import asyncio
import numpy as np
from strop.types import Turn
from strop.workflows import WorkflowResult

async def raises(task, chat):
    await chat.reply()
    raise KeyError("no such shop")

async def hangs(task, chat):
    await asyncio.sleep(60)

async def gives_nothing(task, chat):
    pass

async def wrong_lengths(task, chat):
    await chat.reply()
    ids = np.array([1, 2, 3], np.int32)
    two, three = np.zeros(2, np.float32), np.zeros(3, np.float32)
    return WorkflowResult(reward=1.0, turns=[Turn(ids, ids, two, three, "stop", 0)])

async def wrong_rewards(task, chat):
    await chat.reply()
    return WorkflowResult(turn_rewards=[0.0, 1.0])
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"), ["max 1 2"], hidden_size=16, **SMALL)


@pytest.fixture
def run_yaml(tmp_path: Path, model: Path) -> Path:
    """Run file of two short steps."""
    rows = [{"prompt": f"max {n} 2", "answer": "2"} for n in range(8)]
    write_rows(tmp_path / "train.jsonl", rows)
    (tmp_path / "mine.py").write_text(WORKFLOWS)
    path = tmp_path / "run.yaml"
    path.write_text(f"""
model: {{path: {model}}}
data: {{train: {{path: train.jsonl}}, max_prompt_tokens: 16, max_response_tokens: 4}}
reward: exact
algorithm: {{type: grpo, rollouts_per_task: 2}}
trainer: {{duration: 2 steps, tasks_per_step: 2}}
record: {{monitors: [], report: false}}
""")
    return path


def paragraph(cli: Cli, *words: object, code: int = 1) -> str:
    """Run a command that fails; returns its error message."""
    result = cli(*words)
    said: str = result.stderr
    assert result.exit_code == code, result.output
    said = said[said.index("strop: ") :].strip()
    assert "\n" not in said and "Traceback" not in result.output
    return said


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("raises", "KeyError: 'no such shop' ("),
        ("hangs", "took longer than 0.2 s (rollout.timeout_seconds)"),
        ("gives_nothing", "ended without a turn to train on: "),
        ("wrong_lengths", "Turn: arrays of the same tokens have different lengths"),
        ("wrong_rewards", "2 turn_rewards for 1 turns"),
    ],
)
def test_a_workflow_that_breaks(cli: Cli, run_yaml: Path, name: str, says: str) -> None:
    limit = f"rollout.timeout_seconds={0.2 if name == 'hangs' else 60}"
    said = paragraph(cli, "train", run_yaml, f"rollout.workflow='mine.py:{name}'", limit)
    assert "4 of 4 rollouts failed, more than rollout.max_error_fraction (0.1) allows" in said
    assert says in said


@pytest.mark.parametrize(
    ("url", "says", "code"),
    [
        ("nonsense", "is not a database URL", 2),
        ("postgresql://user:hunter2@127.0.0.1:1/db", "Check `buffer.url`", 1),
        ("sqlite:////no/where/b.db", "Check `buffer.url`", 1),
    ],
)
@pytest.mark.parametrize("mode", ["both", "train", "explore"])
def test_a_wrong_url(cli: Cli, run_yaml: Path, url: str, says: str, code: int, mode: str) -> None:
    if url.startswith("postgresql"):
        pytest.importorskip("psycopg")
    section = f"buffer={{type: sql, url: '{url}'}}"
    said = paragraph(cli, "train", run_yaml, f"mode={mode}", section, code=code)
    assert says in said and "hunter2" not in said


def test_a_buffer_that_every_writer_has_left(cli: Cli, run_yaml: Path, tmp_path: Path) -> None:
    """The explorer was killed and is not restarted."""
    code = (
        "import os; from pathlib import Path; from strop.config.schema.buffer import SqlBufferConfig\n"
        "from strop.buffer.factory import open_buffer\n"
        "folder = Path('runs/strop/run'); folder.mkdir(parents=True)\n"
        "open_buffer(SqlBufferConfig(lease_seconds=0.3), folder, role='writer', member_name='explorer-0')\n"
        "os._exit(9)\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False)
    said = paragraph(cli, "train", run_yaml, "mode=train", *APART)
    assert "is empty, and no writer is left" in said and "explorer-0" in said


@pytest.mark.parametrize(
    ("mode", "says"),
    [
        ("train", "Only 0 of the 2 groups of step 1 arrived within"),
        ("explore", "has waited 1 s for version 1 of the weights ... Check that the trainer runs"),
    ],
)
def test_the_other_role_never_comes(cli: Cli, run_yaml: Path, mode: str, says: str) -> None:
    assert has_parts(paragraph(cli, "train", run_yaml, f"mode={mode}", *APART), says)


@pytest.mark.slow
def test_weights_of_another_model(cli: Cli, run_yaml: Path, tmp_path: Path) -> None:
    """Weights in the folder that explorer and trainer share, and in a checkpoint."""
    folder = RunFolder(tmp_path / "runs" / "strop" / "run")
    ExplorerState().save(folder.explorer)
    FolderVersionStore(folder.path / "sync").write(1, [("model.embed_tokens.weight", torch.zeros(3, 3))])
    said = paragraph(cli, "train", run_yaml, "mode=explore", "synchronizer.style=bounded", *APART)
    assert "belongs to another model than the explorer's" in said
    assert cli("train", run_yaml, "name=first").exit_code == 0
    make_model(tmp_path / "other", ["max 1 2"], hidden_size=32, **SMALL)
    said = paragraph(cli, "train", run_yaml, "model.path=./other", "resume=runs/strop/first", "name=second")
    assert "step-000002" in said and "model" in said
