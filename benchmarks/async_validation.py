"""Measured steps of distributed runs of Strop on this machine, next to those that the simulation predicts.

    make evidence ARGS=async_validation                  # updates docs/scaling.md; a quarter of an hour
    .venv/bin/python benchmarks/async_validation.py      # prints the table

Launcher, explorer, trainer, buffer and engines are processes. Two cores cannot compute for that many, so most of the
time is slept: a rollout samples 4 tokens with a real engine and then sleeps for a lognormal time, which stands for a
longer response; an advantage function sleeps in each update, after which a small model is really trained. Weights are
really published and loaded, and groups really pass through the buffer.

The simulation's inputs are the slept times and, for each number of engines, an alternating run of eight steps in which
nothing sleeps: its update, publication, load, and step of the explorer.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from async_loop import simulate
from async_settings import Engines, Lengths, Loop, Outcome
from async_workflows import SEED, UPDATE_SECONDS
from pydantic import TypeAdapter

from strop.config.schema.buffer import StyleConfig
from strop.models.tiny import make_model

WORKFLOWS = Path(__file__).resolve().with_name("async_workflows.py")
PROMPTS, RESPONSES = 12, 4
STEPS, FIRST = 14, 3
"""Steps of a run, and the number of first steps that are left out."""
CALIBRATION_STEPS = 8


@dataclass(frozen=True, slots=True)
class Slept:
    """Durations that a run sleeps, in seconds."""

    median: float
    """Median of a rollout's lognormal duration."""
    sigma: float
    maximum: float
    update: float


@dataclass(frozen=True, slots=True)
class Case:
    """A run."""

    style: Mapping[str, str]
    engines: int
    slept: Slept
    max_concurrent_rollouts: int | None = None
    steps: int = STEPS

    @property
    def processes(self) -> int:
        """Launcher, explorer, trainer, buffer, and the engines of a pool."""
        return 4 + (self.engines if self.engines > 1 else 0)


def style(name: str, **fields: int) -> dict[str, str]:
    """Make a synchronization style."""
    return {"type": name, **{key: f"{value} steps" for key, value in fields.items()}}


