"""Learning curves of SmolLM2-135M-Instruct on the tasks of examples/real, and of TRL on the sums.

    make .venv/bench .venv/real
    .venv/bin/python benchmarks/results.py sums trl countdown calculator            # prints a table
    .venv/bin/python benchmarks/results.py medmcqa gsm8k --data path/to/data        # of data/medmcqa, data/gsm8k

`trl` is TRL's GRPOTrainer on the data, model, reward and settings of `sums`. Its saved models are evaluated by
`strop evaluate`, as those of Strop are. Each run is a process with one thread. The CPU time of a step is the median
over the steps without evaluation. Results are stored in `--out`, and only missing runs are executed. Without a task
nothing is run: the table has all stored results, and docs/results.png is drawn.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[1]
REAL = ROOT / "examples" / "real"
PLOT = ROOT / "docs" / "results.png"
ACCURACY = "eval/held-out/reward"
EVALUATED_EVERY = 5
MICRO_BATCH = 32
"""Completions of a backward pass in TRL, as in benchmarks/grpo_step.py."""


@dataclass(frozen=True)
class Task:
    """A row of the table."""

    title: str
    run_file: str
    steps: int
    """Number of steps; of the last stage, where the run file has stages."""
    trainer: str = "strop"


TASKS = {
    "sums": Task("sums in words", "run.yaml", 10),
    "trl": Task("sums in words, TRL", "run.yaml", 10, trainer="trl"),
    "countdown": Task("Countdown, two numbers", "countdown.yaml", 20),
    "calculator": Task("stories, agent with a calculator, after a warm-up", "calculator.yaml", 10),
    "medmcqa": Task("MedMCQA, choice by letter", "medmcqa.yaml", 20),
    "gsm8k": Task("GSM8K", "gsm8k.yaml", 10),
}


@dataclass(frozen=True)
class Measured:
    """Measurement of one run."""

    steps: list[int]
    """Evaluated steps."""
    accuracy: list[float]
    """Held-out accuracy at these steps, greedy."""
    cpu_seconds: float
    """CPU time of a training step in seconds, median over the steps without evaluation."""


class StepClock:
    """CPU time of this process at the end of each step, with its children."""

    def __init__(self) -> None:
        self.ends: dict[int, float] = {}

    def on_start(self, control: object) -> None:
        """Forget the steps of the stage before."""
        self.ends.clear()

    def on_step(self, metrics: Mapping[str, float]) -> None:
        """Record the CPU time; a callback of `strop.train`."""
        self.record(int(metrics["step"]))

    def record(self, step: int) -> None:
        """Record the CPU time after a step."""
        processes = (current := psutil.Process(), *current.children(recursive=True))
        times = [process.cpu_times() for process in processes]
        self.ends[step] = sum(each.user + each.system for each in times)

    def median(self) -> float:
        """CPU time of a step in seconds, over steps before and after which nothing is evaluated."""
        spans = [
            self.ends[step] - self.ends[step - 1]
            for step in self.ends
            if step - 1 in self.ends and step % EVALUATED_EVERY and (step - 1) % EVALUATED_EVERY
        ]
        return statistics.median(spans)


def train_with_strop(task: Task, seed: int, folder: Path) -> Measured:
    """Train as `strop train` does, with a callback that records CPU times."""
    import strop

    clock = StepClock()
    overrides = [
        f"seed={seed}",
        f"output={folder}",
        "project=runs",
        f"name={Path(task.run_file).stem}-{seed}",
    ]
    overrides += ["resume=never", "record.report=false", "record.monitors=[]"]
    result = strop.train(strop.load(REAL / task.run_file, overrides), callbacks=[clock])
    rows = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
    evaluated = [row for row in rows if ACCURACY in row]
    steps, accuracy = [int(row["step"]) for row in evaluated], [row[ACCURACY] for row in evaluated]
    return Measured(steps, accuracy, clock.median())


def train_with_trl(task: Task, seed: int, folder: Path) -> Measured:
    """Train with TRL's GRPOTrainer by the settings of examples/real/run.yaml, and evaluate its saved models."""
    from datasets import load_dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    sys.path.insert(0, str(REAL))
    from reward import last_number

    clock = StepClock()

    class TrlClock(TrainerCallback):
        def on_step_end(self, args: object, state: object, control: object, **_: object) -> None:
            clock.record(state.global_step)

    def reward(
        completions: Sequence[Sequence[Mapping[str, str]]], answer: Sequence[str], **_: object
    ) -> list[float]:
        return [
            last_number(text[-1]["content"], right) for text, right in zip(completions, answer, strict=True)
        ]

    real = Path(os.environ["REAL"])
    name = "SmolLM2-135M-Instruct.Q4_1.gguf"
    out = folder / f"trl-{seed}"
    # transformers refuses to train a model that it has dequantized itself.
    dequantized = AutoModelForCausalLM.from_pretrained(real, gguf_file=name)
    model = AutoModelForCausalLM.from_config(LlamaConfig(**_plain(dequantized.config.to_dict())))
    model.load_state_dict(dequantized.state_dict())
    data = load_dataset("json", data_files=str(real / "train.jsonl"), split="train")
    trainer = GRPOTrainer(
        model=model,
        processing_class=AutoTokenizer.from_pretrained(real, gguf_file=name),
        reward_funcs=reward,
        args=GRPOConfig(
            output_dir=str(out),
            seed=seed,
            per_device_train_batch_size=MICRO_BATCH,
            gradient_accumulation_steps=16 * 8 // MICRO_BATCH,
            num_generations=8,
            max_completion_length=24,
            max_steps=task.steps,
            learning_rate=1e-5,
            weight_decay=0.01,
            lr_scheduler_type="constant",
            beta=0.0,
            bf16=True,
            use_cpu=True,
            gradient_checkpointing=False,
            save_strategy="steps",
            save_steps=EVALUATED_EVERY,
            save_only_model=True,
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
        ),
        train_dataset=data.map(lambda row: {"prompt": [{"role": "user", "content": row["prompt"]}]}),
        callbacks=[TrlClock()],
    )
    trainer.train()
    steps = list(range(0, task.steps + 1, EVALUATED_EVERY))
    models = [real / name, *(out / f"checkpoint-{step}" for step in steps[1:])]
    return Measured(steps, [evaluate(task, model, folder) for model in models], clock.median())


