"""Tiny models, requests and reference computations for the tests of inference engines."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from strop.config.schema.inference_engine import NativeEngineConfig
from strop.inference.native import NativeEngine
from strop.inference.vllm.library import is_vllm_installed
from strop.protocols import InferenceEngine
from strop.types import Completion, FloatArray, IntArray, SampleRequest, SamplingParams

NEEDS_VLLM = pytest.mark.skipif(
    not is_vllm_installed(), reason="vLLM is not installed; `make engines` builds an environment with it"
)
NEEDS_SGLANG = pytest.mark.skipif(
    find_spec("sglang") is None,
    reason="SGLang is not installed; `make engines` builds an environment with it",
)


@dataclass(frozen=True, eq=False)
class Tiny:
    """A tiny model with its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast

    def engine(self, *, dtype: torch.dtype | None = None, **section: object) -> NativeEngine:
        """A native engine on the model's weights."""
        return NativeEngine.from_model(self.model, NativeEngineConfig(**section), self.tokenizer, dtype=dtype)


def random_prompts(*lengths: int, seed: int = 0, vocab: int = 250) -> list[IntArray]:
    """Random prompts of these lengths."""
    rng = np.random.default_rng(seed)
    return [rng.integers(5, vocab, size=length).astype(np.int32) for length in lengths]


def requests_for(
    prompts: Sequence[IntArray], sampling: SamplingParams, samples: int = 1, seed: int = 0
) -> list[SampleRequest]:
    """`samples` requests for each prompt, each with its own seed."""
    return [
        SampleRequest(f"{p}.{n}", prompt, sampling, seed=seed + 100 * p + n)
        for p, prompt in enumerate(prompts)
        for n in range(samples)
    ]


def sample(engine: InferenceEngine, requests: Sequence[SampleRequest]) -> list[Completion]:
    """Completions of one call."""
    return asyncio.run(engine.sample(requests))


def full_logits(model: PreTrainedModel, prompt: IntArray, completion: IntArray) -> torch.Tensor:
    """[C, V] float32 Logits for each token of the completion, from one forward pass without a cache."""
    tokens = torch.from_numpy(np.concatenate([prompt, completion])).long()[None]
    with torch.no_grad():
        logits = model(tokens, use_cache=False).logits[0].float()
    return logits[len(prompt) - 1 : -1]


def policy_logprobs(model: PreTrainedModel, request: SampleRequest, completion: Completion) -> np.ndarray:
    """[C] Log-probs of the completion's tokens, from one forward pass without a cache."""
    logits = full_logits(model, request.prompt_ids, completion.token_ids)
    logprobs = (logits / (request.sampling.temperature or 1.0)).log_softmax(-1)
    chosen = torch.from_numpy(completion.token_ids).long()[:, None]
    return logprobs.gather(1, chosen)[:, 0].numpy()


def same(first: Completion, second: Completion) -> bool:
    """Whether tokens, log-probs and finish reason are equal bit for bit."""
    return (
        first.finish_reason == second.finish_reason
        and np.array_equal(first.token_ids, second.token_ids)
        and np.array_equal(first.sampler_logprobs, second.sampler_logprobs)
        and _equal(first.policy_logprobs, second.policy_logprobs)
    )


def _equal(first: FloatArray | None, second: FloatArray | None) -> bool:
    return first is second if first is None or second is None else np.array_equal(first, second)
