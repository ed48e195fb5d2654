"""Simulated steps of GRPO with 1,024 engines, by style, staleness, and number of GPUs that train.

    make evidence ARGS=async_sweep                # updates docs/scaling.md; a minute or two
    .venv/bin/python benchmarks/async_sweep.py    # prints the table

The run is that of `async_simulation.py` with the long tail: a model of 7B, and an engine on each GPU.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from itertools import product

from async_settings import Outcome
from async_simulation import TAILS, Variant, outcome, split_loop

from strop.config.schema.buffer import (
    BoundedStyleConfig,
    FixedStyleConfig,
    LatestStyleConfig,
    OnRequestStyleConfig,
)
from strop.config.units import Amount

ENGINES = 1024
RANKS = (64, 256, 1024)


def _bounded(staleness: int, concurrency: int) -> Variant:
    style = BoundedStyleConfig(max_staleness=Amount(staleness, "steps"))
    return Variant(f"`bounded` {staleness}, {concurrency} x", style, concurrency=concurrency)


VARIANTS = (
    Variant("`fixed`, lead 0", FixedStyleConfig()),
    Variant("`fixed`, lead 1", FixedStyleConfig(max_lead=Amount(1, "steps"))),
    _bounded(2, 1),
    _bounded(4, 4),
    _bounded(8, 4),
    _bounded(16, 8),
    Variant("`on_request`, 1 x", OnRequestStyleConfig()),
    Variant("`latest`, 1 x", LatestStyleConfig()),
    Variant("`latest`, 4 x", LatestStyleConfig(), concurrency=4),
)

Key = tuple[str, int]
"""Title of a variant, and GPUs that train."""


def sweep(pool: ProcessPoolExecutor) -> dict[Key, Outcome]:
    """Simulate all variants."""
    cases = list(product(VARIANTS, RANKS))
    loops = [split_loop(variant, ranks, ENGINES, TAILS["long"]) for variant, ranks in cases]
    found = pool.map(outcome, loops)
    return {(variant.title, ranks): each for (variant, ranks), each in zip(cases, found, strict=True)}


def table(found: Mapping[Key, Outcome]) -> str:
    """Format the seconds of a step by GPUs that train, and staleness and idle time with the most of them.

    Bold is the style with the fewest seconds in each column.
    """
    train = " | ".join(f"{ranks:,} train" for ranks in RANKS)
    lines = [
        f"| style | {train} | staleness | idle engines, trainer |",
        f"| --- |{' ---: |' * (len(RANKS) + 2)}",
    ]
    fastest = {
        ranks: min(found[variant.title, ranks].seconds_per_step for variant in VARIANTS) for ranks in RANKS
    }
    for variant in VARIANTS:
        cells = []
        for ranks in RANKS:
            seconds = found[variant.title, ranks].seconds_per_step
            cells.append(f"**{seconds:.0f}**" if seconds <= 1.02 * fastest[ranks] else f"{seconds:.0f}")
        last = found[variant.title, RANKS[-1]]
        cells.append(f"{last.mean_staleness:.1f}, {last.max_staleness}")
        cells.append(f"{100 * last.engines_idle:.0f}, {100 * last.trainer_idle:.0f} %")
        lines.append(f"| {variant.title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run the command line: print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    args = parser.parse_args()
    with ProcessPoolExecutor(args.processes) as pool:
        found = sweep(pool)
    print(table(found))


if __name__ == "__main__":
    main()
