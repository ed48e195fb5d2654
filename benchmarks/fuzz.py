"""Damaged configurations per dialect and damaged files per kind: how many are read, refused, end in a traceback, or
take over 5 s of CPU.

    .venv/bin/python -m benchmarks.fuzz
    .venv/bin/python -m benchmarks.fuzz --only data model
    .venv/bin/python -m benchmarks.fuzz --seed 2026-01-31 --only verl --first 17 --count 1    # one of them

What is damaged and how follows from the seed, which is the date unless `--seed` names another. A failure is printed
with the command that repeats it.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # names of datasets and models that a damaged file has are not asked for

from tests.fuzz.configurations import FUZZED, outcome
from tests.fuzz.files import KINDS, FileFuzz
from tests.fuzz.outcome import Outcome

_MAX_BYTES = 6 << 30
"""Address space of this process: a template or a file that takes more memory gets an error instead of the machine's."""


def main() -> None:
    """Print the table; exit with 1 after a failure."""
    names = (*FUZZED, *KINDS)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", default=f"{datetime.now(UTC):%Y-%m-%d}")
    parser.add_argument(
        "--only", nargs="*", default=names, choices=names, metavar="NAME", help=", ".join(names)
    )
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=5000)
    options = parser.parse_args()
    os.environ.pop("STROP_HERE", None)
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_BYTES, _MAX_BYTES))
    print(f"Seed {options.seed}, inputs {options.first} to {options.first + options.count - 1}:\n")
    print("| damaged | read | refused | tracebacks | over 5 s | slowest, CPU s |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    failed = False
    for name in options.only:
        counts, slowest, failures = try_all(name, options.seed, options.first, options.count)
        failed = failed or bool(failures)
        cells = (counts["read"], counts["refused"], counts["traceback"], counts["too slow"], f"{slowest:.1f}")
        print(f"| {name} | {' | '.join(map(str, cells))} |", flush=True)
        print("".join(f"{line}\n" for line in failures), end="", file=sys.stderr, flush=True)
    if failed:
        sys.exit(1)


def try_all(name: str, seed: str, first: int, count: int) -> tuple[Counter[str], float, list[str]]:
    """Return the number of each result, the largest CPU time, and a line per failure."""
    counts: Counter[str] = Counter()
    slowest, failures = 0.0, []
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        read = _reader(name, Path(folder))
        for number in range(first, first + count):
            found = read(f"{seed}:{number}")
            counts[found.result] += 1
            slowest = max(slowest, found.seconds)
            if not found.is_good:
                failures.append(
                    f"{found.detail}: python -m benchmarks.fuzz --seed {seed} --only {name} --first {number} --count 1"
                )
        os.chdir("/")
    return counts, slowest, failures


def _reader(name: str, folder: Path) -> Callable[[str], Outcome]:
    """The function that reads an input of a dialect or of a kind of file by its seed."""
    if name in KINDS:
        return FileFuzz(name, folder).outcome
    return lambda seed: outcome(name, seed, folder)


if __name__ == "__main__":
    main()
