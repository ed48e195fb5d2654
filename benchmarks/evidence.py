"""Everything that is too long for CI, one after the other; refreshes the tables in the docs.

    make evidence                      # all of it: some hours on two cores
    make evidence ARGS=sampler         # what has this name alone

A table stands in the page between `<!-- name -->` and `<!-- /name -->`, below the command that printed it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"

TABLES = {
    "step": ["benchmarks/grpo_step.py"],
    "sft": ["benchmarks/sft.py"],
    "cost": ["benchmarks/step_cost.py"],
    "sampler": ["benchmarks/sampler.py"],
    "engines": ["benchmarks/engines.py", "--engines", "2", "3"],
    "logprobs": ["benchmarks/logprobs_memory.py"],
    "learning": ["benchmarks/learning.py"],
    "apart": ["benchmarks/apart.py"],
    "sync": ["benchmarks/sync.py"],
}
"""Scripts that print a table."""

PAGES = {
    "learning": DOCS / "algorithms" / "learning.md",
    "apart": DOCS / "modes.md",
    "sync": DOCS / "modes.md",
}
"""Where a table stands; the others are in `docs/benchmarks.md`."""

TESTS: dict[str, tuple[list[str], dict[str, str]]] = {
    "mutations": (["tests/config/test_mutations.py"], {"STROP_MUTATIONS": "1000"}),
    "kills": (
        ["-m", "faults"],
        {"STROP_KILLS": "20"}
        | dict.fromkeys(("STROP_APART_KILLS", "STROP_ENGINE_KILLS", "STROP_RAY_KILLS"), "10"),
    ),
}
"""Tests that go further here than in CI: which they are, and what they are told by the environment."""


def refresh(name: str, script: list[str]) -> None:
    """Run a script and put what it prints into the page. Raises where the script fails."""
    done = subprocess.run(
        [sys.executable, *script], cwd=HERE.parent, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(script)} failed:\n{done.stdout}\n{done.stderr}")
    path = PAGES.get(name, DOCS / "benchmarks.md")
    page = path.read_text(encoding="utf-8")
    block = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    if not block.search(page):
        sys.exit(f"{path} has no block <!-- {name} -->")
    table = done.stdout.strip()
    path.write_text(block.sub(lambda match: f"{match[1]}\n{table}\n\n{match[2]}", page), encoding="utf-8")
    print(table)


def run_tests(which: list[str], environment: dict[str, str]) -> None:
    """Run long tests. Raises where one fails."""
    command = [sys.executable, "-m", "pytest", *which]
    subprocess.run(command, cwd=HERE.parent, env=os.environ | environment, check=True)


def main() -> None:
    """The command line: names of parts, or none for all."""
    parts = [*TABLES, *TESTS]
    wanted = sys.argv[1:] or parts
    unknown = [name for name in wanted if name not in parts]
    if unknown:
        sys.exit(f"There is no part {unknown[0]!r}; there are {', '.join(parts)}.")
    for name in wanted:
        print(f"== {name}", flush=True)
        if name in TESTS:
            run_tests(*TESTS[name])
        else:
            refresh(name, TABLES[name])


if __name__ == "__main__":
    main()
