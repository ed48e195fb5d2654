"""Part `step`: phases of a GRPO step by engine."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

from gpu_parts.measuring import print_table
from gpu_parts.options import Options
from gpu_parts.runs import engines, quickstart_run, run_command

PHASES = ("sample", "reward", "update", "publish")
"""Phases of a step whose seconds are in a run's metrics."""


def run_step(options: Options) -> None:
    """Phases of a step by engine, sampled tokens per second, and the log-prob gap of every load."""
    rows = []
    for engine, section in engines(options).items():
        with tempfile.TemporaryDirectory() as name:
            steps = run_command(Path(name), quickstart_run(options, Path(name), section, steps=4))[1:]
            phases = [statistics.median(each[f"time/{phase}_seconds"] for each in steps) for phase in PHASES]
            gap = max(each.get("engine/logprob_gap", 0.0) for each in steps)
            difference = max(each.get("logprob_diff/mean_abs", 0.0) for each in steps)
            rate = statistics.median(each["sampled_tokens"] / each["time/sample_seconds"] for each in steps)
            times = (f"{each:.3f}" for each in phases)
            rows.append((engine, *times, f"{rate:.0f}", f"{gap:.1e}", f"{difference:.1e}"))
    seconds = (f"{each} s" for each in PHASES)
    print_table("A GRPO step", ("engine", *seconds, "tokens/s", "probe's gap", "logprob_diff"), rows)
