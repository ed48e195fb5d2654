"""The tasks that examples/real/tasks.py writes can be solved, and its run files read them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import strop
from strop.rewards.builtin.countdown import countdown_reward
from strop.workflows.builtin.calculator import calculator

REAL = Path(__file__).parents[2] / "examples" / "real"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the tasks that need no other data, and MedMCQA and GSM8K from two rows each."""
    out = tmp_path_factory.mktemp("real")
    rows = {
        "medmcqa": {"problem": "Think.\n\nWhich?\nA. one\nB. two\n", "solution": "B"},
        "gsm8k": {"question": "One and one?", "answer": "1 + 1 = 2\n#### 2"},
    }
    for name, row in rows.items():
        (out / name).mkdir()
        for part in ("train", "test"):
            (out / name / f"{part}.jsonl").write_text(json.dumps(row) + "\n")
    for name in ("countdown", "calculator", *rows):
        data = ["--data", str(out / name)] if name in rows else []
        subprocess.run([sys.executable, REAL / "tasks.py", name, "--out", str(out), *data], check=True)
    return out


def _rows(written: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (written / f"{name}.jsonl").read_text().splitlines()]


def test_each_game_has_a_solution_and_is_in_one_part_only(written: Path) -> None:
    train, test = (_rows(written, f"countdown-{part}") for part in ("train", "test"))
    for row in (*train, *test):
        a, b = row["answer"]["numbers"]
        expressions = [f"{x} {symbol} {y}" for x, y in ((a, b), (b, a)) for symbol in "+-*"]
        assert any(countdown_reward(f"<answer>{text}</answer>", row["answer"]) for text in expressions)
    assert not {row["prompt"] for row in train} & {row["prompt"] for row in test}


def test_demonstrations_call_the_calculator_with_its_result(written: Path) -> None:
    for row in _rows(written, "calculator-demonstrations"):
        call, result, answer = row["response"]
        (arguments,) = (each["function"]["arguments"] for each in call["tool_calls"])
        assert calculator(**arguments) == result["content"] == answer["content"]


def test_questions_are_written_in_a_short_form(written: Path) -> None:
    (row,) = _rows(written, "medmcqa-test")
    assert row["prompt"].startswith("Which?\nA. one\nB. two\n") and row["answer"] == "B"


@pytest.mark.parametrize("name", ["run", "countdown", "calculator", "medmcqa", "gsm8k"])
def test_run_files_are_read(name: str, written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REAL", str(written))
    monkeypatch.setenv("REAL_EXAMPLE", str(REAL))
    runs = strop.load(REAL / f"{name}.yaml").runs
    assert runs[-1].run.algorithm.type == "grpo"
    assert str(runs[-1].run.data.train.path).startswith(str(written))


def test_a_task_without_its_data_is_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, REAL / "tasks.py", "gsm8k", "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and "gsm8k needs --data" in done.stderr
