"""Damaged configurations per dialect: how many are read, refused, end in a traceback, or take over 5 s of CPU.

    .venv/bin/python -m benchmarks.fuzz
    .venv/bin/python -m benchmarks.fuzz --seed 2026-01-31 --dialect verl --first 17 --count 1    # one of them

The configurations follow from the seed, which is the date unless `--seed` names another. A failure is printed with
the command that repeats it.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

from tests.dialects.fuzz import FUZZED, outcome


def main() -> None:
    """Print the table; exit with 1 after a failure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", default=f"{datetime.now(UTC):%Y-%m-%d}")
    parser.add_argument("--dialect", nargs="*", default=FUZZED, choices=FUZZED)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=5000)
    options = parser.parse_args()
    os.environ.pop("STROP_HERE", None)
    print(f"Seed {options.seed}, configurations {options.first} to {options.first + options.count - 1}:\n")
    print("| dialect | read | refused | tracebacks | over 5 s | slowest, CPU s |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    failed = False
    for dialect in options.dialect:
        counts, slowest, failures = try_dialect(dialect, options.seed, options.first, options.count)
        failed = failed or bool(failures)
        cells = (counts["read"], counts["refused"], counts["traceback"], counts["too slow"], f"{slowest:.1f}")
        print(f"| {dialect} | {' | '.join(map(str, cells))} |", flush=True)
        print("".join(f"{line}\n" for line in failures), end="", file=sys.stderr, flush=True)
    if failed:
        sys.exit(1)


def try_dialect(dialect: str, seed: str, first: int, count: int) -> tuple[Counter[str], float, list[str]]:
    """Return the number of each result, the largest CPU time, and a line per failure."""
    counts: Counter[str] = Counter()
    slowest, failures = 0.0, []
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        for number in range(first, first + count):
            found = outcome(dialect, f"{seed}:{number}", Path(name))
            counts[found.result] += 1
            slowest = max(slowest, found.seconds)
            if found.result in ("traceback", "too slow"):
                failures.append(
                    f"{found.detail}: python -m benchmarks.fuzz --seed {seed} --dialect {dialect} "
                    f"--first {number} --count 1"
                )
        os.chdir("/")
    return counts, slowest, failures


if __name__ == "__main__":
    main()
