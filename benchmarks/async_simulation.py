"""Simulated steps of GRPO on 16 to 1,024 H100 GPUs, by synchronization style, staleness and split of the GPUs.

    make evidence ARGS=async_simulation                # updates docs/scaling.md; about five minutes
    .venv/bin/python benchmarks/async_simulation.py    # prints the tables, and draws docs/async-simulation.png

Nothing is trained or sampled: `async_loop.py` simulates the loop, with times of a model of 7B from published hardware
numbers, those of `step_time.py`. A GPU is an engine or a rank of the trainer.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist

from async_loop import simulate
from async_settings import Engines, Lengths, Loop, Outcome
from step_time import EFFICIENCY, H100, flops_per_token, shape_of

from strop.config.schema.buffer import BoundedStyleConfig, FixedStyleConfig, LatestStyleConfig, StyleConfig
from strop.config.units import Amount

SHAPE = shape_of("7B")
PROMPTS, RESPONSES = 256, 8
PROMPT_TOKENS, MAX_RESPONSE_TOKENS, MEAN_RESPONSE_TOKENS = 1024, 16_384, 4000
TAILS = {"short": 0.3, "long": 1.0}
"""Standard deviation of the logarithm of a response's length; the mean length is the same."""
DEVICES = (16, 64, 256, 1024)
TRAINER_FRACTIONS = (0.5, 0.625)
"""Fractions of the GPUs that train, of which each style has the best one."""
BANDWIDTH = 0.6
"""Fraction of the memory's bandwidth that decoding reaches; an assumption, not measured."""
MAX_SEQUENCES = 256
KV_BYTES = 2 * 2 * 28 * 4 * 128
"""Bytes of a token's keys and values: 2 bytes, for 28 layers of 4 heads of 128."""
WEIGHT_BYTES = 2 * SHAPE.parameters
ADAPTER = H100.between_nodes / 8
"""Bytes per second of one network adapter, by which the trainer sends weights."""
FIRST, STEPS = 40, 8
"""Steps that are left out, and steps whose mean a figure is. The longest response takes as long as 11 of the fastest
steps, and a run needs several times that until its staleness is that of later steps."""
PLOT = Path(__file__).parents[1] / "docs" / "async-simulation.png"
MARKERS = "os^vDP"
"""Mark of each variant in the picture."""
SECONDS = (20, 50, 100, 200, 400)
"""Labels of its axis."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to synchronize explorer and trainer."""

    title: str
    style: StyleConfig
    shared: bool = False
    """Whether all GPUs sample, and then all train."""
    concurrency: int = 1
    """`rollout.max_concurrent_rollouts` over the rollouts of a step."""


def _steps(count: int) -> Amount:
    return Amount(count, "steps")


ONE_SET = Variant("all GPUs in turns", FixedStyleConfig(), shared=True)
ALTERNATING = Variant("`fixed`, lead 0", FixedStyleConfig())
STRICT = Variant("`bounded` 2", BoundedStyleConfig(max_staleness=_steps(2)))
LOOSE = Variant("`bounded` 8, 4 x", BoundedStyleConfig(max_staleness=_steps(8)), concurrency=4)
VARIANTS = (
    ONE_SET,
    ALTERNATING,
    Variant("`fixed`, lead 1", FixedStyleConfig(max_lead=_steps(1))),
    STRICT,
    LOOSE,
    Variant("`latest`", LatestStyleConfig()),
)


def lengths(sigma: float) -> Lengths:
    """Distribution with this spread and the mean length."""
    low, high = 1.0, float(MAX_RESPONSE_TOKENS)
    while high / low > 1.0001:
        median = math.sqrt(low * high)
        if _mean(median, sigma) < MEAN_RESPONSE_TOKENS:
            low = median
        else:
            high = median
    return Lengths(low, sigma, MAX_RESPONSE_TOKENS)


def _mean(median: float, sigma: float) -> float:
    """Mean of a lognormal distribution whose values are cut at the maximum length."""
    cut, normal = math.log(MAX_RESPONSE_TOKENS / median) / sigma, NormalDist()
    below = median * math.exp(sigma**2 / 2) * normal.cdf(cut - sigma)
    return below + MAX_RESPONSE_TOKENS * (1 - normal.cdf(cut))


