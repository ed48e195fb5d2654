"""The GSM8K dataset: raw columns and the Parquet file of the example's preparer give the same tasks.

`test_hub.py` runs the preparer as a process.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from strop.config.schema.data import DataConfig, TasksetConfig
from strop.data.taskset import load_taskset
from tests.datasets import read_rows

PREPARE = Path(__file__).parents[2] / "examples" / "gsm8k" / "prepare.py"
INSTRUCTION = ' Let\'s think step by step and output the final answer after "####".'


def prepare(*arguments):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(PREPARE), *map(str, arguments)])
        runpy.run_path(str(PREPARE), run_name="__main__")


@pytest.fixture(scope="module")
def prepared(gsm8k, tmp_path_factory):
    out = tmp_path_factory.mktemp("prepared") / "gsm8k"
    prepare("--train", gsm8k / "train.jsonl", "--test", gsm8k / "test.jsonl", "--out", out)
    return out


@pytest.mark.parametrize("split", [pytest.param("train", marks=pytest.mark.slow), "test"])
def test_raw_and_prepared_give_the_same_tasks(gsm8k, prepared, tokenizer, split):
    def load(path, **section):
        train = TasksetConfig(path=str(path), **section)
        data = DataConfig(train=train, max_prompt_tokens=1500)
        return load_taskset(train, data, tokenizer, seed=1, shuffle=True)

    columns = {"answer": "reward_model.ground_truth", "source": "data_source"}
    raw, verl = load(gsm8k / f"{split}.jsonl", prompt="question"), load(prepared, split=split, **columns)
    assert len(raw) == len(verl) == len(read_rows(f"gsm8k/{split}.jsonl"))
    for number, (ours, theirs) in enumerate(zip(raw.take(500), verl.take(500), strict=True)):
        assert ours.id == theirs.id, "one seed, one order"
        question = ours.messages[0]["content"]
        assert theirs.messages == ({"role": "user", "content": question + INSTRUCTION},)
        assert theirs.answer == ours.answer.rpartition("#### ")[2].replace(",", ""), number
        assert theirs.source == "openai/gsm8k"
        info = {"split": split, "index": int(theirs.id.partition(":")[2])}
        assert theirs.extra["extra_info"] == {**info, "answer": ours.answer, "question": question}


@pytest.mark.parametrize("split", ["train", "test"])
def test_every_question_and_final_answer(prepared, split):
    table = pq.read_table(prepared / f"{split}.parquet")
    assert table.column_names == ["data_source", "prompt", "ability", "reward_model", "extra_info"]
    for row, verl in zip(read_rows(f"gsm8k/{split}.jsonl"), table.to_pylist(), strict=True):
        truth = verl["reward_model"]
        assert verl["prompt"] == [{"role": "user", "content": row["question"] + INSTRUCTION}]
        assert truth["style"] == "rule"
        assert float(truth["ground_truth"]) == float(row["answer"].split("####")[1].replace(",", ""))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--train", "nope.jsonl"], "There is no file or directory nope.jsonl."),
        ([], "give either --hub, or --train and --test"),
        (["--hub", "--train", "x.jsonl"], "give either --hub, or --train and --test"),
        (["--test", "a.jsonl"], "a.jsonl line 1: the answer does not end in `#### <number>`: 'five'."),
    ],
)
def test_invalid_input_of_the_preparer(write_lines, monkeypatch, capsys, arguments, message):
    folder = write_lines("a.jsonl", [{"question": "2 + 3", "answer": "five"}]).parent
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit) as ended:
        prepare(*arguments, "--out", folder / "out")
    assert message in f"{ended.value}{capsys.readouterr().err}"
    assert not (folder / "out").exists()
