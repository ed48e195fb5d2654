"""Learning curves of the quickstart's task by inference engine, with full weights and with LoRA.

    OMP_NUM_THREADS=1 .venv-vllm/bin/python benchmarks/engine_learning.py
    OMP_NUM_THREADS=1 .venv-sglang/bin/python benchmarks/engine_learning.py --engines native sglang --seeds 1

Each run is `strop train` on examples/quickstart/run.yaml in a separate process: steps of 32 x 16 responses in one
update, float32, greedy evaluation on 256 held-out sums. With vLLM a LoRA adapter is loaded in place of the last one;
the native engine loads merged weights, and so does SGLang, whose adapters do not fit to this model on the CPU. Results
are stored in `--out`, and only missing runs are executed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from learning import ACCURACY, prepare

ROOT = Path(__file__).parents[1]
RUN_FILE = ROOT / "examples" / "quickstart" / "run.yaml"
ENGINES = {
    "native": "{type: native}",
    "vllm": "{type: vllm, enforce_eager: true}",
    "sglang": "{type: sglang, merge_lora: true}",
}
"""Section `rollout.engine` by name."""
WEIGHTS = {
    "full": ["trainer.optimizer.lr=2e-4"],
    "lora": ["trainer.optimizer.lr=2e-3", "+model.lora.rank=8"],
}
"""Further settings by the weights that are trained."""


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


def measure(engine: str, weights: str, seed: int, steps: int, folder: Path) -> Measured:
    """Run one combination, or read the result of an earlier run."""
    name = f"{engine}-{weights}-{seed}"
    result = folder / f"{name}-{steps}.json"
    if result.is_file():
        return Measured(**json.loads(result.read_text()))
    overrides = [f"seed={seed}", f"output={folder}", "project=runs", f"name={name}", "resume=never"]
    overrides += [f"trainer.duration={steps} steps", f"evaluate.every={max(1, steps // 2)} steps"]
    overrides += ["trainer.tasks_per_step=32", "trainer.tasks_per_update=32", "trainer.schedule=constant"]
    overrides += ["+evaluate.at_start=true", "+record.report=false", "+record.monitors=[console]"]
    overrides += [f"+rollout.engine={ENGINES[engine]}", *WEIGHTS[weights]]
    command = [sys.executable, "-m", "strop", "train", str(RUN_FILE), *overrides]
    environment = os.environ | {"QUICKSTART": str(folder), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")
    measured = collect(folder / "runs" / name / "metrics.jsonl")
    result.write_text(json.dumps(asdict(measured)) + "\n")
    return measured


def collect(metrics: Path) -> Measured:
    """Read the measurement from a run's metrics."""
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    evaluated = [row for row in rows if ACCURACY in row]
    return Measured(
        steps=[int(row["step"]) for row in evaluated],
        accuracy=[row[ACCURACY] for row in evaluated],
        probe_gap=max(row.get("engine/logprob_gap", 0.0) for row in rows),
        logprob_diff=max(row.get("logprob_diff/mean_abs", 0.0) for row in rows),
        load_seconds=statistics.median(
            row["time/publish_seconds"] for row in rows if "time/publish_seconds" in row
        ),
    )


def row_of(engine: str, weights: str, runs: Sequence[Measured]) -> str:
    """Format the row of one engine and kind of weights."""
    curves = "; ".join(", ".join(f"{value:.3f}" for value in run.accuracy) for run in runs)
    last = [run.accuracy[-1] for run in runs]
    spread = f"{statistics.mean(last):.3f} ({min(last):.3f} to {max(last):.3f})"
    gap, diff = max(run.probe_gap for run in runs), max(run.logprob_diff for run in runs)
    seconds = statistics.median(run.load_seconds for run in runs)
    gaps = ["-" if engine == "native" else f"{gap:.1e}", f"{diff:.1e}", f"{seconds:.2f}"]
    return f"| {' | '.join([engine, weights, curves, spread, *gaps])} |"


def main() -> None:
    """Run the command line: print a row for each engine and kind of weights."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engines", nargs="+", choices=list(ENGINES), default=["native", "vllm"])
    parser.add_argument("--weights", nargs="+", choices=list(WEIGHTS), default=list(WEIGHTS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "engine-learning")
    args = parser.parse_args()
    folder = args.out.absolute()
    prepare(folder)
    print(
        "| engine | weights | accuracy at each evaluation, by seed | mean (range) after | gap of the probe | "
        "`logprob_diff/mean_abs` | weight update, seconds |"
    )
    print(f"|{' --- |' * 7}", flush=True)
    for weights in args.weights:
        for engine in args.engines:
            runs = [measure(engine, weights, seed, args.steps, folder) for seed in args.seeds]
            print(row_of(engine, weights, runs), flush=True)


if __name__ == "__main__":
    main()