EVEN = Slept(median=1.0, sigma=0.0, maximum=9.0, update=0.8)
SHORT = Slept(median=0.5, sigma=0.6, maximum=4.0, update=1.2)
LONG = Slept(median=0.5, sigma=1.2, maximum=5.0, update=1.2)
CASES = (
    Case(style("fixed", max_lead=0), 2, EVEN),
    Case(style("fixed", max_lead=1), 2, SHORT),
    Case(style("bounded", max_staleness=2), 2, LONG, 16),
    Case(style("on_request", every=1), 2, LONG, 24),
    Case(style("fixed", max_lead=0), 4, SHORT),
    Case(style("bounded", max_staleness=1), 4, LONG),
    Case(style("fixed", max_lead=1, every=2), 1, LONG),
    Case(style("latest"), 1, LONG, 12),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """Means of a run's steps; seconds, fractions and steps."""

    step: float
    """From the end of a trainer's step to the end of the next."""
    trainer_idle: float
    """Fraction of the time in which the trainer neither updates nor publishes."""
    staleness: float
    update: float
    publish: float
    load: float
    explore: float
    """From the weights of the explorer's step to its groups in the buffer."""
    between: float
    """Between two steps of the trainer."""


def run_values(folder: Path, name: str, case: Case) -> dict[str, Any]:
    """Values of the run file of a case."""
    slept = {"median": case.slept.median, "sigma": case.slept.sigma, "maximum": case.slept.maximum}
    return {
        "name": name,
        "output": str(folder / "runs"),
        "model": {"path": str(folder / "model")},
        "data": {
            "train": {"path": str(folder / "prompts.jsonl"), "answer": None},
            "max_prompt_tokens": 64,
            "max_response_tokens": 4,
        },
        "rollout": {
            "workflow": {"name": f"{WORKFLOWS}:waiting", "args": slept},
            "pool": {"engines": case.engines} if case.engines > 1 else None,
            "max_concurrent_rollouts": case.max_concurrent_rollouts,
            "sampling": {"ignore_eos": True},
        },
        "algorithm": {
            "type": "custom",
            "advantages": f"{WORKFLOWS}:slow_advantages",
            "rollouts_per_task": RESPONSES,
            "importance_correction": {},
        },
        "synchronizer": {"type": "checkpoint", "style": dict(case.style)},
        "buffer": {"type": "queue"},
        "trainer": {
            "duration": f"{case.steps} steps",
            "tasks_per_step": PROMPTS,
            "optimizer": {"type": "adamw", "lr": 1e-9},
        },
        "record": {"monitors": [], "report": False},
    }


def prepare(folder: Path) -> None:
    """Write the model and the prompts."""
    prompts = [f"tell me about {number} and {number * 7 % 64}" for number in range(64)]
    make_model(folder / "model", prompts, hidden_size=64, layers=2)
    rows = ({"prompt": [{"role": "user", "content": text}]} for text in prompts)
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@contextmanager
def row_times(path: Path) -> Iterator[list[float]]:
    """Times at which the rows of a file appear, to 0.02 s."""
    times: list[float] = []
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            if path.exists():
                times.extend([time.monotonic()] * (path.read_bytes().count(b"\n") - len(times)))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield times
    finally:
        done.set()
        thread.join()


def measure(folder: Path, name: str, case: Case, first: int) -> Measured:
    """Run Strop in processes of its own, and return the means of the steps after the first ones."""
    run_file = folder / f"{name}.json"
    run_file.write_text(json.dumps(run_values(folder, name, case)))
    path = folder / "runs" / "strop" / name
    environment = {**os.environ, "OMP_NUM_THREADS": "1", UPDATE_SECONDS: str(case.slept.update)}
    with row_times(path / "metrics.jsonl") as times:
        done = subprocess.run(
            [sys.executable, "-m", "strop", "train", str(run_file)],
            env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
    if done.returncode:
        sys.exit(f"The run {name} failed:\n{done.stdout}\n{done.stderr}")
    rows, explored = (
        [json.loads(line) for line in file.read_text().splitlines()][-case.steps :][first:]
        for file in (path / "metrics.jsonl", path / "explorer" / "metrics.jsonl")
    )
    step = (times[-1] - times[-1 - len(rows)]) / len(rows)
    publish = _mean(rows, "time/publish_seconds")
    busy = _mean(rows, "time/step_seconds") - _mean(rows, "time/wait_for_groups_seconds")
    return Measured(
        step=step,
        trainer_idle=1 - busy / step,
        staleness=_mean(rows, "staleness/mean"),
        update=busy - publish,
        publish=publish,
        load=_mean(explored, "time/load_weights_seconds"),
        explore=_mean(explored, "time/explore_seconds") + _mean(explored, "time/buffer_write_seconds"),
        between=step - _mean(rows, "time/step_seconds"),
    )


def _mean(rows: Sequence[Mapping[str, Any]], name: str) -> float:
    return statistics.mean(row.get(name) or 0.0 for row in rows)


def predict(case: Case, unslept: Measured) -> Outcome:
    """Simulate a run, with its durations. A token is a second: all rollouts advance alike, however many there are."""
    slept = case.slept
    loop = Loop(
        style=TypeAdapter(StyleConfig).validate_python(dict(case.style)),
        prompts=PROMPTS,
        responses=RESPONSES,
        lengths=Lengths(slept.median, slept.sigma, slept.maximum, base=unslept.explore),
        engines=Engines(1, ((1.0, 1.0),), load_seconds=unslept.load),
        update_seconds=unslept.update + slept.update,
        publish_seconds=unslept.publish,
        trainer_seconds=unslept.between,
        max_concurrent_rollouts=case.max_concurrent_rollouts,
        seed=SEED,
    )
    return simulate(loop, steps=case.steps, first=FIRST, beyond=0)


def table_row(case: Case, measured: Measured, predicted: Outcome) -> str:
    """Format a row of the table."""
    step, idle, stale = predicted.seconds_per_step, predicted.trainer_idle, predicted.mean_staleness
    fields = [f"`{key}: {value.split()[0]}`" for key, value in case.style.items() if key != "type"]
    if case.max_concurrent_rollouts is not None:
        fields.append(f"{case.max_concurrent_rollouts} rollouts at once")
    work = f"{case.slept.median:g} s, sigma {case.slept.sigma:g}; update {case.slept.update:g} s"
    name = ", ".join([f"`{case.style['type']}`", *fields])
    return (
        f"| {name} | {case.processes} | {work} | {measured.step:.2f} | {step:.2f} | "
        f"{100 * (step / measured.step - 1):+.0f} % | {100 * measured.trainer_idle:.0f}, {100 * idle:.0f} % | "
        f"{measured.staleness:.2f}, {stale:.2f} |"
    )


def main() -> None:
    """Run the command line: print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cases", type=int, nargs="+", default=range(len(CASES)), help="numbers, from 0")
    cases = [CASES[number] for number in parser.parse_args().cases]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        prepare(folder)
        unslept = {}
        for engines in sorted({case.engines for case in cases}):
            still = Slept(median=0.0, sigma=0.0, maximum=0.0, update=0.0)
            calibration = Case(style("fixed", max_lead=0), engines, still, steps=CALIBRATION_STEPS)
            unslept[engines] = measure(folder, f"unslept-{engines}", calibration, 3)
            print(f"{engines} engines, nothing slept: {unslept[engines]}", file=sys.stderr, flush=True)
        columns = ("style", "processes", "rollouts and updates", "step s", "predicted", "difference")
        print(f"| {' | '.join((*columns, 'trainer idle', 'staleness'))} |")
        print("| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: |", flush=True)
        for number, case in enumerate(cases):
            measured = measure(folder, f"case-{number}", case, FIRST)
            print(f"{case.style}: {measured}", file=sys.stderr, flush=True)
            print(table_row(case, measured, predict(case, unslept[case.engines])), flush=True)


if __name__ == "__main__":
    main()
