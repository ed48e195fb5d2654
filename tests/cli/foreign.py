"""Small real data and a tiny model, for configurations of other tools that run to the end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

DATA = Path(__file__).parents[2] / ".." / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.exists(), reason="the data is not beside the repository")


def rows(name: str, count: int) -> list[dict[str, Any]]:
    """The first rows of a JSONL file of the shared data."""
    with (DATA / name).open() as file:
        return [json.loads(line) for line in islice(file, count)]


def write_rows(path: Path, lines: Sequence[Any]) -> Path:
    """Write JSON lines."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def verl_rows(count: int) -> list[dict[str, Any]]:
    """GSM8K as verl's own preparation writes it."""
    return [
        {
            "data_source": "openai/gsm8k",
            "prompt": [{"role": "user", "content": row["question"]}],
            "reward_model": {"style": "rule", "ground_truth": row["answer"].rpartition("#### ")[2]},
        }
        for row in rows("gsm8k/train.jsonl", count)
    ]
