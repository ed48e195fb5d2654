"""Kills of every kind at random moments: counts them, and requires that nothing is lost.

    python benchmarks/kills.py [--kills 20] [--only "postgresql or ray or collective"]

Runs the fault tests with at least this number of kills of each kind, some of them shared by several tests, and prints
how many processes were killed. Each test compares with an undisturbed run: metrics and weights bit for bit where the
run is synchronous, else that each group was trained on exactly once; a test that hangs fails by its time limit. Exits
with 1 if a test fails.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = (
    "tests/run/test_kill.py",
    "tests/run/test_rank_killed.py",
    "tests/run/test_distributed_kill.py",
    "tests/run/test_engines.py",
    "tests/run/test_ray_kill.py",
    "tests/buffer/test_kill.py",
    "tests/training/test_rank_deaths.py",
)


def main() -> None:
    """Run the tests and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20, help="kills of each kind")
    parser.add_argument("--only", metavar="EXPRESSION", help="names of tests, as for pytest's -k")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "kills.txt"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-n",
            "2",
            "--dist",
            "worksteal",
            "-m",
            "slow or nightly",
            *(("-k", options.only) if options.only else ()),
            *TESTS,
        ]
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | {"STROP_KILLS": str(options.kills), "STROP_KILL_LOG": str(log)},
            stdout=sys.stderr,
            check=False,
        )
        if done.returncode:
            sys.exit("A fault test failed; see above.")
        counts = Counter(log.read_text(encoding="utf-8").splitlines())
    print("| killed process | kills |\n| --- | --- |")
    for kind, count in sorted(counts.items()):
        print(f"| {kind} | {count} |")
    print(f"| **all** | **{counts.total()}** |")
    print("\nGroups lost or trained on twice: 0. Runs that differ from the undisturbed run: 0. Hangs: 0.")


if __name__ == "__main__":
    main()
