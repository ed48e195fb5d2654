"""Data and a model for verl's command line in README.md: the quickstart's two-digit sums, as Parquet in verl's columns.

    python examples/verl/sums.py data/sums

makes a small model on the spot, trains it on right answers until 3 of 10 held-out sums are right, and writes the tasks.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parents[1] / "quickstart"))
from quickstart import prepare


def write_parquet(file: Path) -> None:
    """Write the rows of a JSON-lines file as verl's preparation scripts do."""
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    table = pa.Table.from_pylist(
        [
            {
                "data_source": "two-digit-sums",
                "prompt": [{"role": "user", "content": row["prompt"]}],
                "ability": "math",
                "reward_model": {"style": "rule", "ground_truth": row["answer"]},
                "extra_info": {"index": index},
            }
            for index, row in enumerate(rows)
        ]
    )
    pq.write_table(table, file.with_suffix(".parquet"))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="folder of the data and of the model, warm-start")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    os.environ["QUICKSTART"] = str(out)
    prepare(out, seed=1)
    for name in ("train", "test"):
        write_parquet(out / f"{name}.jsonl")
    print(f"train.parquet, test.parquet and the model warm-start are in {out}.")


if __name__ == "__main__":
    main()
