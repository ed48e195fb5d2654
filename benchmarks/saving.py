"""Time and memory of saving a checkpoint, with one process and with two ranks, for each save concurrency.

    python benchmarks/saving.py [--repeats 3]
    python benchmarks/saving.py --by-size 10 100 300 500
    python benchmarks/saving.py --by-size 1000 --dtype bfloat16

Prints a table of the median time of a save and of the growth of the first rank's memory to its peak
during the save. The model has 50 million parameters in float32, with AdamW's state. With `--by-size`, in millions of
parameters, the table has a save, the part of an asynchronous save for which training waits, and an export. Weights and
optimizer state take 12 bytes per parameter in float32 and 6 in bfloat16, and an asynchronous save as much again.
"""

from __future__ import annotations

import argparse
import ctypes
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from experiences import unsampled

from strop.algorithms.registry import LossSpec
from strop.config.schema import Run
from strop.config.schema.record import SaveConcurrency
from strop.models.tiny import make_model
from strop.protocols import TrainingEngine
from strop.training.backend import open_training_engines
from strop.training.checkpoints import checkpoint
from strop.types import TrainingBatch

ENGINES: Mapping[str, Mapping[str, Any]] = {
    "one process": {"type": "local", "device": "cpu"},
    "two ranks": {"type": "fsdp2", "ranks": 2, "device": "cpu"},
}
TOKENS = 8
SIZES: Mapping[int, Mapping[str, Any]] = {
    10: {"hidden_size": 512, "layers": 3, "heads": 8},
    100: {"hidden_size": 1024, "layers": 8, "heads": 16},
    300: {"hidden_size": 1536, "layers": 11, "heads": 16},
    500: {"hidden_size": 1536, "layers": 21, "heads": 16},
    1000: {"hidden_size": 2048, "layers": 23, "heads": 16},
}
"""Sizes of models, by about their millions of parameters."""


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--by-size", type=int, nargs="+", choices=list(SIZES))
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    arguments = parser.parse_args()
    if arguments.by_size:
        compare_sizes(arguments.by_size, arguments.repeats, arguments.dtype)
        return
    repeats = arguments.repeats
    print("| processes | `checkpoint.save_concurrency` | seconds | peak memory growth, MB |")
    print("| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(folder / "model", ["one two"], vocab_size=300, hidden_size=768, layers=8, heads=12)
        for kind, engine in ENGINES.items():
            for concurrency in get_args(SaveConcurrency):
                run = run_of(folder / "model", engine, concurrency)
                with open_training_engines(run) as engines:
                    policy = engines.policy()
                    train(policy, run)
                    saves = [save(policy, folder / "checkpoints") for _ in range(repeats)]
                seconds, memory = (statistics.median(values) for values in zip(*saves, strict=True))
                print(f"| {kind} | `{concurrency}` | {seconds:.2f} | {memory:.0f} |", flush=True)


def compare_sizes(sizes: list[int], repeats: int, dtype: str) -> None:
    """Print the table by size, with one process and with two ranks."""
    print("| parameters | processes | save | asynchronous save: until training continues | export |")
    print("| --- | --- | --- | --- | --- |")
    for size in sizes:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            make_model(folder / "model", ["one two"], vocab_size=300, **SIZES[size])
            for kind, engine in ENGINES.items():
                run = run_of(folder / "model", engine, "all", dtype)
                with open_training_engines(run) as engines:
                    policy = engines.policy()
                    train(policy, run)
                    count = sum(weight.numel() for _, weight in policy.iter_weights())
                    actions = (
                        partial(save, policy, folder / "checkpoints"),
                        partial(save, policy, folder / "checkpoints", copied=True),
                        partial(measured, partial(policy.export, folder / "export")),
                    )
                    cells = [median_cell([action() for _ in range(repeats)]) for action in actions]
                print(f"| {count / 1e6:.0f} million | {kind} | {' | '.join(cells)} |", flush=True)


def median_cell(results: Sequence[tuple[float, float]]) -> str:
    """Median of the seconds and of the memory, as a cell of the table."""
    seconds, megabytes = (statistics.median(values) for values in zip(*results, strict=True))
    return f"{seconds:.1f} s, {megabytes:.0f} MB"


def run_of(model: Path, engine: Mapping[str, Any], concurrency: str, dtype: str = "float32") -> Run:
    """Make a run with this training engine, save concurrency and dtype."""
    return Run.model_validate(
        {
            "model": {"path": str(model), "dtype": dtype},
            "data": {"train": {"path": "none"}},
            "reward": "exact",
            "trainer": {"engine": engine},
            "checkpoint": {"save_concurrency": concurrency},
        }
    )


def train(engine: TrainingEngine, run: Run) -> None:
    """Do one update, which creates the optimizer's state."""
    experience = unsampled(0, 0, np.arange(TOKENS) + 5, TOKENS // 2)
    engine.set_lr(1e-4)
    engine.forward_backward(TrainingBatch([experience], [1.0]), LossSpec(run.algorithm, TOKENS))
    engine.step()


def save(engine: TrainingEngine, root: Path, *, copied: bool = False) -> tuple[float, float]:
    """Write a checkpoint; return the seconds, for a copied one those until it is copied, and the growth of this process
    to its peak in MB."""
    seconds = 0.0

    def write() -> None:
        nonlocal seconds
        started = time.perf_counter()
        draft = checkpoint.begin(root, 1)
        finish = engine.snapshot().begin_write(draft.folder, copied=copied)
        seconds = time.perf_counter() - started
        checkpoint.commit(draft, lambda _: finish(), keep=1)

    whole, growth = measured(write)
    return seconds if copied else whole, growth


def measured(action: Callable[[], object]) -> tuple[float, float]:
    """The seconds of an action, and the growth of this process to its peak in MB."""
    ctypes.CDLL(None).malloc_trim(0)  # return free memory to the system, so that new allocations count
    Path("/proc/self/clear_refs").write_text("5")  # reset VmHWM
    before, started = memory("VmRSS"), time.perf_counter()
    action()
    return time.perf_counter() - started, memory("VmHWM") - before


def memory(name: str) -> float:
    """Return a field of this process's memory status, in MB."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1e3


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
