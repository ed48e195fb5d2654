"""What a checkpoint costs one process and two ranks, by who may write at the same time.

    python benchmarks/saving.py [--repeats 3]

Prints a table: the seconds that a save takes, the median of several, and by how much the first rank's memory
grows at its peak while it saves. The model has 50 million parameters, in float32 with AdamW's state.
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

from strop.algorithms import table
from strop.config.schema import Run
from strop.config.schema.run import Writers
from strop.data.pack import pack
from strop.models.tiny import make_model
from strop.protocols import TrainingEngine
from strop.training import checkpoint
from strop.training.table import open_engines
from strop.types import Experience, GlobalCounts

ENGINES: Mapping[str, Mapping[str, Any]] = {
    "one process": {"type": "single", "device": "cpu"},
    "two ranks": {"type": "fsdp2", "ranks": 2, "device": "cpu"},
}
TOKENS = 8


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    print("| | `checkpoint.writers` | seconds | memory on top, MB |")
    print("| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(folder / "model", ["one two"], vocab_size=300, hidden_size=768, layers=8, heads=12)
        for kind, engine in ENGINES.items():
            for writers in get_args(Writers):
                run = run_of(folder / "model", engine, writers)
                with open_engines(run) as engines:
                    policy = engines.policy()
                    learn(policy, run)
                    saves = [save(policy, folder / "checkpoints") for _ in range(repeats)]
                seconds, memory = (statistics.median(values) for values in zip(*saves, strict=True))
                print(f"| {kind} | `{writers}` | {seconds:.2f} | {memory:.0f} |", flush=True)


def run_of(model: Path, engine: Mapping[str, Any], writers: str) -> Run:
    """A run file."""
    return Run.model_validate(
        {
            "model": {"path": str(model)},
            "data": {"train": {"path": "none"}},
            "reward": "exact",
            "trainer": {"engine": engine},
            "checkpoint": {"writers": writers},
        }
    )


def learn(engine: TrainingEngine, run: Run) -> None:
    """An update, so that the optimizer has its state."""
    mask = np.arange(TOKENS) >= TOKENS // 2
    zeros = np.zeros(TOKENS, np.float32)
    one = Experience(
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
    batches = pack([one], [1.0], run.trainer.microbatch, share_prompts=False, device=engine.device)
    loss_fn = table.loss_fn(run.algorithm, max_response_tokens=TOKENS)
    engine.set_lr(1e-4)
    engine.forward_backward(batches, loss_fn, GlobalCounts(int(mask.sum()), 1), entropy=False)
    engine.step()


def save(engine: TrainingEngine, root: Path) -> tuple[float, float]:
    """Write a checkpoint: the seconds, and by how many MB this process grows at its peak."""
    ctypes.CDLL(None).malloc_trim(0)  # what is free goes back, so that all that is taken is seen
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from now on
    before, started = memory("VmRSS"), time.perf_counter()
    draft = checkpoint.begin(root, 1)
    write = engine.snapshot().begin(draft.folder)
    checkpoint.finish(draft, lambda _: write(), keep=1)
    return time.perf_counter() - started, memory("VmHWM") - before


def memory(name: str) -> float:
    """MB of this process."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1e3


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
