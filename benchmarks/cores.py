"""Wall time of a step and peak memory, with one process, with its threads, and with a worker for each core.

    make evidence ARGS=cores           # or: python benchmarks/cores.py --repeats 3 --steps 4
    python benchmarks/cores.py --only GRPO SFT --trl

SmolLM2-135M-Instruct, which `make real` fetches, in bfloat16: GRPO on the sums of `examples/real/run.yaml`, SFT and DPO
on sums that are worked out in words (of 32 rows and 16 pairs a step), and the agent with a calculator, whose warm-up is
not counted. All kinds of processes run in turn, so that they see the same machine. The first step, which allocates
memory, is left out. Memory is the sum of the processes' proportional set sizes (a page that n processes map counts
1/n in each), read once a second.

`--trl` adds TRL's GRPOTrainer on the same model, prompts and reward, with as many threads as there are cores; it
requires `make .venv/bench`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil
from grpo_step import trl_config

from strop.config.local_workers import usable_cores

REAL = Path(__file__).parents[1] / "examples" / "real"
PARTS = ("sample", "update", "publish", "step")
HF_FOLDER = "smollm2"
"""The model as a folder, which TRL trains: transformers takes the weights of a GGUF file for quantized ones."""
NEVER = "{every: null, at_start: false, at_end: false}"
UNEVALUATED = ("~evaluate", "~data.eval")
OFFLINE = (*UNEVALUATED, "~reward", "data.max_response_tokens=192")
CASES = {
    "GRPO": ("run.yaml", UNEVALUATED, "trainer.duration"),
    "SFT": (
        "run.yaml",
        (
            *OFFLINE,
            "algorithm=sft",
            "data.train={path: '${oc.env:REAL}/worked.jsonl', response: chosen, limit_tasks: 160}",
            "trainer.tasks_per_step=32",
        ),
        "trainer.duration",
    ),
    "DPO": (
        "run.yaml",
        (
            *OFFLINE,
            "algorithm={type: dpo}",
            "data.train={path: '${oc.env:REAL}/worked.jsonl', chosen: chosen, rejected: rejected, limit_tasks: 160}",
        ),
        "trainer.duration",
    ),
    "agent": (
        "calculator.yaml",
        (f"stages.0.evaluate={NEVER}", f"evaluate={NEVER}"),
        "stages.1.trainer.duration",
    ),
}
"""The run file, its overrides, and the key of the duration that is measured."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One command."""

    parts: dict[str, float]
    """Median seconds of each part of a step."""
    rest: float
    """Seconds of the command that no step took."""
    peak_mb: float
    """Largest sum of the proportional set sizes of its processes."""


def prepare(folder: Path) -> None:
    """Fetch the model, and write the tasks, demonstrations and pairs."""
    sys.path.insert(0, str(REAL))
    from real import fetch_model, make_tasks

    fetch_model(folder)
    make_tasks(folder)
    tasks = [sys.executable, str(REAL / "tasks.py"), "--out", str(folder), "calculator"]
    subprocess.run(tasks, check=True, stdout=subprocess.DEVNULL)
    rows = (json.loads(line) for line in (folder / "train.jsonl").open(encoding="utf-8"))
    with (folder / "worked.jsonl").open("w", encoding="utf-8") as file:
        for row in rows:
            a, b = (int(number) for number in row["prompt"].rstrip("?").split("is")[1].split("+"))
            pair = {"prompt": row["prompt"], "chosen": worked(a, b, 0), "rejected": worked(a, b, 1)}
            file.write(json.dumps(pair) + "\n")


