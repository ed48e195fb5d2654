"""Strop's estimators, losses and divergences beside verl's, Trinity-RFT's and TRL's.

Writes docs/algorithms/parity.md. Fails where a difference is above the bound and no reason is stated,
or where a reason is stated and there is no difference.
"""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import version
from pathlib import Path

import torch
import trinity_side
import trl_side
import verl_side
from batches import make_batch
from cases import Case

BATCHES = 50
BOUND = 1e-6
PAGE = Path(__file__).parents[2] / "docs" / "algorithms" / "parity.md"


def largest_difference(case: Case) -> float:
    """Over all batches and all numbers."""
    differences = []
    for seed in range(BATCHES):
        theirs, ours = case.theirs(make_batch(seed)), case.ours(make_batch(seed))
        differences.append(float((theirs.double() - ours.double()).abs().max()))
    return max(differences)


def page(rows: list[tuple[Case, float]]) -> str:
    """`docs/algorithms/parity.md`."""
    peers = ", ".join(f"{name} {version(package)}" for name, package in PACKAGES.items())
    lines = [
        "# Beside verl, Trinity-RFT and TRL",
        "",
        f"Largest differences from {peers} over {BATCHES} random ragged batches: "
        f"5 groups of 2 to 5 answers, of 1 to 12 tokens, with log-probs on and off policy. A loss's row is "
        f"the larger of the differences in its value and in its gradient. Numbers are float64 (torch "
        f"{version('torch')}, CPU). Up to {BOUND:g} is equal; above, the reason stands beside it.",
        "",
        "This page is written by `benchmarks/parity/compare.py`; its README says how to run it.",
        "",
        "| what | beside | largest difference | |",
        "| --- | --- | --- | --- |",
    ]
    lines += [f"| {c.what} | {c.peer} | {difference:.1e} | {c.why} |" for c, difference in rows]
    return "\n".join(lines) + "\n"


PACKAGES = {"verl": "verl", "Trinity-RFT": "trinity-rft", "TRL": "trl"}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=PAGE, help="where the page goes")
    args = parser.parse_args()
    torch.set_num_threads(1)
    cases = [*verl_side.cases(), *trinity_side.cases(), *trl_side.cases()]
    rows = [(case, largest_difference(case)) for case in cases]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(page(rows))
    wrong = [(c, d) for c, d in rows if (d > BOUND) != bool(c.why)]
    for case, difference in wrong:
        print(f"{case.what} beside {case.peer}: {difference:.1e}, stated reason: {case.why or 'none'}")
    equal = sum(difference <= BOUND for _, difference in rows)
    print(f"{equal} of {len(rows)} rows are equal up to {BOUND:g}; the page is {args.out}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
