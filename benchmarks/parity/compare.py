"""Comparison of Strop's estimators, losses and divergences with those of verl, Trinity-RFT and TRL.

Writes docs/algorithms/parity.md. Fails if a difference is above the bound without a stated reason, or
if a reason is stated and there is no difference.
"""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import version
from pathlib import Path

import reward_side
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
    """Return the largest absolute difference over all batches and elements."""
    differences = []
    for seed in range(BATCHES):
        peer, strop = case.peer_value(make_batch(seed)), case.strop_value(make_batch(seed))
        differences.append(float((peer.double() - strop.double()).abs().max()))
    return max(differences)


def page(rows: list[tuple[Case, float]]) -> str:
    """Return the text of `docs/algorithms/parity.md`."""
    peers = ", ".join(f"{name} {version(package)}" for name, package in PACKAGES.items())
    lines = [
        "# Comparison with verl, Trinity-RFT and TRL",
        "",
        f"Largest differences from {peers} over {BATCHES} random ragged batches: "
        f"5 groups of 2 to 5 responses of 1 to 12 tokens, with on-policy and off-policy log-probs. The row of a "
        f"loss has the larger of the differences in its value and in its gradient. Numbers are float64 (torch "
        f"{version('torch')}, CPU). Values are equal up to {BOUND:g}; for larger differences the last column gives "
        "the reason.",
        "",
        "`benchmarks/parity/compare.py` writes this page; its README has the commands to run it.",
        "",
        "| quantity | compared with | largest difference | reason |",
        "| --- | --- | --- | --- |",
    ]
    lines += [f"| {c.quantity} | {c.peer} | {difference:.1e} | {c.reason} |" for c, difference in rows]
    return "\n".join(lines) + "\n"


PACKAGES = {"verl": "verl", "Trinity-RFT": "trinity-rft", "TRL": "trl"}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=PAGE, help="path of the page")
    args = parser.parse_args()
    torch.set_num_threads(1)
    cases = [*verl_side.cases(), *trinity_side.cases(), *trl_side.cases(), *reward_side.cases()]
    rows = [(case, largest_difference(case)) for case in cases]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(page(rows))
    wrong = [(c, d) for c, d in rows if (d > BOUND) != bool(c.reason)]
    for case, difference in wrong:
        print(
            f"{case.quantity}, {case.peer}: difference {difference:.1e}, stated reason: {case.reason or 'none'}"
        )
    equal = sum(difference <= BOUND for _, difference in rows)
    print(f"{equal} of {len(rows)} rows are equal up to {BOUND:g}; the page is {args.out}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
