"""A step on 1 to 16 cores, from parts that are measured on one: what local workers gain, and what binds them.

    OMP_NUM_THREADS=1 python benchmarks/many_cores.py            # SmolLM2-135M-Instruct, which it fetches

The step is that of `examples/real/run.yaml`: 16 tasks with 8 responses of at most 24 tokens, products in bfloat16. For
each number of workers, all shares are sampled and trained on one after the other, in this process with one thread, and
the CPU-seconds of the slowest share count. The sum of the gradients, of which each worker reads its part of every
other's, is taken from the rate of copies; the step of the optimizer is measured whole and divided.

The model supposes that n cores copy n times as fast as one where the machine has no n cores, that cores keep their
clock, and that one core does what is not divided: scoring, packing, and recording, which `--serial` gives in seconds.
"GB/s" is what the workers then read and write together: weights once for each token that a batch decodes, three times
for each micro-batch, gradients, and the optimizer's state. "Largest share" is the slowest worker's over the mean.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cores import REAL, prepare
from experiences import unsampled

import strop
from strop.algorithms.registry import LossSpec
from strop.inference.native import NativeEngine
from strop.models.loading import load_tokenizer
from strop.training.engine import PolicyEngine, local_policy
from strop.training.ranks.share import plan_for_workers
from strop.types import Completion, Experience, GlobalCounts, SampleRequest, SamplingParams, TrainingBatch

TASKS, ROLLOUTS, TOKENS = 16, 8, 24
WORKERS = (1, 2, 4, 8, 16)
COPIED = 1 << 28
"""Bytes of the copies that bandwidth is measured with."""


@dataclass(frozen=True, slots=True)
class Shares:
    """CPU-seconds of the workers' shares of one part of a step."""

    seconds: Sequence[float]
    passes: Sequence[int]
    """Times that each share reads the weights."""


class Step:
    """The model and the tasks of a step, in this process."""

    def __init__(self, folder: Path) -> None:
        """Load the model, and encode the first tasks."""
        os.environ |= {"REAL": str(folder), "REAL_EXAMPLE": str(REAL)}
        self.run = strop.load(REAL / "run.yaml", ["~evaluate", "~data.eval"]).run
        self.policy: PolicyEngine = local_policy(self.run)
        tokenizer = load_tokenizer(self.run.model)
        rollout: Any = self.run.rollout
        self.sampler = NativeEngine.from_weights(self.policy.shared_weights(), rollout.engine, tokenizer)
        rows = list((folder / "train.jsonl").open(encoding="utf-8"))[:TASKS]
        questions = [[{"role": "user", "content": json.loads(row)["prompt"]}] for row in rows]
        encode: Any = tokenizer.apply_chat_template
        self.prompts = [encode(each, add_generation_prompt=True)["input_ids"] for each in questions]

    def sample(self, tasks: Sequence[int]) -> list[Completion]:
        """The responses to some of the tasks, which do not depend on the others."""
        sampling = SamplingParams(max_tokens=TOKENS)
        requests = [
            SampleRequest(
                f"{task}.{index}",
                np.asarray(self.prompts[task], np.int32),
                sampling,
                seed=task * ROLLOUTS + index,
            )
            for task in tasks
            for index in range(ROLLOUTS)
        ]
        return asyncio.run(self.sampler.sample(requests))

    def experiences(self) -> list[Experience]:
        """Training sequences of all tasks; the rewards differ within each group."""
        completions = iter(self.sample(range(TASKS)))
        return [
            unsampled(
                task,
                index,
                [*self.prompts[task], *next(completions).token_ids],
                len(self.prompts[task]),
                index % 2,
            )
            for task in range(TASKS)
            for index in range(ROLLOUTS)
        ]

    def sampled_shares(self, workers: int) -> Shares:
        """Sampling, with the tasks dealt to the workers in turn."""
        shares = [range(worker, TASKS, workers) for worker in range(workers)]
        seconds = [cpu_seconds(partial(self.sample, share)) for share in shares]
        return Shares(seconds, [TOKENS + 1] * workers)

    def trained_shares(self, workers: int, experiences: Sequence[Experience]) -> Shares:
        """Forward and backward passes, with the micro-batches dealt as local workers have them."""
        plan = plan_for_workers(
            experiences,
            self.run.trainer.microbatch,
            ranks=workers,
            hidden_size=576,
            share_prompts=True,
        )
        advantages = [experience.reward * 2 - 1 for experience in experiences]
        whole = TrainingBatch(experiences, advantages=advantages)
        counts, loss = GlobalCounts.of(experiences), LossSpec.of(self.run)
        seconds, passes = [], []
        for worker in range(workers):
            plans = [each for each in plan[worker::workers] if each is not None]
            numbers = sorted({segment.source for each in plans for segment in each})
            share = whole.select(numbers)
            seconds.append(cpu_seconds(partial(self.policy.forward_backward, share, loss, counts)))
            passes.append(3 * len(plans))
        return Shares(seconds, passes)

    def optimizer_seconds(self) -> float:
        """CPU-seconds of an optimizer step of one process, with the copy of the weights; a gradient must be there."""
        return cpu_seconds(self.policy.step, times=1)

    @property
    def parameters(self) -> int:
        """Number of weights."""
        return sum(p.numel() for p in self.policy.policy.master.parameters())


