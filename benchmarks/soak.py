"""Memory, file descriptors and threads of a long run: 2,000 steps of a tiny model in one process.

    .venv/bin/python benchmarks/soak.py [--steps 2000]

The run has a reward function in a worker process, evaluations, samples, and checkpoints of which the last two are
kept. Prints a table, and fails if the resident memory (RSS) at the end is more than 2 % above that after 200 steps,
or if there are more file descriptors, threads or child processes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

import strop
from strop.models.tiny import make_model

BASELINE_STEP = 200
TOLERANCE = 0.02
REWARD = """
def vowels(completion):
    return sum(letter in "aeiou" for letter in completion) / 8
"""


@dataclass(frozen=True, slots=True)
class Usage:
    """Resources of this process and its children after a step."""

    step: int
    rss_mb: float
    children_rss_mb: float
    descriptors: int
    threads: int
    children: int


class Recorder(strop.Callback):
    """Records the resources at the baseline step, at the last step, and in between."""

    def __init__(self, steps: int) -> None:
        self.usages: list[Usage] = []
        self._recorded = {BASELINE_STEP, *range(steps, BASELINE_STEP, -max(steps // 8, 1))}

    def on_step(self, metrics: Mapping[str, float]) -> None:
        if metrics["step"] in self._recorded:
            self.usages.append(measure(int(metrics["step"])))


def measure(step: int) -> Usage:
    """The resources now."""
    process = psutil.Process()
    children = process.children(recursive=True)
    return Usage(
        step=step,
        rss_mb=process.memory_info().rss / 1e6,
        children_rss_mb=sum(child.memory_info().rss for child in children) / 1e6,
        descriptors=process.num_fds(),
        threads=process.num_threads(),
        children=len(children),
    )


def run(folder: Path, steps: int) -> list[Usage]:
    """Train for this number of steps."""
    make_model(folder / "model", ["max 1 2"], vocab_size=280, hidden_size=16, layers=1, heads=2)
    (folder / "tasks.jsonl").write_text(
        "".join(json.dumps({"prompt": f"max {n} {m}"}) + "\n" for n in range(10) for m in range(10))
    )
    (folder / "reward.py").write_text(REWARD)
    tasks = {"path": str(folder / "tasks.jsonl"), "answer": None}
    recorder = Recorder(steps)
    loaded = strop.load(
        {
            "name": "soak",
            "output": str(folder / "runs"),
            "model": {"path": str(folder / "model")},
            "data": {
                "train": tasks,
                "eval": [{**tasks, "name": "held-out", "limit_tasks": 4}],
                "max_prompt_tokens": 32,
                "max_response_tokens": 4,
            },
            "reward": f"{folder / 'reward.py'}:vowels",
            "algorithm": {"type": "grpo", "rollouts_per_task": 2},
            "trainer": {"duration": f"{steps} steps", "tasks_per_step": 2},
            "checkpoint": {"every": "50 steps", "keep": 2},
            "evaluate": {"every": "50 steps"},
            "record": {"rollouts_every": "50 steps", "monitors": []},
        }
    )
    strop.train(loaded, callbacks=[recorder])
    return recorder.usages


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=2000)
    with tempfile.TemporaryDirectory() as name:
        usages = run(Path(name), parser.parse_args().steps)
    print("| step | RSS, MB | file descriptors | threads | processes of rewards | their RSS, MB |")
    print("| --- | --- | --- | --- | --- | --- |")
    for usage in usages:
        print(
            f"| {usage.step} | {usage.rss_mb:.1f} | {usage.descriptors} | {usage.threads} "
            f"| {usage.children} | {usage.children_rss_mb:.1f} |"
        )
    first, last = usages[0], usages[-1]
    grown = [
        name for name in ("descriptors", "threads", "children") if getattr(last, name) > getattr(first, name)
    ]
    grown += [
        name
        for name in ("rss_mb", "children_rss_mb")
        if getattr(last, name) > getattr(first, name) * (1 + TOLERANCE)
    ]
    if grown:
        sys.exit(f"{', '.join(grown)} increased: {first}, {last}")


if __name__ == "__main__":
    main()
