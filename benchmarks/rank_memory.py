"""Peak memory of a trainer's ranks: of the controller, which is the first rank's process, and of the other ranks.

    python benchmarks/rank_memory.py [--tree FOLDER] [--ranks 2] [--hidden 1024] [--layers 12] [--optimizer adamw]

Runs two steps of supervised fine-tuning of a random model with `trainer.engine: fsdp2` on the CPU and reads the
peak resident memory (VmHWM) of each process: once the model is loaded, after the last step, and at the end of the
run, after the controller has gathered the full weights for the exported model. `--tree` runs the code of another
working tree.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from peak_memory import peak_mb

STEPS = 2
MAKE_MODEL = """
import sys
from pathlib import Path
from strop.models.tiny import make_model
folder, hidden, layers = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
make_model(folder, ["one and one is two"], vocab_size=300, hidden_size=hidden, layers=layers)
"""


def main() -> None:
    """Run the command line: print a table with a row for each process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--tree", type=Path, default=Path(__file__).parents[1], help="working tree whose code runs"
    )
    parser.add_argument("--python", default=sys.executable, help="Python interpreter for the run")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument(
        "--optimizer", default="adamw", help="adamw has two state values per weight, sgd none"
    )
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        env = {**os.environ, "PYTHONPATH": str(args.tree.resolve()), "OMP_NUM_THREADS": "1"}
        size = [str(folder / "model"), str(args.hidden), str(args.layers)]
        subprocess.run([args.python, "-c", MAKE_MODEL, *size], env=env, check=True)
        weights_mb = (folder / "model" / "model.safetensors").stat().st_size / 1e6
        write_run(folder, args.ranks, args.optimizer)
        loaded, trained, at_end = measure([args.python, "-m", "strop", "train", "run.yaml"], folder, env)
    print(f"Weights: {weights_mb:,.0f} MB (float32), optimizer {args.optimizer}\n")
    print("| process | peak MB: model loaded | after the last step | at the end |")
    print("| --- | --- | --- | --- |")
    for process, peak in at_end.items():
        print(f"| {process} | {loaded.get(process, 0):,.0f} | {trained.get(process, 0):,.0f} | {peak:,.0f} |")


def write_run(folder: Path, ranks: int, optimizer: str) -> None:
    """Write the run file and its data."""
    rows = [json.dumps({"prompt": "one and one is", "answer": "two " * 20}) for _ in range(64)]
    (folder / "data.jsonl").write_text("\n".join(rows) + "\n")
    run = {
        "name": "memory",
        "output": str(folder / "runs"),
        "model": {"path": str(folder / "model")},
        "data": {"train": {"path": str(folder / "data.jsonl"), "response": "answer"}},
        "algorithm": "sft",
        "trainer": {
            "duration": f"{STEPS} steps",
            "tasks_per_step": 8,
            "microbatch": "512 tokens",
            "optimizer": {"type": optimizer},
            "engine": {"type": "fsdp2", "ranks": ranks, "device": "cpu"},
        },
        "evaluate": {"at_start": False, "every": "never"},
        "checkpoint": {"every": "never"},
        "record": {"monitors": [], "report": False},
    }
    (folder / "run.yaml").write_text(json.dumps(run))


Peaks = dict[str, float]
"""Peak MB of each process."""


def measure(command: list[str], folder: Path, env: dict[str, str]) -> tuple[Peaks, Peaks, Peaks]:
    """Run a command; return the peaks after the model is loaded, after the last step, and at the end."""
    process = subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    peaks: Peaks = {}
    loaded: Peaks = {}
    trained: Peaks = {}
    while process.poll() is None:
        peaks |= current_peaks(process.pid)
        if not loaded and any(folder.glob("runs/*/memory/run.yaml")):  # written after loading
            loaded = dict(peaks)
        if not trained and last_step_is_recorded(folder):
            trained = dict(peaks)
        time.sleep(0.01)
    if process.returncode:
        assert process.stdout is not None
        sys.exit(process.stdout.read().decode())
    return loaded, trained, peaks


def last_step_is_recorded(folder: Path) -> bool:
    """Return whether the metrics file has the last step."""
    for file in folder.glob("runs/*/memory/metrics.jsonl"):
        return any(json.loads(line).get("step") == STEPS for line in file.read_text().splitlines())
    return False


def current_peaks(pid: int) -> dict[str, float]:
    """Return the peak MB of the controller and of the other ranks since their start."""
    found = {}
    peak = peak_mb(pid)
    if peak is not None:
        found["controller (rank 0)"] = peak
    children = Path(f"/proc/{pid}/task/{pid}/children")
    for child in children.read_text().split() if children.exists() else ():
        try:
            rank = re.search(rb"rank-(\d+)", Path(f"/proc/{child}/cmdline").read_bytes())
        except OSError:  # it has ended
            continue
        peak = peak_mb(int(child)) if rank else None
        if rank and peak is not None:
            found[f"rank {rank[1].decode()}"] = peak
    return found


if __name__ == "__main__":
    main()
