"""Readers of JSON Lines split at `\\n` alone: texts have U+2028, U+0085 and other separators of `str.splitlines`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from strop.buffer.file import FileBuffer
from strop.data.sources.data_path import resolve_path
from strop.data.sources.files import read_file
from strop.rewards.builtin.code import _arguments
from strop.runs.metrics_file import read_metrics
from strop.runs.training_examples import read_training_examples
from tests.buffer.groups import ids, make_group

TEXT = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\x1dh\x1ei"


def examples(path: Path) -> Any:
    row = {"prompt": TEXT, "answers": [{"label": "chosen", "text": TEXT, "tokens": 1}]}
    path.write_text(json.dumps(row, ensure_ascii=False) + "\n", encoding="utf-8")
    return read_training_examples(path)[0].prompt


def metrics(path: Path) -> Any:
    path.write_text(json.dumps({"step": 1, TEXT: 2.0}, ensure_ascii=False) + "\n", encoding="utf-8")
    return next(name for name in read_metrics(path)[0] if name != "step")


def rows(path: Path) -> Any:
    file = path.with_suffix(".jsonl")
    file.write_text(json.dumps({"prompt": TEXT}, ensure_ascii=False) + "\n", encoding="utf-8")
    return read_file(resolve_path(str(file)))[0]["prompt"]


def arguments(path: Path) -> Any:
    return _arguments(json.dumps(TEXT, ensure_ascii=False) + "\n2")[0]


def acknowledged(path: Path) -> Any:
    for _ in range(2):
        with FileBuffer(path, "jsonl", read_timeout_seconds=0) as buffer:
            buffer.put([make_group(TEXT), make_group("other")])
            found = ids(buffer.take(2, timeout_seconds=0))
            buffer.acknowledge([TEXT] if TEXT in found else [])
    return TEXT if found == ["other"] else found


@pytest.mark.parametrize("read", [examples, metrics, rows, arguments, acknowledged])
def test_a_text_comes_back_as_it_was(tmp_path: Path, read: Callable[[Path], Any]) -> None:
    assert read(tmp_path / "file") == TEXT
