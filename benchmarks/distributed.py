"""Accuracy, staleness and speed of runs with explorer and trainer in one process and in two, by synchronization style.

    python benchmarks/distributed.py [--steps 200] [--quickstart runs/quickstart]

Prints a table for the quickstart's task: held-out accuracy, staleness, and the time of a step as wall time
including waits and as CPU seconds of all processes. Requires the quickstart's data and warm start, which `make
quickstart` writes.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
from collections.abc import Sequence
from pathlib import Path

import strop
from strop.runs.folder import RunFolder
from strop.runs.metrics_file import MetricsRow, merge_rows, read_metrics

EXAMPLE = Path(__file__).parents[1] / "examples" / "async" / "ahead.yaml"
STYLES = {
    "one process": "synchronizer=memory",
    "two processes, no lead": "synchronizer.style={type: fixed, max_lead: 0 steps}",
    "two processes, `fixed`, `max_lead: 1 steps`": "synchronizer.style={type: fixed, max_lead: 1 steps}",
    "two processes, `fixed`, `every: 2 steps`, `max_lead: 1 steps`": (
        "synchronizer.style={type: fixed, every: 2 steps, max_lead: 1 steps}"
    ),
    "two processes, `bounded`, `max_staleness: 2 steps`": (
        "synchronizer.style={type: bounded, max_staleness: 2 steps}"
    ),
}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--quickstart", type=Path, default=Path("runs/quickstart"))
    args = parser.parse_args()
    os.environ["QUICKSTART"] = str(args.quickstart.absolute())
    print(f"{args.steps} steps of 64 tasks x 16 rollouts, {len(os.sched_getaffinity(0))} cores.\n")
    print("| explorer and trainer | held-out accuracy | staleness, mean and max | seconds per step | CPU |")
    print("| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, style) in enumerate(STYLES.items()):
            print(table_row(name, *run(Path(folder), f"run-{number}", args.steps, style)), flush=True)


def table_row(name: str, rows: Sequence[MetricsRow], seconds: float, cpu: float) -> str:
    """Format one row of the table."""
    return f"| {name} | {accuracy(rows)} | {staleness(rows)} | {seconds:.2f} | {cpu:.2f} |"


def run(folder: Path, name: str, steps: int, style: str) -> tuple[list[MetricsRow], float, float]:
    """Run the quickstart's task with one synchronization style.

    Returns the rows of its metrics; the mean wall time of the trainer's step, including waits, without the first step;
    and the CPU time of the run divided by its steps, including its start and its evaluations.
    """
    cpu_before = cpu_seconds()
    values = [f"output={folder}", f"name={name}", f"trainer.duration={steps} steps", style]
    result = strop.train(strop.load(EXAMPLE, [*values, "record.monitors=[]", "record.report=false"]))
    files = RunFolder(result.folder)
    rows = merge_rows(read_metrics(files.explorer.metrics), read_metrics(files.metrics))
    seconds = sum(row["time/step_seconds"] or 0.0 for row in rows[2:]) / (steps - 1)
    return rows, seconds, (cpu_seconds() - cpu_before) / steps


def cpu_seconds() -> float:
    """Return the CPU time of this process and of its finished children."""
    usages = [resource.getrusage(scope) for scope in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def accuracy(rows: Sequence[MetricsRow]) -> str:
    """Format the held-out accuracy before and after training."""
    measured = [row["eval/held-out/reward"] or 0.0 for row in rows if "eval/held-out/reward" in row]
    return f"{measured[0]:.3f} to {measured[-1]:.3f}"


def staleness(rows: Sequence[MetricsRow]) -> str:
    """Format the mean and maximum staleness over all steps."""
    means = [row["staleness/mean"] or 0.0 for row in rows if "staleness/mean" in row]
    return f"{sum(means) / len(means):.2f}, {max(row.get('staleness/max') or 0.0 for row in rows):.0f}"


if __name__ == "__main__":
    main()