def _plain(config: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name != "quantization_config"}


def evaluate(task: Task, model: Path, folder: Path) -> float:
    """Held-out accuracy of a model, by `strop evaluate`."""
    command = [sys.executable, "-m", "strop", "evaluate", str(REAL / task.run_file)]
    command += [f"model.path={model}", f"output={folder}", "project=evaluated", "name=trl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(rf"^{ACCURACY} = (\S+)$", done.stdout, re.MULTILINE)
    if found is None:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")
    return float(found[1])


def measure(name: str, seed: int, folder: Path) -> Measured:
    """Run a task in a process of its own, or read the result of an earlier run."""
    file = folder / f"{name}-{seed}.json"
    if not file.is_file():
        command = [sys.executable, __file__, name, "--seeds", str(seed), "--out", str(folder), "--in-process"]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1", "REAL": str(folder)}
        environment["REAL_EXAMPLE"] = str(REAL)
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")
    return Measured(**json.loads(file.read_text()))


def prepare(names: Sequence[str], folder: Path, data: Path | None) -> None:
    """Fetch the model and write the tasks' data."""
    sys.path.insert(0, str(REAL))
    from real import fetch_model, make_tasks
    from tasks import write

    folder.mkdir(parents=True, exist_ok=True)
    fetch_model(folder)
    make_tasks(folder)
    for name in names:
        if name in ("countdown", "calculator", "medmcqa", "gsm8k"):
            write(name, folder, data / name if data else None)


def stored(folder: Path) -> dict[str, list[Measured]]:
    """All results of earlier runs, by task."""
    files = {name: sorted(folder.glob(f"{name}-[0-9]*.json")) for name in TASKS}
    return {
        name: [Measured(**json.loads(path.read_text())) for path in paths]
        for name, paths in files.items()
        if paths
    }


def table(results: Mapping[str, Sequence[Measured]]) -> str:
    """Format a row for each task: accuracy before and after of each seed, and CPU-seconds."""
    lines = ["| task | steps | held-out accuracy, by seed | mean after | CPU-seconds per step | per run |"]
    lines.append(f"|{' --- |' * 6}")
    for name, runs in results.items():
        changes = ", ".join(f"{run.accuracy[0]:.3f} → {run.accuracy[-1]:.3f}" for run in runs)
        after = statistics.mean(run.accuracy[-1] for run in runs)
        cpu = statistics.mean(run.cpu_seconds for run in runs)
        steps = runs[0].steps[-1]
        lines.append(
            f"| {TASKS[name].title} | {steps} | {changes} | {after:.3f} | {cpu:.1f} | {cpu * steps:.0f} |"
        )
    return "\n".join(lines)


def draw(results: Mapping[str, Sequence[Measured]], path: Path) -> None:
    """Draw the accuracy against the step and against the CPU time of training: a line for each run."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (by_step, by_time) = pyplot.subplots(1, 2, figsize=(11, 4.5), sharey=True)
    for color, (name, runs) in zip(pyplot.cm.tab10.colors, results.items(), strict=False):
        for number, run in enumerate(runs):
            label = None if number else TASKS[name].title
            by_step.plot(run.steps, run.accuracy, color=color, label=label, marker=".")
            times = [step * run.cpu_seconds / 60 for step in run.steps]
            by_time.plot(times, run.accuracy, color=color, marker=".")
    by_step.set_xlabel("step")
    by_time.set_xlabel("CPU-minutes of training")
    by_step.set_ylabel("held-out accuracy")
    figure.legend(loc="lower center", ncols=3, fontsize=8)
    for axis in (by_step, by_time):
        axis.set_ylim(0, 1.02)
        axis.grid(alpha=0.3)
    figure.tight_layout(rect=(0, 0.1, 1, 1))
    figure.savefig(path, dpi=100)


def main() -> None:
    """Run the command line; `--in-process` is for the processes that this script starts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=", ".join(TASKS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--data", type=Path, help="folder with medmcqa/ and gsm8k/")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "results")
    parser.add_argument("--in-process", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    folder = args.out.absolute()
    if args.in_process:
        (name,), (seed,) = args.tasks, args.seeds
        train = train_with_trl if TASKS[name].trainer == "trl" else train_with_strop
        measured = train(TASKS[name], seed, folder)
        (folder / f"{name}-{seed}.json").write_text(json.dumps(asdict(measured)) + "\n")
        return
    if unknown := set(args.tasks) - set(TASKS):
        parser.error(f"unknown task {', '.join(sorted(unknown))}; the tasks are {', '.join(TASKS)}")
    if not args.tasks:
        results = stored(folder)
        draw(results, PLOT)
    else:
        prepare(args.tasks, folder, args.data)
        results = {name: [measure(name, seed, folder) for seed in args.seeds] for name in args.tasks}
    print(table(results))


if __name__ == "__main__":
    main()
