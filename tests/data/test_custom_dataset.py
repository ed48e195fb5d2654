"""Custom dataset classes, called like verl calls them."""

from __future__ import annotations

import json

import pytest

from strop.config.schema.data import DataConfig
from strop.data.offline_dataset import load_offline_dataset
from strop.data.taskset import load_taskset
from strop.errors import ConfigError, DataError

CLASSES = """
import json
import numpy, torch
from torch.utils.data import Dataset


class Messages(Dataset):
    def __init__(self, data_files, tokenizer, config, processor=None):
        assert processor is None and config.get("none") is None
        self.rows = [json.loads(line) for name in data_files for line in open(name)]
        self.say = config.say

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        row = dict(self.rows[i])
        row["raw_prompt"] = numpy.array([{"role": "user", "content": self.say + row.pop("q")}], dtype=object)
        return row


class Tokens(Messages):
    def __getitem__(self, i):
        return {**self.rows[i], "input_ids": torch.tensor([0, 0, 5, 6, 7 + i]),
                "attention_mask": torch.tensor([0, 0, 1, 1, 1]), "index": torch.tensor(i)}


class Answers(Dataset):
    def __init__(self, parquet_files, tokenizer, config):
        self.files = parquet_files

    def __len__(self):
        return 3

    def __getitem__(self, i):
        return {"input_ids": torch.tensor([4, 5, 6, 7, 0]), "attention_mask": torch.tensor([1, 1, 1, 1, 0]),
                "position_ids": torch.arange(5), "loss_mask": torch.tensor([0, 1, 1, 0, 0])}


class Breaks(Messages):
    def __getitem__(self, i):
        raise KeyError("no such thing")


class Streams:
    def __init__(self, **_):
        pass
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "own.py").write_text(CLASSES)
    rows = [{"q": f"{n}?", "reward_model": {"ground_truth": str(n)}, "data_source": "s"} for n in range(4)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def data(folder, name, **more):
    own = {"name": f"{folder / 'own.py'}:{name}", "config": {"say": "Say "}}
    train = {"path": str(folder / "t.jsonl"), "dataset": own, **more}
    return DataConfig.model_validate({"train": train, "max_prompt_tokens": 64, "max_response_tokens": 64})


@pytest.fixture
def load(folder, tokenizer):
    def tasks(name, **more):
        section = data(folder, name, **COLUMNS, **more)
        return load_taskset(section.train, section, tokenizer, seed=1, shuffle=False).all_tasks()

    return tasks


COLUMNS = {"answer": "reward_model.ground_truth", "source": "data_source"}


def test_messages(load, tokenizer):
    tasks = load("Messages", limit_tasks=3)
    assert [task.messages[0]["content"] for task in tasks] == ["Say 0?", "Say 1?", "Say 2?"]
    assert [(task.answer, task.source) for task in tasks] == [("0", "s"), ("1", "s"), ("2", "s")]
    message = [{"role": "user", "content": "Say 1?"}]
    text = tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
    assert tasks[1].prompt_ids.tolist() == tokenizer(text, add_special_tokens=False)["input_ids"]


def test_tokens_are_used_unchanged(load, tokenizer):
    tasks = load("Tokens")
    assert [task.prompt_ids.tolist() for task in tasks] == [[5, 6, 7 + n] for n in range(4)]
    assert tasks[2].extra["index"] == 2
    assert tasks[2].messages[0]["content"] == tokenizer.decode([5, 6, 9])


def test_answers_with_verls_loss_mask(folder, tokenizer):
    section = data(folder, "Answers", response="answer")
    answers = load_offline_dataset(section.train, section, tokenizer, name="train", seed=1, shuffle=False)
    assert len(answers) == 3
    (experience,) = answers.all_groups()[0].experiences
    assert experience.token_ids.tolist() == [4, 5, 6, 7]
    assert experience.loss_mask.tolist() == [False, False, True, True], "at t: that t + 1 is learned"


@pytest.mark.parametrize(
    ("name", "error", "expected"),
    [
        ("Breaks", DataError, "item 0 .* raised KeyError"),
        ("Streams", ConfigError, "without __len__"),
        ("Nothing", ConfigError, "has no 'Nothing'"),
        ("Answers", DataError, "no 'reward_model.ground_truth'"),
    ],
)
def test_invalid_datasets_are_refused(load, name, error, expected):
    with pytest.raises(error, match=expected):
        load(name)
