"""Wall time of a step of `examples/real` with one process and with several workers on the cores of this machine.

    make evidence ARGS=cores           # or: python benchmarks/cores.py --repeats 3 --steps 4

Both run in turn, so that they see the same machine. The first step, which allocates memory, is left out. The model is
that which `make real` fetches.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from strop.config.local_workers import usable_cores

REAL = Path(__file__).parents[1] / "examples" / "real"
PARTS = ("sample", "update", "publish", "step")


def prepare(folder: Path) -> None:
    """Fetch the model, and write the tasks."""
    sys.path.insert(0, str(REAL))
    from real import fetch_model, make_tasks

    fetch_model(folder)
    make_tasks(folder)


def measure(
    data: Path, folder: Path, workers: int, threads: int, steps: int
) -> tuple[dict[str, float], float]:
    """Median seconds of each part of a step, and those of the command that no step took."""
    command = [sys.executable, "-m", "strop", "train", str(REAL / "run.yaml"), f"folder={folder}"]
    command += [f"trainer.engine={{type: local, workers: {workers}}}", f"trainer.duration={steps} steps"]
    environment = os.environ | {"REAL": str(data), "REAL_EXAMPLE": str(REAL), "OMP_NUM_THREADS": str(threads)}
    begin = time.monotonic()
    subprocess.run(
        [*command, "~evaluate", "~data.eval"], env=environment, check=True, stdout=subprocess.DEVNULL
    )
    whole = time.monotonic() - begin
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").open(encoding="utf-8")]
    timed = [row for row in rows if "time/step_seconds" in row]
    parts = {part: median(row[f"time/{part}_seconds"] for row in timed[1:]) for part in PARTS}
    return parts, whole - sum(row["time/step_seconds"] for row in timed)


def main() -> None:
    """Print a table of the medians over repeats."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument(
        "--data", type=Path, help="folder for the model and the tasks; a temporary one if omitted"
    )
    options = parser.parse_args()
    cores = usable_cores()
    kinds = {
        "one process, one thread": (1, 1),
        f"one process, {cores} threads": (1, cores),
        f"{cores} workers": (cores, cores),
    }
    found: dict[str, list[tuple[dict[str, float], float]]] = {name: [] for name in kinds}
    with tempfile.TemporaryDirectory() as temporary:
        data = options.data or Path(temporary)
        prepare(data)
        for repeat in range(options.repeats):
            for name, (workers, threads) in kinds.items():
                folder = Path(temporary) / f"{name}-{repeat}".replace(" ", "-").replace(",", "")
                found[name].append(measure(data, folder, workers, threads, options.steps))
    print(f"| seconds | {' | '.join(PARTS)} | step, relative | start and end |")
    print(f"| --- |{' ---: |' * (len(PARTS) + 2)}")
    base = median(parts["step"] for parts, _ in found["one process, one thread"])
    for name, runs in found.items():
        medians = [median(parts[part] for parts, _ in runs) for part in PARTS]
        rest = median(rest for _, rest in runs)
        cells = [*(f"{value:.2f}" for value in medians), f"{medians[-1] / base:.2f}", f"{rest:.1f}"]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
