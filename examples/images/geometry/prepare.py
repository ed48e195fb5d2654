"""Write Geometry3K as the Parquet files that verl's scripts expect.

From Parquet with the columns `images`, `problem` and `answer`, as `hiyouga/geometry3k` has them, or from the hub:

    python examples/images/geometry/prepare.py --train train.parquet --test test.parquet --out data/geo3k
    python examples/images/geometry/prepare.py --hub --out data/geo3k
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from strop.config.schema.data import TasksetConfig
from strop.data.images.prompt_images import column_values, image_bytes
from strop.data.sources.columns import value_at
from strop.data.sources.reader import read_rows
from strop.errors import DataError, StropError

SOURCE = "hiyouga/geometry3k"
INSTRUCTION = (
    "First think about the problem, between <think> and </think>. Then write the final answer in \\boxed{}."
)
MARKER = "<image>"


def verl_row(row: dict[str, Any], split: str, index: int, where: str, folder: str) -> dict[str, Any]:
    """One row with verl's columns. Raises `DataError` where markers and images differ in number."""
    problem, answer = (value_at(row, column, where) for column in ("problem", "answer"))
    images = [
        {"bytes": image_bytes(value, where, base=folder, allow_urls=False), "path": None}
        for value in column_values(value_at(row, "images", where))
    ]
    if problem.count(MARKER) != len(images):
        raise DataError(
            f"{where}: the problem has {problem.count(MARKER)} markers {MARKER} and {len(images)} images."
        )
    return {
        "data_source": SOURCE,
        "prompt": [{"role": "user", "content": f"{problem} {INSTRUCTION}"}],
        "images": images,
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": answer},
        "extra_info": {"split": split, "index": index, "answer": answer, "question": problem},
    }


def prepare(taskset: TasksetConfig, split: str, out: Path) -> Path:
    """Write `<out>/<split>.parquet`; returns the file. Raises `DataError` for rows that are not Geometry3K's."""
    rows = read_rows(taskset)
    verl_rows = [
        verl_row(rows[index], split, index, rows.where(index), rows.folder(index))
        for index in range(len(rows))
    ]
    out.mkdir(parents=True, exist_ok=True)
    file = out / f"{split}.parquet"
    pq.write_table(pa.Table.from_pylist(verl_rows), file)
    print(f"wrote {len(verl_rows)} tasks to {file}")
    return file


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Write Geometry3K as the Parquet files that verl's scripts expect."
    )
    parser.add_argument("--train", help="file with the tasks to train on")
    parser.add_argument("--test", help="file with the tasks to evaluate on")
    parser.add_argument("--hub", action="store_true", help=f"read {SOURCE} from the Hugging Face Hub")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    args = parser.parse_args()
    files = {"train": args.train, "test": args.test}
    if not args.hub and not any(files.values()):
        parser.error("write --train and --test, or --hub")
    try:
        for split, file in files.items():
            if args.hub:
                prepare(TasksetConfig(path=SOURCE, split=split), split, args.out)
            elif file:
                prepare(TasksetConfig(path=file), split, args.out)
    except StropError as error:
        sys.exit(f"{error}")


if __name__ == "__main__":
    main()
