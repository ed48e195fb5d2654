"""Start of a large taskset: `python benchmarks/tasksets.py --rows 1000000 --tokenizer FOLDER`.

Rows like GSM8K's, as JSON Lines, CSV or Parquet. Each start is a process of its own that reads the taskset, takes a
step of 64 tasks, and reports wall and CPU seconds since its first import, and its peak RSS.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NAMES = ("Ada", "Ben", "Chen", "Dora", "Emil", "Fatima", "Goro", "Hana")
THINGS = ("apples", "stamps", "marbles", "books", "pencils", "coins", "cards", "shells")
ACTS = ("buys", "finds", "sells", "loses", "packs", "paints")


def write_rows(path: Path, rows: int) -> None:
    """Write `rows` word problems of about 230 characters, with answers of about 280."""
    draw = random.Random(1)
    with path.open("w", encoding="utf-8") as file:
        if path.suffix == ".csv":
            file.write("question,answer\n")
        for number in range(rows):
            row = _row(draw, number)
            if path.suffix == ".csv":
                file.write(
                    ",".join(json.dumps(value).replace('\\"', '""').replace("\\n", "\n") for value in row)
                    + "\n"
                )
            else:
                file.write(json.dumps({"question": row[0], "answer": row[1]}) + "\n")


def _row(draw: random.Random, number: int) -> tuple[str, str]:
    sentences, steps, total = [], [], 10 + number % 90
    name, thing = draw.choice(NAMES), draw.choice(THINGS)
    sentences.append(f"{name} has {total} {thing} in a box at home.")
    for _ in range(draw.randint(2, 6)):
        more, act = draw.randint(2, 60), draw.choice(ACTS)
        sentences.append(
            f"On the next day {draw.choice(NAMES)} {act} {more} more of the {draw.choice(THINGS)}."
        )
        steps.append(
            f"{total}+{more}=<<{total}+{more}={total + more}>>{total + more} after this day, so we go on."
        )
        total += more
    return " ".join([*sentences, f"How many {thing} are there now?"]), "\n".join([*steps, f"#### {total}"])


def start(path: str, tokenizer: str, limit: int) -> None:
    """Read the taskset in this process, take one step, and print the measurements as JSON."""
    started = time.perf_counter()
    from transformers import AutoTokenizer

    from strop.config.schema.data import DataConfig, TasksetConfig
    from strop.data.taskset import load_taskset

    loaded = AutoTokenizer.from_pretrained(tokenizer)
    section = TasksetConfig(path=path, prompt="question")
    data = DataConfig(train=section, max_prompt_tokens=limit, overlong="filter")
    imported = time.perf_counter() - started
    taskset = load_taskset(section, data, loaded, seed=1, shuffle=True)
    tasks = taskset.take(64)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    measured = {
        "tasks": len(taskset),
        "seconds": time.perf_counter() - started,
        "of these, imports": imported,
        "CPU seconds": usage.ru_utime + usage.ru_stime,
        "peak MB": usage.ru_maxrss / 1024,
        "first": f"{tasks[0].id} {sum(int(task.prompt_ids.sum()) for task in tasks)}",
    }
    print(json.dumps(measured))


def main() -> None:
    """Measure the first and the second start with an empty cache."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--format", default="jsonl", choices=("jsonl", "csv", "parquet"))
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--limit", type=int, default=1024, help="data.max_prompt_tokens")
    parser.add_argument("--start", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.start:
        start(options.start, options.tokenizer, options.limit)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"train.{options.format}"
        write_rows(path.with_suffix(".jsonl") if options.format == "parquet" else path, options.rows)
        if options.format == "parquet":
            import pyarrow.json
            import pyarrow.parquet

            pyarrow.parquet.write_table(pyarrow.json.read_json(path.with_suffix(".jsonl")), path)
        print(f"{options.rows} rows, {path.stat().st_size / 1e6:.0f} MB of {options.format}")
        environment = os.environ | {"STROP_CACHE": str(Path(folder) / "cache")}
        command = [sys.executable, __file__, "--tokenizer", options.tokenizer, "--limit", str(options.limit)]
        for name in ("first", "second"):
            found = subprocess.run(
                [*command, "--start", str(path)], env=environment, check=True, capture_output=True, text=True
            )
            values = json.loads(found.stdout.splitlines()[-1])
            print(
                f"{name}: "
                + ", ".join(f"{k} {v:.1f}" if isinstance(v, float) else f"{k} {v}" for k, v in values.items())
            )


if __name__ == "__main__":
    main()
