"""Inference engines on the CPU: throughput, duration of a weight update, and exactness of the log-probs.

    OMP_NUM_THREADS=1 .venv-sglang/bin/python benchmarks/engines.py
    OMP_NUM_THREADS=1 .venv-sglang/bin/python benchmarks/engines.py --model path/to/model --dtypes bfloat16
    OMP_NUM_THREADS=1 .venv-sglang/bin/python benchmarks/engines.py --questions 4 --tokens 32 --repeats 1

The native engine, vLLM, SGLang, and Hugging Face's `generate`: temperature 1, one thread each. The model is
SmolLM2-135M-Instruct, fetched as by examples/real, or a model folder or a GGUF file, on `--questions` x 4 samples of
`--tokens` tokens; or a random model of benchmarks/sampler.py on its workload, by size. The engines are measured
alternately; the minimum time of each is printed. A weight update passes all tensors of the trainer's model to the
engine. The gap is the mean difference, in nats, from the log-probs of Hugging Face's forward pass in float32 after
that update.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from engine_factory import SECTIONS, EngineFactory
from engine_pool import requests_of
from sampler import SIZES, Work, hugging_face, make_work
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from strop.config.paths import gguf_file
from strop.inference.pool import EnginePool, EngineSpec
from strop.inference.registry import running_engine
from strop.protocols import InferenceEngine
from strop.run.entry.export import export_checkpoint
from strop.types import Completion, SampleRequest
from strop.workers.start import LocalPlacement

ROOT = Path(__file__).parents[1]
SMOLLM = "SmolLM2-135M-Instruct"
_GAP_PROMPTS = 8
_SAMPLES = 4


def work_on(model: str, questions: int, tokens: int, scratch: Path) -> Work:
    """The workload of `--model`; its folder is in `scratch` unless it is the model's own."""
    if model in SIZES:
        return make_work(SIZES[model], scratch / "model", stops=False)
    path = _fetched() if model == SMOLLM else Path(model)
    folder = path
    if gguf_file(str(path)) is not None:
        folder = export_checkpoint(path, scratch / "model", None)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    messages = [
        [{"role": "user", "content": f"What is {17 * n} + {29 * n}? Explain each step."}]
        for n in range(1, questions + 1)
    ]
    encoded = [
        tokenizer.apply_chat_template(each, add_generation_prompt=True, return_dict=True)["input_ids"]
        for each in messages
    ]
    prompts = tuple(np.asarray(ids, dtype=np.int32) for ids in encoded)
    return Work(folder=folder, prompts=prompts, samples=_SAMPLES, max_tokens=tokens, end_tokens=())


def _fetched() -> Path:
    sys.path.insert(0, str(ROOT / "examples" / "real"))
    from real import fetch_model

    out = ROOT / "runs" / "real"
    out.mkdir(parents=True, exist_ok=True)
    return fetch_model(out)


def open_engine(name: str, folder: Path, dtype: str) -> InferenceEngine:
    """Build the engine; each but the native one in a process of its own."""
    factory = EngineFactory(name, folder, dtype)
    if name == "native":
        return factory()
    return EnginePool([EngineSpec("engine-0", factory)], LocalPlacement(), max_restarts=0)


def measure_load(engine: InferenceEngine, model: PreTrainedModel, repeats: int) -> float:
    """Minimum seconds of a weight update; the model's weights change before each."""
    seconds = []
    for version in range(1, repeats + 1):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.001)
        began = time.perf_counter()
        engine.load(model.named_parameters(), version)
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def logprob_gap(engine: InferenceEngine, model: PreTrainedModel, work: Work) -> float:
    """Mean difference from the model's log-probs, in nats."""
    requests = requests_of(work, 99)[: _GAP_PROMPTS * work.samples : work.samples]
    completions = asyncio.run(engine.sample(requests))
    gaps = [_gaps(model, *each) for each in zip(requests, completions, strict=True)]
    return float(np.concatenate(gaps).mean())


def _gaps(model: PreTrainedModel, request: SampleRequest, completion: Completion) -> np.ndarray:
    tokens = torch.from_numpy(np.concatenate([request.prompt_ids, completion.token_ids])).long()
    with torch.no_grad():
        logprobs = model(tokens[None], use_cache=False).logits[0].float().log_softmax(-1)
    expected = logprobs[:-1].gather(1, tokens[1:, None])[len(request.prompt_ids) - 1 :, 0]
    return np.abs(expected.numpy() - completion.sampler_logprobs)


def sampling_function(engine: InferenceEngine, work: Work) -> Callable[[int], object]:
    """A function that samples all responses once, from a seed."""
    return lambda seed: asyncio.run(engine.sample(requests_of(work, seed)))


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line: print a row for each engine and data type."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", default=SMOLLM, help=f"{SMOLLM}, a model folder, a GGUF file, or {', '.join(SIZES)}"
    )
    parser.add_argument(
        "--dtypes", nargs="+", choices=["float32", "bfloat16"], default=["float32", "bfloat16"]
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--questions", type=int, default=8, help="prompts of the model's workload")
    parser.add_argument("--tokens", type=int, default=64, help="tokens per response of the model's workload")
    args = parser.parse_args(argv)
    print("| engine | tokens per second | weight update, seconds | log-prob gap, nats |")
    print("| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as scratch:
        work = work_on(args.model, args.questions, args.tokens, Path(scratch))
        for dtype in args.dtypes:
            for row in measure(work, dtype, args.repeats):
                print(f"| {row} |", flush=True)


def measure(work: Work, dtype: str, repeats: int) -> list[str]:
    """Cells of each engine's row."""
    with ExitStack() as opened:
        folder = work.folder
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        engines = {
            name: opened.enter_context(running_engine(open_engine(name, folder, dtype))) for name in SECTIONS
        }
        samplers = {name: sampling_function(engine, work) for name, engine in engines.items()}
        samplers["Hugging Face `generate`"] = hugging_face(work, getattr(torch, dtype))
        times: dict[str, list[float]] = {name: [] for name in samplers}
        for seed in range(repeats + 1):
            for name, sample_all in samplers.items():
                began = time.perf_counter()
                sample_all(seed)
                if seed:  # the first round warms up
                    times[name].append(time.perf_counter() - began)
        tokens = len(work.prompts) * work.samples * work.max_tokens
        speeds = {name: tokens / min(seconds) for name, seconds in times.items()}
        loads = {name: measure_load(engine, model, repeats) for name, engine in engines.items()}
        for engine in engines.values():
            engine.load(model.named_parameters(), repeats + 1)
        gaps = {name: logprob_gap(engine, model, work) for name, engine in engines.items()}
        return [
            f"{name}, {dtype} | {speed:.0f} | "
            + (f"{loads[name]:.3f} | {gaps[name]:.1e}" if name in loads else "none | -")
            for name, speed in speeds.items()
        ]


if __name__ == "__main__":
    main()