def worked(a: int, b: int, error: int) -> str:
    """A sum in small steps of words, from 30 to 170 tokens, whose result is wrong by `error`."""
    steps, total = [f"We begin with {a}."], a
    for part in (*[10] * (b // 10), b % 10):
        total += part
        steps.append(f"{part} more makes {total}.")
    return " ".join([*steps, f"So the answer is {total + error}."])


def measure(case: str, data: Path, folder: Path, workers: int, threads: int, steps: int) -> Measured:
    """Run a command of a case to its end."""
    file, overrides, duration = CASES[case]
    command = [sys.executable, "-m", "strop", "train", str(REAL / file), f"folder={folder}", *overrides]
    command += [f"trainer.engine={{type: local, workers: {workers}}}", f"{duration}={steps} steps"]
    environment = os.environ | {"REAL": str(data), "REAL_EXAMPLE": str(REAL), "OMP_NUM_THREADS": str(threads)}
    begin, peak = time.monotonic(), 0.0
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            peak = max(peak, proportional_mb(process.pid))
            time.sleep(1)
    if process.returncode:
        sys.exit(f"{case}: {' '.join(command)} ended with exit code {process.returncode}")
    whole = time.monotonic() - begin
    stages = sorted(folder.rglob("metrics.jsonl"), key=lambda path: path.stat().st_mtime)
    rows = [json.loads(line) for path in stages for line in path.open(encoding="utf-8")]
    timed = [row for row in rows if "time/step_seconds" in row]
    counted = timed[-steps:][1:]
    parts = {part: median(row.get(f"time/{part}_seconds", 0.0) for row in counted) for part in PARTS}
    return Measured(parts, whole - sum(row["time/step_seconds"] for row in timed), peak)


def proportional_mb(pid: int) -> float:
    """The proportional set sizes of a process and of its children, in MB; 0 once they have ended."""
    try:
        root = psutil.Process(pid)
        tree = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0.0
    total = 0
    for each in tree:
        try:
            total += each.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.AccessDenied, ProcessLookupError):
            continue
    return total / 1e6


def train_with_trl(data: Path, steps: int) -> None:
    """Train by TRL in this process, and print the median seconds of a step without the first."""
    from datasets import load_dataset
    from reward import last_number
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOTrainer

    ends: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *_: object, **__: object) -> None:
            ends.append(time.monotonic())

    def reward(completions: list[list[dict[str, str]]], answer: list[str], **_: object) -> list[float]:
        texts = [completion[-1]["content"] for completion in completions]
        return [last_number(text, right) for text, right in zip(texts, answer, strict=True)]

    rows = load_dataset("json", data_files=str(data / "train.jsonl"), split="train")
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(data / HF_FOLDER),
        processing_class=AutoTokenizer.from_pretrained(data / HF_FOLDER),
        reward_funcs=reward,
        args=trl_config(data / "trl", 32, steps, new_tokens=24, bf16=True),
        train_dataset=rows.map(lambda row: {"prompt": [{"role": "user", "content": row["prompt"]}]}),
        callbacks=[Clock()],
    )
    trainer.train()
    print(json.dumps(median(end - begin for begin, end in itertools.pairwise(ends))))


def measure_trl(data: Path, threads: int, steps: int) -> float:
    """Median seconds of a step of TRL, in a process of its own."""
    from real import MODEL_FILE

    if not (data / HF_FOLDER).exists():
        export = [
            sys.executable,
            "-m",
            "strop",
            "export",
            str(data / MODEL_FILE),
            "--to",
            str(data / HF_FOLDER),
        ]
        subprocess.run(export, check=True, stdout=subprocess.DEVNULL)
    command = [sys.executable, __file__, "--data", str(data), "--steps", str(steps), "--trl-child"]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Print a table of the medians over repeats."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--trl", action="store_true", help="add TRL's GRPOTrainer to GRPO")
    parser.add_argument("--trl-child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument(
        "--data", type=Path, help="folder for the model and the tasks; a temporary one if omitted"
    )
    options = parser.parse_args()
    if options.trl_child:
        sys.path.insert(0, str(REAL))
        train_with_trl(options.data, options.steps)
        return
    with tempfile.TemporaryDirectory() as temporary:
        data = (options.data or Path(temporary)).resolve()
        prepare(data)
        report(data, Path(temporary), options)


def report(data: Path, folder: Path, options: argparse.Namespace) -> None:
    """Run every case with every kind of processes in turn, and print the table."""
    cores = usable_cores()
    kinds = {
        "one process, one thread": (1, 1),
        f"one process, {cores} threads": (1, cores),
        f"{cores} workers": (cores, cores),
    }
    found: dict[tuple[str, str], list[Measured]] = {}
    trl: list[float] = []
    for repeat in range(options.repeats):
        for case, (name, (workers, threads)) in itertools.product(options.only, kinds.items()):
            run = folder / f"{case}-{name}-{repeat}".replace(" ", "-").replace(",", "")
            measured = measure(case, data, run, workers, threads, options.steps)
            found.setdefault((case, name), []).append(measured)
        if options.trl:
            trl.append(measure_trl(data, cores, options.steps))
    print(f"| seconds | {' | '.join(PARTS)} | step, relative | start and end | peak MB |")
    print(f"| --- |{' ---: |' * (len(PARTS) + 3)}")
    for (case, name), runs in found.items():
        base = median(run.parts["step"] for run in found[case, next(iter(kinds))])
        medians = [median(run.parts[part] for run in runs) for part in PARTS]
        cells = [*(f"{value:.2f}" for value in medians), f"{medians[-1] / base:.2f}"]
        cells += [f"{median(run.rest for run in runs):.1f}", f"{median(run.peak_mb for run in runs):.0f}"]
        print(f"| {case}, {name} | {' | '.join(cells)} |")
    if trl:
        empty = " |" * (len(PARTS) - 1)
        base = median(run.parts["step"] for run in found["GRPO", next(iter(kinds))])
        print(f"| GRPO, TRL with {cores} threads |{empty} {median(trl):.2f} | {median(trl) / base:.2f} | | |")


if __name__ == "__main__":
    main()
