"""Write GSM8K as the Parquet files that verl's scripts expect.

From local JSON Lines with the columns `question` and `answer`, or from the hub:

    python examples/gsm8k/prepare.py --train train.jsonl --test test.jsonl --out data/gsm8k
    python examples/gsm8k/prepare.py --hub --out data/gsm8k
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from strop.config.schema.data import TasksetConfig
from strop.data.sources.columns import value_at
from strop.data.sources.reader import read_rows
from strop.errors import DataError, StropError

SOURCE = "openai/gsm8k"
INSTRUCTION = 'Let\'s think step by step and output the final answer after "####".'
FINAL_ANSWER = re.compile(r"####\s*(-?[0-9.,]+)")


def verl_row(question: str, answer: str, split: str, index: int, where: str) -> dict[str, Any]:
    """One row with verl's columns. Raises `DataError` where the worked answer states no final one."""
    final = FINAL_ANSWER.search(answer)
    if final is None:
        raise DataError(f"{where}: the answer does not end in `#### <number>`: {answer[-80:]!r}.")
    return {
        "data_source": SOURCE,
        "prompt": [{"role": "user", "content": f"{question} {INSTRUCTION}"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": final[1].replace(",", "")},
        "extra_info": {"split": split, "index": index, "answer": answer, "question": question},
    }


def prepare(taskset: TasksetConfig, split: str, out: Path) -> Path:
    """Write `<out>/<split>.parquet`; returns the file. Raises `DataError` for rows that are not GSM8K's."""
    rows = read_rows(taskset)
    verl_rows = []
    for index in range(len(rows)):
        row, where = rows[index], rows.where(index)
        question, answer = (value_at(row, column, where) for column in ("question", "answer"))
        verl_rows.append(verl_row(question, answer, split, index, where))
    out.mkdir(parents=True, exist_ok=True)
    file = out / f"{split}.parquet"
    pq.write_table(pa.Table.from_pylist(verl_rows), file)
    print(f"wrote {len(verl_rows)} tasks to {file}")
    return file


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Write GSM8K as verl's Parquet files.")
    parser.add_argument("--train", help="JSON Lines of the training split")
    parser.add_argument("--test", help="JSON Lines of the test split")
    parser.add_argument("--hub", action="store_true", help=f"read {SOURCE} from the hub instead")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write to")
    args = parser.parse_args()
    files = {split: path for split, path in (("train", args.train), ("test", args.test)) if path}
    if args.hub == bool(files):
        parser.error("give either --hub, or --train and --test (or one of them)")
    if args.hub:
        tasksets = {
            split: TasksetConfig(path=SOURCE, subset="main", split=split) for split in ("train", "test")
        }
    else:
        tasksets = {split: TasksetConfig(path=path) for split, path in files.items()}
    try:
        for split, taskset in tasksets.items():
            prepare(taskset, split, args.out)
    except (StropError, OSError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
