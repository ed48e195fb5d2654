"""Measurements and tests that take too long for CI; updates the tables in the docs.

    make evidence                      # all parts: some hours on two cores
    make evidence ARGS=sampler         # only the part with this name

A page has a table between `<!-- name -->` and `<!-- /name -->`.
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
    "zero_advantages": ["benchmarks/zero_advantages.py"],
    "cores": ["benchmarks/cores.py"],
    "cost": ["benchmarks/step_cost.py"],
    "sampler": ["benchmarks/sampler.py"],
    "engine_pool": ["benchmarks/engine_pool.py", "--engines", "2", "3"],
    "engines": ["benchmarks/engines.py"],
    "logprobs": ["benchmarks/logprobs_memory.py"],
    "learning": ["benchmarks/learning.py"],
    "distributed": ["benchmarks/distributed.py"],
    "sync": ["benchmarks/sync.py"],
    "soak": ["benchmarks/soak.py"],
    "kills": ["benchmarks/kills.py"],
    "endpoint": ["benchmarks/endpoint.py"],
    "fuzz": ["-m", "benchmarks.fuzz"],
    "scaling": ["benchmarks/scaling.py"],
    "step_time": ["benchmarks/step_time.py"],
    "many_cores": ["benchmarks/many_cores.py"],
    "async_validation": ["benchmarks/async_validation.py"],
    "async_simulation": ["benchmarks/async_simulation.py"],
    "async_sweep": ["benchmarks/async_sweep.py"],
}
"""Scripts that print a table, with their arguments."""

PAGES = {
    "learning": DOCS / "results.md",
    "distributed": DOCS / "modes.md",
    "sync": DOCS / "modes.md",
    "kills": DOCS / "reliability.md",
    "engines": DOCS / "engines.md",
    "scaling": DOCS / "scaling.md",
    "step_time": DOCS / "scaling.md",
    "many_cores": DOCS / "scaling.md",
    "async_validation": DOCS / "scaling.md",
    "async_simulation": DOCS / "scaling.md",
    "async_sweep": DOCS / "scaling.md",
}
"""Page of a table; the other tables are in `docs/benchmarks.md`."""

INTERPRETERS = {
    "engines": HERE.parent / ".venv-sglang" / "bin" / "python",
    "fake-cuda": HERE.parent / ".venv-cuda" / "bin" / "python",
}
"""Interpreters of the parts that need an environment of their own."""
BUILDS = {"engines": "make engines", "fake-cuda": "make evidence ARGS=fake-cuda"}
"""Commands that build these environments."""

TESTS: dict[str, tuple[list[str], dict[str, str]]] = {
    "mutations": (["tests/compat/test_broken_configs.py", "-m", ""], {"STROP_MUTATIONS": "1000"}),
    "backends": (
        [
            "tests/training/test_ranks.py",
            "-m",
            "",
        ],
        {},
    ),
    "fake-cuda": (["tests/fake_cuda"], {}),
}
"""Tests with more repetitions than in CI: pytest arguments and environment variables."""


def find_interpreter(name: str) -> Path:
    """The interpreter of a part; exit if its environment was not built."""
    interpreter = INTERPRETERS.get(name, Path(sys.executable))
    if not interpreter.exists():
        sys.exit(f"{name} needs {interpreter}; build its environment with `{BUILDS[name]}`.")
    return interpreter


def update_table(name: str, script: list[str]) -> None:
    """Run a script and write its output into the page; exit if the script fails."""
    interpreter = find_interpreter(name)
    done = subprocess.run(
        [interpreter, *script], cwd=HERE.parent, capture_output=True, text=True, check=False
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


def run_tests(name: str, arguments: list[str], environment: dict[str, str]) -> None:
    """Run long tests; raise CalledProcessError if one fails."""
    command = [find_interpreter(name), "-m", "pytest", *arguments]
    subprocess.run(command, cwd=HERE.parent, env=os.environ | environment, check=True)


def main() -> None:
    """Run the parts that the arguments name, or all parts."""
    parts = [*TABLES, *TESTS]
    selected = sys.argv[1:] or parts
    unknown = [name for name in selected if name not in parts]
    if unknown:
        sys.exit(f"Unknown part {unknown[0]!r}; the parts are {', '.join(parts)}.")
    for name in selected:
        print(f"== {name}", flush=True)
        if name in TESTS:
            run_tests(name, *TESTS[name])
        else:
            update_table(name, TABLES[name])


if __name__ == "__main__":
    main()
