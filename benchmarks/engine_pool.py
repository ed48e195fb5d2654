"""Throughput of one inference engine in this process, and of pools of engines in separate processes.

    OMP_NUM_THREADS=1 python benchmarks/engine_pool.py
    OMP_NUM_THREADS=1 python benchmarks/engine_pool.py --model 28M --engines 2 3 --repeats 5

Each engine has one thread. The workload is that of benchmarks/sampler.py: random Qwen2 models, 64 tokens per
response, temperature 1. The variants are measured alternately; the minimum time of each is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import psutil
from sampler import SIZES, Work, make_work

import strop
from strop.config.schema import Run
from strop.inference.pool import EnginePool, EngineSpec
from strop.inference.registry import running_engine
from strop.protocols import InferenceEngine
from strop.run.rollout.inference_engines import PoolEngineFactory
from strop.types import SampleRequest, SamplingParams
from strop.workers.start import LocalPlacement


def run_of(folder: Path, engines: int) -> Run:
    """Make a run that samples from the model in this folder."""
    values = {
        "model": {"path": str(folder)},
        "data": {"train": {"path": "unread.jsonl"}},
        "rollout": {"pool": {"engines": engines, "max_restarts": 0}},
        "trainer": {"engine": {"device": "cpu"}, "duration": "1 steps"},
    }
    return strop.load(values).run


def requests_of(work: Work, seed: int) -> list[SampleRequest]:
    """Make a request for each sample of each prompt."""
    sampling = SamplingParams(max_tokens=work.max_tokens, ignore_eos=True)
    return [
        SampleRequest(f"{p}.{n}", prompt, sampling, seed=1000 * seed + p * work.samples + n)
        for p, prompt in enumerate(work.prompts)
        for n in range(work.samples)
    ]


def measure(engine: InferenceEngine, work: Work, seed: int) -> tuple[float, float]:
    """Return the seconds, and the CPU-seconds of all processes, in which all responses are sampled."""
    requests = requests_of(work, seed)
    cpu_before, began = _cpu_seconds(), time.perf_counter()
    asyncio.run(engine.sample(requests))
    return time.perf_counter() - began, _cpu_seconds() - cpu_before


def _cpu_seconds() -> float:
    current = psutil.Process()
    times = [process.cpu_times() for process in (current, *current.children())]
    return sum(each.user + each.system for each in times)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line: print a row for each number of engines."""
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
        single = opened.enter_context(running_engine(PoolEngineFactory(run_of(folder, 1), 0)()))
        engines: dict[str, InferenceEngine] = {"1, in the process": single}
        for count in args.engines:
            run = run_of(folder, count)
            specs = [
                EngineSpec(f"engine-{number}", PoolEngineFactory(run, number)) for number in range(count)
            ]
            pool = opened.enter_context(running_engine(EnginePool(specs, LocalPlacement(), max_restarts=0)))
            engines[f"{count}, separate processes"] = pool
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
        seconds, cpu_seconds = min(times)
        print(f"| {name} | {seconds:.2f} | {tokens / seconds:.0f} | {cpu_seconds:.2f} |")


if __name__ == "__main__":
    main()
