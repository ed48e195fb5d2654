"""The tasks that examples/real/tasks.py writes can be solved, and its run files read them."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import strop
from strop.rewards.builtin.countdown import countdown_reward
from strop.workflows.tool import calculator

REAL = Path(__file__).parents[2] / "examples" / "real"


def write_tasks(*arguments: object) -> None:
    """Run the script with arguments, in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", [str(REAL / "tasks.py"), *map(str, arguments)])
        patch.syspath_prepend(str(REAL))
        runpy.run_path(str(REAL / "tasks.py"), run_name="__main__")


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
        write_tasks(name, "--out", out, *(["--data", out / name] if name in rows else []))
    return out


@pytest.fixture
def read(written: Path) -> Callable[[str], list[dict[str, Any]]]:
    return lambda name: [json.loads(line) for line in (written / f"{name}.jsonl").read_text().splitlines()]


def test_each_game_has_a_solution_and_is_in_one_part_only(read) -> None:
    train, test = (read(f"countdown-{part}") for part in ("train", "test"))
    for row in (*train, *test):
        a, b = row["answer"]["numbers"]
        expressions = [f"{x} {symbol} {y}" for x, y in ((a, b), (b, a)) for symbol in "+-*"]
        assert any(countdown_reward(f"<answer>{text}</answer>", row["answer"]) for text in expressions)
    assert not {row["prompt"] for row in train} & {row["prompt"] for row in test}


def test_demonstrations_call_the_calculator_with_its_result(read) -> None:
    for row in read("calculator-demonstrations"):
        call, result, answer = row["response"]
        (arguments,) = (each["function"]["arguments"] for each in call["tool_calls"])
        assert calculator(**arguments) == result["content"] == answer["content"]


def test_questions_are_written_in_a_short_form(read) -> None:
    (row,) = read("medmcqa-test")
    assert row["prompt"].startswith("Which?\nA. one\nB. two\n") and row["answer"] == "B"


@pytest.mark.parametrize("name", ["run", "countdown", "calculator", "medmcqa", "gsm8k"])
def test_run_files_are_read(name: str, written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REAL", str(written))
    monkeypatch.setenv("REAL_EXAMPLE", str(REAL))
    run = strop.load(REAL / f"{name}.yaml").runs[-1].run
    assert run.algorithm.type == "grpo" and str(run.data.train.path).startswith(str(written))


def test_a_task_without_its_data_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        write_tasks("gsm8k", "--out", tmp_path)
    assert "gsm8k needs --data" in capsys.readouterr().err
