"""A tokenizer trained on a few lines, and files to read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from strop.models.tiny import make_tokenizer
from tests.datasets import data_folder

WriteLines = Callable[[str, Iterable[Any]], Path]


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerBase:
    folder = tmp_path_factory.mktemp("tokenizer")
    make_tokenizer(folder, ["What is 2 + 3?", "one two three four five six seven"], vocab_size=400)
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture
def write_lines(tmp_path: Path) -> WriteLines:
    """A function that writes objects as JSON Lines (strings unchanged) to a named file in a new folder."""

    def write(name: str, rows: Iterable[Any]) -> Path:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return file

    return write


@pytest.fixture(scope="session")
def gsm8k() -> Path:
    """Folder with the two files of GSM8K."""
    return data_folder() / "gsm8k"
