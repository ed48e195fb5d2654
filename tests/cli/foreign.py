"""Small data files for configurations of other tools that run to the end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.datasets import read_rows as rows

__all__ = ["rows", "verl_rows", "write_rows"]


def write_rows(path: Path, lines: Sequence[Any]) -> Path:
    """Write JSON lines."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def verl_rows(count: int) -> list[dict[str, Any]]:
    """Convert rows of GSM8K to the columns that verl's own preparation writes."""
    return [
        {
            "data_source": "openai/gsm8k",
            "prompt": [{"role": "user", "content": row["question"]}],
            "reward_model": {"style": "rule", "ground_truth": row["answer"].rpartition("#### ")[2]},
        }
        for row in rows("gsm8k/train.jsonl", count)
    ]
