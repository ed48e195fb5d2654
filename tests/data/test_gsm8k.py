"""The GSM8K dataset: raw columns and the Parquet file of the example's preparer give the same tasks."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from transformers import PreTrainedTokenizerBase

from strop.config.schema.data import DataConfig, TasksetConfig
from strop.data.taskset import TaskSet, load_taskset
from tests.data.conftest import WriteLines

PREPARE = Path(__file__).parents[2] / "examples" / "gsm8k" / "prepare.py"
INSTRUCTION = ' Let\'s think step by step and output the final answer after "####".'


def row_count(folder: Path, split: str) -> int:
    return len((folder / f"{split}.jsonl").read_text(encoding="utf-8").splitlines())


def prepare(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command: Sequence[str] = [sys.executable, str(PREPARE), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="module")
def prepared(gsm8k: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("prepared") / "gsm8k"
    done = prepare("--train", gsm8k / "train.jsonl", "--test", gsm8k / "test.jsonl", "--out", out)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        f"wrote {row_count(gsm8k, split)} tasks to {out / f'{split}.parquet'}" for split in ("train", "test")
    ]
    return out


def load(section: TasksetConfig, tokenizer: PreTrainedTokenizerBase) -> TaskSet:
    data = DataConfig(train=section, max_prompt_tokens=1500)
    return load_taskset(section, data, tokenizer, seed=1, shuffle=True)


@pytest.mark.parametrize("split", ["train", "test"])
def test_raw_and_prepared_give_the_same_tasks(
    gsm8k: Path, prepared: Path, tokenizer: PreTrainedTokenizerBase, split: str
) -> None:
    raw = load(TasksetConfig(path=str(gsm8k / f"{split}.jsonl"), prompt="question"), tokenizer)
    verl = load(
        TasksetConfig(
            path=str(prepared), split=split, answer="reward_model.ground_truth", source="data_source"
        ),
        tokenizer,
    )
    assert len(raw) == len(verl) == row_count(gsm8k, split)
    for number, (ours, theirs) in enumerate(zip(raw.take(500), verl.take(500), strict=True)):
        assert ours.id == theirs.id, "one seed, one order"
        question = ours.messages[0]["content"]
        assert theirs.messages == ({"role": "user", "content": question + INSTRUCTION},)
        assert theirs.answer == ours.answer.rpartition("#### ")[2].replace(",", ""), number
        assert theirs.source == "openai/gsm8k"
        row = int(theirs.id.partition(":")[2])
        assert theirs.extra["extra_info"] == {
            "split": split,
            "index": row,
            "answer": ours.answer,
            "question": question,
        }


def test_every_question_and_final_answer(gsm8k: Path, prepared: Path) -> None:
    rows = [json.loads(line) for line in (gsm8k / "train.jsonl").read_text(encoding="utf-8").splitlines()]
    table = pq.read_table(prepared / "train.parquet")
    assert table.column_names == ["data_source", "prompt", "ability", "reward_model", "extra_info"]
    for row, verl in zip(rows, table.to_pylist(), strict=True):
        assert verl["prompt"] == [{"role": "user", "content": row["question"] + INSTRUCTION}]
        assert verl["reward_model"]["style"] == "rule"
        assert float(verl["reward_model"]["ground_truth"]) == float(
            row["answer"].split("####")[1].replace(",", "")
        )


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--train", "nope.jsonl"], 1, "There is no file or directory nope.jsonl."),
        ([], 2, "give either --hub, or --train and --test"),
        (["--hub", "--train", "x.jsonl"], 2, "give either --hub, or --train and --test"),
    ],
)
def test_invalid_input_of_the_preparer(tmp_path: Path, arguments: list[str], code: int, message: str) -> None:
    done = prepare(*arguments, "--out", tmp_path / "out")
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_an_answer_without_a_final_number_is_named(tmp_path: Path, write_lines: WriteLines) -> None:
    file = write_lines("a.jsonl", [{"question": "2 + 3", "answer": "five"}])
    done = prepare("--test", file, "--out", tmp_path / "out")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{file} line 1: the answer does not end in `#### <number>`: 'five'." in done.stderr
