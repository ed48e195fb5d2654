"""End to end: `strop verl ppo` on conversations with a tool class and a simulated user."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Cli
from .test_verl_ppo import last_row

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "verl" / "guess.sh"


@pytest.fixture
def made(tmp_path: Path) -> Path:
    subprocess.run([sys.executable, ROOT / "examples/verl/make.py", tmp_path], check=True, env=os.environ)
    return tmp_path


def command_line(folder: Path) -> list[str]:
    """Arguments of the script's command."""
    command = re.sub(r"\\\n", " ", SCRIPT.read_text()).partition("strop ")[2]
    return [word.replace("$folder", str(folder)) for word in shlex.split(command) if word != "$@"]


@pytest.mark.slow
def test_a_check_reads_the_file_of_tools(made: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    tools = made / "mcp.yaml"
    tools.write_text("tools: [{class_name: mine.py:T, config: {type: mcp}}]\n")
    key = "actor_rollout_ref.rollout.multi_turn.tool_config_path"
    line = [word for word in command_line(made) if not word.startswith(key)]
    result = cli(*line, f"{key}={tools}", "--check")
    assert result.exit_code == 2 and "mcp.mcp_servers_config_path" in result.stderr


@pytest.mark.slow
def test_the_example_runs(made: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    line = [word for word in command_line(made) if not word.startswith("trainer.total_training_steps")]
    result = cli(*line, "trainer.total_training_steps=2", "actor_rollout_ref.rollout.n=2")
    assert result.exit_code == 0, result.output
    row = last_row(made / "checkpoints")
    assert row["rollouts/error_fraction"] == 0
    assert row["rollouts/turns"] > 1
    assert 0 <= row["reward/mean"] <= 1
