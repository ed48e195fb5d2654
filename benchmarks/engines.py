"""What several engines buy: the same answers by one engine in the process, and by a pool of processes.

    OMP_NUM_THREADS=1 python benchmarks/engines.py
    OMP_NUM_THREADS=1 python benchmarks/engines.py --model 28M --engines 2 3 --repeats 5

Each engine has one thread. The work is that of benchmarks/sampler.py: random Qwen2 models, 64 tokens to an
answer, temperature 1. All are measured in turns, and of each the fastest time counts.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import psutil
from sampler import SIZES, Work, make_work

import strop
from strop.config.schema import Run
from strop.inference.pool import EnginePool, Wanted
from strop.protocols import InferenceEngine
from strop.run.sampler import MakeEngine
from strop.types import SampleRequest, Sampling
from strop.workers.start import Local


def run_of(folder: Path, engines: int) -> Run:
    """A run that samples from the model in this folder."""
    values = {
        "model": {"path": str(folder)},
        "data": {"train": {"path": "unread.jsonl"}},
        "rollout": {"pool": {"engines": engines, "max_restarts": 0}},
        "trainer": {"engine": {"device": "cpu"}, "duration": "1 steps"},
    }
    return strop.load(values).run


def requests_of(work: Work, seed: int) -> list[SampleRequest]:
    """Every sample of every prompt."""
    sampling = Sampling(max_tokens=work.max_tokens, ignore_eos=True)
    return [
        SampleRequest(f"{p}.{n}", prompt, sampling, seed=1000 * seed + p * work.samples + n)
        for p, prompt in enumerate(work.prompts)
        for n in range(work.samples)
    ]


def measure(engine: InferenceEngine, work: Work, seed: int) -> tuple[float, float]:
    """Seconds, and CPU-seconds of all processes, for all answers."""
    requests = requests_of(work, seed)
    used, began = _cpu_seconds(), time.perf_counter()
    asyncio.run(engine.sample(requests))
    return time.perf_counter() - began, _cpu_seconds() - used


def _cpu_seconds() -> float:
    own = psutil.Process()
    times = [process.cpu_times() for process in (own, *own.children())]
    return sum(each.user + each.system for each in times)


def main(argv: Sequence[str] | None = None) -> None:
    """Print a row for each number of engines."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=list(SIZES), default="8.4M")
    parser.add_argument("--engines", nargs="+", type=int, default=[2])
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as opened:
        folder = Path(scratch) / "model"
        work = make_work(SIZES[args.model], folder, stops=False)
        engines: dict[str, InferenceEngine] = {"1, in the process": MakeEngine(run_of(folder, 1), 0)()}
        for many in args.engines:
            run = run_of(folder, many)
            wanted = [Wanted(f"engine-{number}", MakeEngine(run, number)) for number in range(many)]
            pool = opened.enter_context(closing(EnginePool(wanted, Local(), max_restarts=0)))
            engines[f"{many}, a process each"] = pool
        for engine in engines.values():
            measure(engine, work, 0)
        runs = [[measure(engine, work, seed) for engine in engines.values()] for seed in range(args.repeats)]
    tokens = len(work.prompts) * work.samples * work.max_tokens
    print(
        f"{args.model}: {len(work.prompts)} prompts x {work.samples} samples of {work.max_tokens} tokens.\n"
    )
    print("| engines | seconds | tokens per second | CPU-seconds |")
    print("| --- | --- | --- | --- |")
    for name, times in zip(engines, zip(*runs, strict=True), strict=True):
        seconds, used = min(times)
        print(f"| {name} | {seconds:.2f} | {tokens / seconds:.0f} | {used:.2f} |")


if __name__ == "__main__":
    main()
