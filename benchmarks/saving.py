"""Time and memory of saving a checkpoint, with one process and with two ranks, for each save concurrency.

    python benchmarks/saving.py [--repeats 3]

Prints a table of the median time of a save and of the growth of the first rank's memory to its peak
during the save. The model has 50 million parameters in float32, with AdamW's state.
"""

from __future__ import annotations

import argparse
import ctypes
import re
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch

from strop.algorithms.loss_spec import LossSpec
from strop.config.schema import Run
from strop.config.schema.checkpoint import SaveConcurrency
from strop.models.tiny import make_model
from strop.protocols import TrainingEngine
from strop.training.backends.registry import open_training_engines
from strop.training.checkpoints import checkpoint
from strop.types import Experience, TrainingBatch

ENGINES: Mapping[str, Mapping[str, Any]] = {
    "one process": {"type": "local", "device": "cpu"},
    "two ranks": {"type": "fsdp2", "ranks": 2, "device": "cpu"},
}
TOKENS = 8


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
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


def run_of(model: Path, engine: Mapping[str, Any], concurrency: str) -> Run:
    """Make a run with this training engine and save concurrency."""
    return Run.model_validate(
        {
            "model": {"path": str(model)},
            "data": {"train": {"path": "none"}},
            "reward": "exact",
            "trainer": {"engine": engine},
            "checkpoint": {"save_concurrency": concurrency},
        }
    )


def train(engine: TrainingEngine, run: Run) -> None:
    """Do one update, which creates the optimizer's state."""
    mask = np.arange(TOKENS) >= TOKENS // 2
    zeros = np.zeros(TOKENS, np.float32)
    experience = Experience(
        id="0/0",
        task_id="0",
        group="0",
        index=0,
        turn=0,
        token_ids=np.arange(TOKENS, dtype=np.int32) + 5,
        loss_mask=mask,
        sampler_logprobs=zeros,
        policy_logprobs=zeros,
        reward=1.0,
        status="ok",
        temperature=1.0,
        versions=(0,),
    )
    engine.set_lr(1e-4)
    engine.forward_backward(TrainingBatch([experience], [1.0]), LossSpec(run.algorithm, TOKENS))
    engine.step()


def save(engine: TrainingEngine, root: Path) -> tuple[float, float]:
    """Write a checkpoint; return the seconds, and the growth of this process to its peak in MB."""
    ctypes.CDLL(None).malloc_trim(0)  # return free memory to the system, so that new allocations count
    Path("/proc/self/clear_refs").write_text("5")  # reset VmHWM
    before, started = memory("VmRSS"), time.perf_counter()
    draft = checkpoint.begin(root, 1)
    write = engine.snapshot().begin_write(draft.folder)
    checkpoint.commit(draft, lambda _: write(), keep=1)
    return time.perf_counter() - started, memory("VmHWM") - before


def memory(name: str) -> float:
    """Return a field of this process's memory status, in MB."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1e3


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
