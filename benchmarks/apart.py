"""Explorer and trainer in turns, ahead of each other, and free, on the quickstart's task.

    python benchmarks/apart.py [--steps 200] [--quickstart runs/quickstart]

Prints a table: what is learned, how old the weights were that sampled it, and the time of a step: by the
clock, waits included, and in CPU seconds of all processes together. The quickstart must have made its data
and its warm start (`make quickstart`).
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
from collections.abc import Sequence
from pathlib import Path

import strop
from strop.run.folder import RunFolder
from strop.run.records.rows import Row, joined, read_rows

EXAMPLE = Path(__file__).parents[1] / "examples" / "async" / "ahead.yaml"
STYLES = {
    "one process, in turns": "synchronizer=memory",
    "two, in turns": "synchronizer.style={type: fixed, ahead: 0 steps}",
    "two, `fixed`, ahead 1 step": "synchronizer.style={type: fixed, ahead: 1 steps}",
    "two, `fixed`, every 2, ahead 1": "synchronizer.style={type: fixed, every: 2 steps, ahead: 1 steps}",
    "two, `free`, staleness 2": "synchronizer.style={type: free, max_staleness: 2 steps}",
}


def main() -> None:
    """The command line."""
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
            print(row_of(name, *run(Path(folder), f"run-{number}", args.steps, style)), flush=True)


def row_of(name: str, rows: Sequence[Row], seconds: float, cpu: float) -> str:
    """One line of the table."""
    return f"| {name} | {accuracy(rows)} | {staleness(rows)} | {seconds:.2f} | {cpu:.2f} |"


def run(folder: Path, name: str, steps: int, style: str) -> tuple[list[Row], float, float]:
    """A run's rows; the wall time of the trainer's step, waits included, the first step left out; the CPU
    time of a step, which has the start and the evaluations in it."""
    before = cpu_seconds()
    values = [f"output={folder}", f"name={name}", f"trainer.duration={steps} steps", style]
    result = strop.train(strop.load(EXAMPLE, [*values, "record.monitors=[]", "record.report=false"]))
    files = RunFolder(result.folder)
    rows = joined(read_rows(files.explorer.metrics), read_rows(files.metrics))
    seconds = sum(row["time/step_seconds"] or 0.0 for row in rows[2:]) / (steps - 1)
    return rows, seconds, (cpu_seconds() - before) / steps


def cpu_seconds() -> float:
    """Of this process and of those that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def accuracy(rows: Sequence[Row]) -> str:
    """Before and after."""
    measured = [row["eval/held-out/reward"] or 0.0 for row in rows if "eval/held-out/reward" in row]
    return f"{measured[0]:.3f} to {measured[-1]:.3f}"


def staleness(rows: Sequence[Row]) -> str:
    """Over all steps."""
    means = [row["staleness/mean"] or 0.0 for row in rows if "staleness/mean" in row]
    return f"{sum(means) / len(means):.2f}, {max(row.get('staleness/max') or 0.0 for row in rows):.0f}"


if __name__ == "__main__":
    main()