def decode_seconds(sequences: int) -> float:
    """Seconds of a decoding step: the larger of the reads of weights and KV cache, and of the products."""
    context = PROMPT_TOKENS + MEAN_RESPONSE_TOKENS / 2
    read = (WEIGHT_BYTES + sequences * context * KV_BYTES) / (BANDWIDTH * H100.memory)
    products = sequences * flops_per_token(SHAPE, int(context)) / (EFFICIENCY * H100.flops)
    return max(read, products)


def update_seconds(ranks: int) -> float:
    """Seconds of an update on packed groups, whose prompt is in them once; four forward passes, as in `step_time`."""
    tokens = PROMPTS * (PROMPT_TOKENS + RESPONSES * MEAN_RESPONSE_TOKENS)
    flops = 4 * flops_per_token(SHAPE, PROMPT_TOKENS + MEAN_RESPONSE_TOKENS)
    return tokens * flops / (EFFICIENCY * H100.flops * ranks)


def loop_of(variant: Variant, devices: int, fraction: float, sigma: float) -> Loop:
    """The simulated run of a variant on a number of GPUs."""
    ranks = devices if variant.shared else round(devices * fraction)
    return split_loop(variant, ranks, devices if variant.shared else devices - ranks, sigma)


def split_loop(variant: Variant, ranks: int, engines: int, sigma: float) -> Loop:
    """The simulated run of a variant with this many GPUs of the trainer and engines."""
    return Loop(
        style=variant.style,
        prompts=PROMPTS,
        responses=RESPONSES,
        lengths=lengths(sigma),
        engines=Engines(
            engines,
            tuple((float(n), decode_seconds(n)) for n in (1, 8, 16, 32, 64, 128, MAX_SEQUENCES)),
            MAX_SEQUENCES,
            load_seconds=0.0 if variant.shared else WEIGHT_BYTES / ADAPTER,
            prefill_tokens_per_second=EFFICIENCY * H100.flops / (2 * SHAPE.parameters),
        ),
        update_seconds=update_seconds(ranks),
        publish_seconds=WEIGHT_BYTES / H100.within_node,
        max_concurrent_rollouts=variant.concurrency * PROMPTS * RESPONSES,
    )


def outcome(loop: Loop) -> Outcome:
    """Simulate a run after its first steps, in which the explorer gets ahead and staleness grows."""
    ahead = loop.style.max_buffered_steps or loop.capacity_groups // PROMPTS
    return simulate(loop, steps=FIRST + STEPS, first=FIRST, beyond=ahead)


@dataclass(frozen=True, slots=True)
class Found:
    """A simulated variant with its best split."""

    ranks: int
    """Number of GPUs that train."""
    outcome: Outcome


def sweep(pool: ProcessPoolExecutor) -> dict[tuple[str, int, str], Found]:
    """Simulate all variants by tail and number of GPUs, each with its best split."""
    keys, loops, ranks = [], [], []
    for tail, sigma in TAILS.items():
        for devices in DEVICES:
            for variant in VARIANTS:
                for fraction in TRAINER_FRACTIONS[: 1 if variant.shared else None]:
                    keys.append((tail, devices, variant.title))
                    ranks.append(devices if variant.shared else round(devices * fraction))
                    loops.append(loop_of(variant, devices, fraction, sigma))
    best: dict[tuple[str, int, str], Found] = {}
    for key, count, found in zip(keys, ranks, pool.map(outcome, loops), strict=True):
        if key not in best or found.seconds_per_step < best[key].outcome.seconds_per_step:
            best[key] = Found(count, found)
    return best