def cpu_seconds(call: Callable[[], object], times: int = 2) -> float:
    """CPU-seconds that a call takes in this process, the least of some: the machine may do other work too."""
    seconds = []
    for _ in range(times):
        started = time.process_time()
        call()
        seconds.append(time.process_time() - started)
    return min(seconds)


def copy_bandwidth(processes: int) -> float:
    """Bytes that all processes read and write in a second, each copying between two arrays of its own."""
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        return sum(pool.map(_copy, range(processes), chunksize=1))


def _copy(_: int) -> float:
    torch.set_num_threads(1)
    source, target = torch.ones(COPIED // 4), torch.ones(COPIED // 4)
    begin = time.perf_counter()
    for _ in range(16):
        target.copy_(source)
    return 16 * 2 * COPIED / (time.perf_counter() - begin)


def report(step: Step, serial: float) -> None:
    """Print the table."""
    one, cores = copy_bandwidth(1), os.cpu_count() or 1
    several = copy_bandwidth(cores)
    print(f"{one / 1e9:.1f} GB/s by one process, {several / 1e9:.1f} by {cores} together\n")
    experiences, n = step.experiences(), step.parameters
    for _ in range(2):  # the first step allocates gradients and the optimizer's state
        step.trained_shares(1, experiences)
        whole = step.optimizer_seconds()
    print(
        "| cores | sample | gradients | sum and update | the rest | step | relative | GB/s | largest share |"
    )
    print(f"|{' --- |' * 9}")
    base = None
    for workers in WORKERS:
        sampled, trained = step.sampled_shares(workers), step.trained_shares(workers, experiences)
        rate = one * workers if workers > cores else several * workers / cores
        summed = 0.0 if workers == 1 else 4 * n * (workers + 1) / rate
        parts = [max(sampled.seconds), max(trained.seconds), summed + whole / workers, serial]
        total = sum(parts)
        base = base or total
        moved = 2 * n * (sum(sampled.passes) + sum(trained.passes)) + 4 * n * (workers + 1) + 30 * n
        imbalance = max(max(each.seconds) * workers / sum(each.seconds) for each in (sampled, trained))
        cells = [f"{part:.2f}" for part in (*parts, total)]
        cells += [f"{total / base:.2f}", f"{moved / total / 1e9:.1f}", f"{imbalance:.2f}"]
        print(f"| {workers} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Fetch the model, and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--serial", type=float, default=0.1, help="seconds of a step that are not divided")
    parser.add_argument("--data", type=Path, help="folder for the model; a temporary one if omitted")
    options = parser.parse_args()
    sys.path.insert(0, str(REAL))
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.data or Path(temporary)).resolve()
        prepare(folder)
        report(Step(folder), options.serial)


if __name__ == "__main__":
    main()
