"""The tutorials are done as they stand: their files are written, their commands run, and the model learns."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import patch

import pytest
from typer.testing import CliRunner

from strop.cli.main import app
from strop.cli.reference_commands import page_text
from strop.models.tiny import make_model
from tests.cases import nightly
from tests.learning.curves import HELD_OUT, column, run_python
from tests.models.gguf_files import write_gguf

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"(?:`([\w.]+)`:\n\n)?```(\w+)\n(.*?)```", re.DOTALL)
"""A block of code, and the name of its file if the text before it ends with that."""


def follow(topic: str, folder: Path, monkeypatch: pytest.MonkeyPatch, changes: Mapping[str, str]) -> None:
    """Write the files of a page or section and run its commands in this process, in their order.

    `changes` are parts of its text that are replaced, to shorten its runs.
    """
    monkeypatch.chdir(folder)
    text = page_text(topic)
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    with patch.dict(os.environ):
        for name, language, block in FENCE.findall(text):
            if name:
                (folder / name).write_text(block, encoding="utf-8")
            elif language == "sh":
                for line in block.replace("\\\n", " ").splitlines():
                    run_line(line)


def run_line(line: str) -> None:
    match shlex.split(line):
        case ["strop", *arguments, ">", file]:
            Path(file).write_text(strop(arguments), encoding="utf-8")
        case ["strop", *arguments]:
            strop(arguments)
        case ["python", *arguments]:
            run_python(*arguments)
        case _:
            subprocess.run(["bash", "-e", "-c", line], check=True)


def strop(arguments: list[str]) -> str:
    """Run a command, which must succeed, and return what it prints on stdout."""
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize(("warm_up", "steps"), [(30, 30), *nightly((60, 100))])
def test_own_data_and_reward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm_up: int, steps: int
) -> None:
    """The mean reward of five steps was seen to rise by a factor of 2.3 in 30 steps.

    At the full length, held-out accuracy rises; rounding, and so the CPU, decides where the warm start ends.
    """
    changes = {
        f"duration: {full} steps": f"duration: {now} steps" for full, now in ((60, warm_up), (100, steps))
    }
    follow("own-data-and-reward", tmp_path, monkeypatch, changes)
    run = tmp_path / "runs" / "tutorial" / "largest-grpo"
    rewards, measured = column(run, "reward/mean"), column(run, HELD_OUT)
    assert len(rewards) == steps
    assert sum(rewards[-5:]) > 1.5 * sum(rewards[:5]) or steps == 100, rewards
    assert measured[-1] >= max(0.75, measured[0] + 0.15) or steps < 100, measured


@pytest.mark.parametrize(
    ("section", "run", "rise", "converted"),
    [
        ("trl#bring-a-grpoconfig-over", "out", 0.12, "reward: rewards.py:vowels\n"),
        (
            "verl#bring-a-launch-script-of-verl-over",
            "checkpoints/tutorial/vowels",
            0.1,
            "reward: rewards.py:compute_score\n",
        ),
        (
            "trinity#bring-a-trinity-rft-configuration-over",
            "runs/tutorial/sing",
            0.1,
            "workflow: sing_workflow\n",
        ),
    ],
)
def test_from_another_tool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, section: str, run: str, rise: float, converted: str
) -> None:
    """The mean reward was seen to rise by 0.25 (TRL) and 0.2 (verl, Trinity-RFT)."""
    shutil.copytree(ROOT / "examples" / "vowels" / section.partition("#")[0], tmp_path, dirs_exist_ok=True)
    follow(f"coming-from/{section}", tmp_path, monkeypatch, {})
    rewards = column(tmp_path / run, "reward/mean")
    assert len(rewards) == 15
    assert rewards[-1] > rewards[0] + rise
    assert converted in (tmp_path / "run.yaml").read_text()


@pytest.mark.skipif(find_spec("gguf") is None, reason="needs the extra gguf")
def test_agent_with_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tiny random model in the real one's place goes through both stages; it is too small to learn much."""
    examples = ROOT / "examples"
    (tmp_path / "examples").symlink_to(examples)
    real = tmp_path / "runs" / "real"
    real.mkdir(parents=True)
    corpus = (examples / "real" / "tools.jinja").read_text().splitlines()
    folder = make_model(tmp_path / "m", 4 * corpus, vocab_size=700, hidden_size=32)
    write_gguf(folder, real / "SmolLM2-135M-Instruct.Q4_1.gguf")
    follow("workflows#an-agent-with-a-tool", tmp_path, monkeypatch, {})
    assert len(column(real / "calculator-warm-up", "loss")) == 16
    assert len(column(real / "calculator-grpo", "reward/mean")) == 10
    assert len(column(real / "calculator-grpo", HELD_OUT)) == 3


@pytest.mark.nightly
def test_preferences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The held-out reward was seen to be 0.84 after SFT, 0.88 after GRPO and 0.98 after DPO."""
    follow("preferences", tmp_path, monkeypatch, {})
    runs = tmp_path / "runs" / "preferences"
    sft, grpo, dpo = (column(runs / name, HELD_OUT)[-1] for name in ("sft", "grpo", "dpo"))
    assert column(runs / "reward", "eval/held-out/pairs/accuracy")[-1] > 0.9
    assert grpo > sft - 0.03
    assert dpo > sft + 0.05
    scores = column(runs / "grpo", "reward/mean")
    assert scores[-1] > scores[0]