def step_table(found: Mapping[tuple[str, int, str], Found]) -> str:
    """Format the seconds of a step and the GPUs that train; the fastest variant of a row is bold."""
    titles = [variant.title for variant in VARIANTS]
    lines = [f"| tail | GPUs | {' | '.join(titles)} |", f"| --- | ---: |{' ---: |' * len(titles)}"]
    for tail in TAILS:
        for devices in DEVICES:
            row = [found[tail, devices, title] for title in titles]
            fastest = min(each.outcome.seconds_per_step for each in row)
            cells = []
            for each in row:
                seconds = each.outcome.seconds_per_step
                text = f"{seconds:.{1 if seconds < 10 else 0}f}"
                text = f"**{text}**" if seconds <= 1.02 * fastest else text
                cells.append(f"{text} ({each.ranks})" if each.ranks < devices else text)
            lines.append(f"| {tail} | {devices:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def idle_table(found: Mapping[tuple[str, int, str], Found]) -> str:
    """Format staleness and idle time of all variants with the long tail."""
    lines = ["| style | " + " | ".join(f"{devices:,} GPUs" for devices in DEVICES) + " |"]
    lines.append("| --- |" + " ---: |" * len(DEVICES))
    for variant in VARIANTS:
        cells = []
        for devices in DEVICES:
            each = found["long", devices, variant.title].outcome
            idle = f"{100 * each.engines_idle:.0f}, {100 * each.trainer_idle:.0f} %"
            cells.append(f"{each.mean_staleness:.1f}, {each.max_staleness}; {idle}")
        lines.append(f"| {variant.title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def slower_table(pool: ProcessPoolExecutor, found: Mapping[tuple[str, int, str], Found]) -> str:
    """Format the seconds of a step when engines receive the weights one after the other, and with slow engines."""
    lines = ["| long tail | " + " | ".join(f"{devices:,} GPUs" for devices in DEVICES) + " |"]
    lines.append("| --- |" + " ---: |" * len(DEVICES))
    for variant in (ALTERNATING, LOOSE):
        best = [found["long", devices, variant.title] for devices in DEVICES]
        loops = [
            loop_of(variant, devices, each.ranks / devices, TAILS["long"])
            for devices, each in zip(DEVICES, best, strict=True)
        ]
        in_turn = pool.map(outcome, map(_loading_in_turn, loops))
        slow = pool.map(outcome, map(_with_slow_engines, loops))
        rows = {
            "": [each.outcome for each in best],
            ", weights to one engine at a time": in_turn,
            ", slow engines": slow,
        }
        for title, outcomes in rows.items():
            cells = " | ".join(f"{each.seconds_per_step:.1f}" for each in outcomes)
            lines.append(f"| {variant.title}{title} | {cells} |")
    return "\n".join(lines)


def _loading_in_turn(loop: Loop) -> Loop:
    """The run whose engines receive the weights one after the other."""
    seconds = loop.engines.load_seconds * loop.engines.count
    return replace(loop, engines=replace(loop.engines, load_seconds=seconds))


def _with_slow_engines(loop: Loop) -> Loop:
    """The run in which a twentieth of the engines has half the speed."""
    slow = math.ceil(loop.engines.count / 20)
    return replace(loop, engines=replace(loop.engines, slow=slow, slow_factor=2.0))


def draw(found: Mapping[tuple[str, int, str], Found], path: Path) -> None:
    """Draw the seconds of a step against the number of GPUs: a line for each variant."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(TAILS), figsize=(11, 4.6), sharey=True)
    for axis, tail in zip(axes, TAILS, strict=True):
        for marker, variant in zip(MARKERS, VARIANTS, strict=True):
            seconds = [found[tail, devices, variant.title].outcome.seconds_per_step for devices in DEVICES]
            axis.plot(DEVICES, seconds, marker=marker, label=variant.title.replace("`", ""))
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xticks(DEVICES, [f"{devices:,}" for devices in DEVICES])
        axis.set_yticks(SECONDS, map(str, SECONDS))
        axis.minorticks_off()
        axis.set_xlabel("GPUs")
        axis.set_title(f"{tail} tail of response lengths")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("predicted seconds of a step")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=len(VARIANTS), fontsize=8)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    figure.savefig(path, dpi=100)


def main() -> None:
    """Run the command line: print the tables, and draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    args = parser.parse_args()
    with ProcessPoolExecutor(args.processes) as pool:
        found = sweep(pool)
        print("Seconds of a step, and in brackets the GPUs that train:\n")
        print(step_table(found), flush=True)
        print(
            "\nStaleness of the long tail, mean and maximum; idle time of the engines and of the trainer:\n"
        )
        print(idle_table(found))
        print(
            "\nSeconds of a step with slower transfers, and with some engines (5 %, at least one) at half speed:\n"
        )
        print(slower_table(pool, found))
    draw(found, PLOT)


if __name__ == "__main__":
    main()
