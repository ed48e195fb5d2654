"""Peak memory of a trainer's ranks against the length of a sequence and `trainer.engine.sequence_parallel`.

    python benchmarks/sequence_parallel.py [--lengths 2048 4096 8192] [--sizes 1 2 4] [--hidden 256] [--layers 4]

Trains a random model for two steps of supervised fine-tuning with one sequence per step, on as many ranks as divide
its tokens. Prints the largest peak (VmHWM) of a rank after the last step, less that of a run on as many ranks with a
short sequence.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rank_memory import MAKE_MODEL, STEPS, measure

SHORT = 64
"""Tokens of the sequence that is subtracted."""


def main() -> None:
    """Run the command line: print a table with a row for each length."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--lengths", type=int, nargs="+", default=[2048, 4096, 8192])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = [str(folder / "model"), str(args.hidden), str(args.layers)]
        subprocess.run([sys.executable, "-c", MAKE_MODEL, *model], env=environment(), check=True)
        base = {size: peak_mb(folder, size, SHORT) for size in args.sizes}
        print("| tokens of a sequence | " + " | ".join(f"{size} ranks: MB" for size in args.sizes) + " |")
        print("| --- |" + " --- |" * len(args.sizes))
        for length in args.lengths:
            peaks = [peak_mb(folder, size, length) - base[size] for size in args.sizes]
            print(f"| {length:,} | " + " | ".join(f"{peak:,.0f}" for peak in peaks) + " |", flush=True)


def environment() -> dict[str, str]:
    """Environment of the runs: freed memory goes back to the system at once."""
    allocator = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    return {
        **os.environ,
        **allocator,
        "PYTHONPATH": str(Path(__file__).parents[1]),
        "OMP_NUM_THREADS": "1",
    }


def peak_mb(folder: Path, size: int, length: int) -> float:
    """Largest peak of a rank in MB after the last step."""
    run_folder = folder / f"{size}-{length}"
    run_folder.mkdir()
    rows = [json.dumps({"prompt": "two", "answer": "2" * (length - 8)}) for _ in range(STEPS)]
    (run_folder / "data.jsonl").write_text("\n".join(rows) + "\n")
    run = {
        "name": "memory",
        "output": str(run_folder / "runs"),
        "model": {"path": str(folder / "model"), "override": {"max_position_embeddings": 2 * length}},
        "data": {
            "train": {"path": str(run_folder / "data.jsonl"), "response": "answer"},
            "max_response_tokens": length,
        },
        "algorithm": "sft",
        "trainer": {
            "duration": f"{STEPS} steps",
            "tasks_per_step": 1,
            "microbatch": f"{2 * length} tokens",
            "engine": {"type": "fsdp2", "ranks": size, "sequence_parallel": size, "device": "cpu"},
        },
        "evaluate": {"at_start": False, "every": "never"},
        "checkpoint": {"every": "never"},
        "record": {"monitors": [], "report": False},
    }
    (run_folder / "run.yaml").write_text(json.dumps(run))
    command = [sys.executable, "-m", "strop", "train", "run.yaml"]
    _, trained, _ = measure(command, run_folder, environment())
    return max(trained.values())


if __name__ == "__main__":
    main()
