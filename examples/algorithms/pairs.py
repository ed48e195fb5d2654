"""Preference pairs and labeled responses from the quickstart's tasks: the right sum, and one that is off by 1 to 9.

python examples/algorithms/pairs.py
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path


def main() -> None:
    """Write pairs-train.jsonl and pairs-test.jsonl, and labels-train.jsonl and labels-test.jsonl with one of the two
    sums of each pair, into the folder of the quickstart's tasks."""
    folder = Path(os.environ.get("QUICKSTART", "runs/quickstart"))
    draw = random.Random(0)
    for name in ("train", "test"):
        with (
            (folder / f"{name}.jsonl").open() as tasks,
            (folder / f"pairs-{name}.jsonl").open("w") as pairs,
            (folder / f"labels-{name}.jsonl").open("w") as labels,
        ):
            for task in map(json.loads, tasks):
                off = draw.choice((-1, 1)) * draw.randint(1, 9)
                row = {
                    "prompt": task["prompt"],
                    "right": task["answer"],
                    "wrong": str(int(task["answer"]) + off),
                }
                pairs.write(json.dumps(row) + "\n")
                is_right = off % 2 == 0
                completion = row["right" if is_right else "wrong"]
                label = {"prompt": task["prompt"], "completion": completion, "label": is_right}
                labels.write(json.dumps(label) + "\n")


if __name__ == "__main__":
    main()
