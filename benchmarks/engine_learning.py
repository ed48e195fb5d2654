"""Learning curves of the quickstart's sums by job and inference engine, with full weights and with LoRA.

    OMP_NUM_THREADS=1 .venv-vllm/bin/python benchmarks/engine_learning.py
    OMP_NUM_THREADS=1 .venv-vllm/bin/python benchmarks/engine_learning.py --jobs trinity agent ray ray-tp2
    OMP_NUM_THREADS=1 .venv-sglang/bin/python benchmarks/engine_learning.py --engines native sglang --seeds 1

Each run is a separate process: steps of 32 x 16 rollouts in one update, greedy evaluation on 256 held-out sums. The
jobs are in benchmarks/engine_jobs.py: `sums` is examples/quickstart/run.yaml in one process, `ray` the same with
explorer, trainer, buffer and engine as Ray actors, `ray-tp2` with two processes per engine, `agent` a function that
sends two requests per rollout to the endpoint, and `trinity` a YAML of Trinity-RFT, which trains in bfloat16. In one
process vLLM loads a LoRA adapter in place of the last one; everything else loads merged weights. Results are stored in
`--out`, and only missing runs are executed, the first seed of every job before the second one.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

from engine_jobs import JOBS, LEARNING_RATES, ROOT, Job
from learning import ACCURACY, prepare
from ray_head import ray_head

ENGINES = ("native", "vllm", "sglang")
RAY_CPUS = 6
"""Logical CPUs of the Ray cluster: explorer, trainer, buffer, and the processes of an engine."""


@dataclass(frozen=True)
class Measured:
    """Measurement of one run."""

    steps: list[int]
    """Evaluated steps."""
    accuracy: list[float]
    """Held-out accuracy at these steps."""
    probe_gap: float
    """Maximum `engine/logprob_gap`, in nats; 0 for the native engine, which shares the trainer's weights."""
    logprob_diff: float
    """Maximum `logprob_diff/mean_abs`, in nats."""
    load_seconds: float
    """Median duration of a weight update with its probe, in seconds."""


def measure(job: Job, cluster: Mapping[str, str]) -> Measured:
    """Run a job, or read the result of an earlier run; `cluster` are the environment variables of `ray_head`."""
    result = job.folder / f"{job.name}-{job.steps}.json"
    if result.is_file():
        return Measured(**json.loads(result.read_text()))
    shutil.rmtree(job.run_folder, ignore_errors=True)  # of a run that failed
    environment = os.environ | cluster | {"QUICKSTART": str(job.folder), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        job.command(), cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(job.command())} failed:\n{done.stdout}\n{done.stderr}")
    measured = collect(job.metrics)
    result.write_text(json.dumps(asdict(measured)) + "\n")
    return measured


def collect(files: Sequence[Path]) -> Measured:
    """Read the measurement from a run's metrics, of the trainer and of a separate explorer."""
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    evaluated = [row for row in rows if ACCURACY in row]
    loads = [
        row[name]
        for row in rows
        for name in ("time/load_weights_seconds", "time/publish_seconds")
        if name in row
    ]
    return Measured(
        steps=[int(row["step"]) for row in evaluated],
        accuracy=[row[ACCURACY] for row in evaluated],
        probe_gap=max(row.get("engine/logprob_gap", 0.0) for row in rows),
        logprob_diff=max(row.get("logprob_diff/mean_abs", 0.0) for row in rows),
        load_seconds=statistics.median(loads),
    )


def row_of(job: str, engine: str, weights: str, runs: Sequence[Measured]) -> str:
    """Format the row of one job, engine and kind of weights."""
    curves = "; ".join(", ".join(f"{value:.3f}" for value in run.accuracy) for run in runs)
    last = [run.accuracy[-1] for run in runs]
    spread = f"{statistics.mean(last):.3f} ({min(last):.3f} to {max(last):.3f})"
    gap, diff = max(run.probe_gap for run in runs), max(run.logprob_diff for run in runs)
    seconds = statistics.median(run.load_seconds for run in runs)
    gaps = ["-" if gap == 0 else f"{gap:.1e}", f"{diff:.1e}", f"{seconds:.2f}"]
    return f"| {' | '.join([job, engine, weights, curves, spread, *gaps])} |"


def main() -> None:
    """Run the command line: print a row for each job, engine and kind of weights."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", nargs="+", choices=list(JOBS), default=["sums"])
    parser.add_argument("--engines", nargs="+", choices=list(ENGINES), default=["native", "vllm"])
    parser.add_argument("--weights", nargs="+", choices=list(LEARNING_RATES), default=list(LEARNING_RATES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "engine-learning")
    args = parser.parse_args()
    folder = args.out.absolute()
    prepare(folder)
    rows = [
        (job, engine, weights)
        for job in args.jobs
        for weights in args.weights
        for engine in args.engines
        if not (job == "ray-tp2" and engine == "native")  # the native sampler has no tensor parallelism
    ]
    results: dict[tuple[str, str, str], list[Measured]] = {row: [] for row in rows}
    needs_ray = any(job.startswith("ray") for job in args.jobs)
    with ray_head(sys.executable, cpus=RAY_CPUS) if needs_ray else nullcontext({}) as head:
        for seed in args.seeds:
            for row, runs in results.items():
                cluster = head if row[0].startswith("ray") else {}
                address = cluster.get("RAY_ADDRESS", "")
                runs.append(measure(Job(*row, seed, args.steps, folder, address), cluster))
                print(f"{' '.join(row)} {seed}: {runs[-1].accuracy}", file=sys.stderr, flush=True)
    print(
        "| job | engine | weights | accuracy at each evaluation, by seed | mean (range) after | gap of the probe | "
        "`logprob_diff/mean_abs` | weight update, seconds |"
    )
    print(f"|{' --- |' * 8}")
    for row, runs in results.items():
        print(row_of(*row, runs))


if __name__ == "__main__":
    main()
