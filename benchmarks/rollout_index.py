"""Times of Studio's index of rollouts, on a made run with a million of them.

python benchmarks/rollout_index.py [--rollouts N] [--folder FOLDER]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from strop.runs.folder import RunFolder
from strop.runs.rollout_file import SCHEMA, rollout_path
from strop.runs.rollout_index import RolloutFilter, RolloutIndex

PER_STEP, GROUP = 1000, 8


def write_steps(folder: RunFolder, steps: int) -> None:
    """Write a file of random rollouts for each step; a response has about 600 characters."""
    folder.rollouts.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(0)
    numbers = np.repeat(np.arange(PER_STEP // GROUP), GROUP)
    for step in range(1, steps + 1):
        columns: dict[str, Any] = {
            "step": np.full(PER_STEP, step),
            "task_id": [f"t{number}" for number in numbers],
            "group": [f"{step}/{number}" for number in numbers],
            "index": np.tile(np.arange(GROUP), PER_STEP // GROUP),
            "prompt": [f"What is {number} + {step}?" + " Think." * 20 for number in numbers],
            "answer": [str(number + step) for number in numbers],
            "text": [f"{word} " + "so we add the numbers " * 25 for word in draw.integers(0, 9999, PER_STEP)],
            "reward": draw.random(PER_STEP),
            "status": ["ok"] * PER_STEP,
            "turns": np.ones(PER_STEP, int),
            "response_tokens": draw.integers(1, 200, PER_STEP),
        }
        table = pa.table(
            {
                name: pa.array(columns.get(name, [None] * PER_STEP), SCHEMA.field(name).type)
                for name in SCHEMA.names
            }
        )
        pq.write_table(table, rollout_path(folder.rollouts, step), compression="zstd", row_group_size=256)


def timed(label: str, work: Callable[[], Any]) -> None:
    """Print the seconds of a call."""
    started = time.perf_counter()
    work()
    print(f"{label:48} {time.perf_counter() - started:6.2f} s")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, help="folder for the made run; a temporary one by default")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = RunFolder(args.folder or Path(temporary))
        if not folder.rollouts.exists():
            write_steps(folder, args.rollouts // PER_STEP)
        index, steps = RolloutIndex(folder), args.rollouts // PER_STEP
        timed("index of all files", index.refresh)
        timed("look for new files", index.refresh)
        timed("first page, newest", lambda: index.find(RolloutFilter(), 0, 10))
        timed("later page, newest", lambda: index.find(RolloutFilter(), 200, 10))
        timed("best", lambda: index.find(RolloutFilter(order="best"), 0, 10))
        timed("page 1,000 of the best", lambda: index.find(RolloutFilter(order="best"), 10_000, 10))
        half = RolloutFilter(first_step=steps // 2, min_reward=0.9, order="longest")
        timed("longest of the later half with a reward over 0.9", lambda: index.find(half, 0, 10))
        timed("groups by the difference of their rewards", lambda: index.spreads(RolloutFilter(), 0, 10))
        searched = index.find(RolloutFilter(text="no rollout has this"), 0, 10).searched
        timed(
            f"search in {searched:,} texts",
            lambda: index.find(RolloutFilter(text="no rollout has this"), 0, 10),
        )


if __name__ == "__main__":
    main()
