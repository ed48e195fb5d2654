"""The tokenizer of a folder's tokenizer.json, which `strop check` reads without torch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strop.config.schema.model import ModelConfig
from strop.models.loading import load_tokenizer
from strop.models.tiny import make_model
from strop.models.tokenizer_file import read_tokenizer_file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_model(tmp_path / "m", ["1+1 is 2"], vocab_size=300, hidden_size=16)


def test_it_encodes_as_the_tokenizer_of_a_run(folder: Path) -> None:
    section = ModelConfig(path=str(folder))
    file, loaded = read_tokenizer_file(section), load_tokenizer(section)
    assert file is not None
    assert file.chat_template == loaded.chat_template
    messages = [{"role": "user", "content": "1+1 is ü"}]
    for tokenizer in (file, loaded):
        assert tokenizer.encode("1+1 is ü") == file.encode("1+1 is ü")
        assert tokenizer.apply_chat_template(messages) == file.apply_chat_template(messages)
    assert read_tokenizer_file(ModelConfig(path="elsewhere", tokenizer=str(folder))) is not None


def without_vocabulary(folder: Path) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"] |= {"vocab": {}, "merges": []}
    content["added_tokens"] = []
    (folder / "tokenizer.json").write_text(json.dumps(content))


def with_code(folder: Path) -> None:
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"auto_map": {"AutoTokenizer": ["x.Y", None]}}))


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "tokenizer.json").unlink(),
        lambda folder: (folder / "tokenizer.json").write_text("{"),
        lambda folder: (folder / "config.json").write_text("{"),
        lambda folder: (folder / "tokenizer_config.json").unlink(),
        without_vocabulary,
        with_code,
    ],
)
def test_a_fault_or_code_is_left_to_the_tokenizer_of_a_run(folder: Path, change: object) -> None:
    assert callable(change)
    change(folder)
    assert read_tokenizer_file(ModelConfig(path=str(folder))) is None


def test_models_elsewhere_and_with_user_modules_are_left_to_the_tokenizer_of_a_run(folder: Path) -> None:
    assert read_tokenizer_file(ModelConfig(path="owner/model")) is None
    assert read_tokenizer_file(ModelConfig(path=str(folder), imports=("json",))) is None
