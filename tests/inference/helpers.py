"""Tiny models, engines, requests and reference computations for the tests of inference engines."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from strop.config.schema.rollout import NativeEngineConfig
from strop.inference.native import NativeEngine
from strop.inference.pool import EnginePool, EngineSpec
from strop.inference.vllm.library import is_vllm_installed
from strop.models.tiny import make_model
from strop.protocols import InferenceEngine
from strop.types import Completion, FloatArray, IntArray, SampleRequest, SamplingParams
from strop.workers.start import LocalPlacement

LIMIT = 120.0
"""Seconds that only a hang reaches."""
_LOADING = threading.Lock()
"""For engines in threads: transformers changes its classes while it loads a model."""
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


@dataclass(frozen=True)
class NativeFactory:
    """Builds a native engine on a model folder, also in another process."""

    folder: Path

    def __call__(self) -> NativeEngine:
        torch.set_num_threads(1)
        with _LOADING:
            model = AutoModelForCausalLM.from_pretrained(self.folder)
        tokenizer = AutoTokenizer.from_pretrained(self.folder)
        return NativeEngine.from_model(model, NativeEngineConfig(kv_cache_tokens=4096), tokenizer)


def pool_of(
    factory: Callable[[], InferenceEngine], engines: int = 1, *, max_restarts: int = 0, **options: Any
) -> EnginePool:
    """A pool that has not been started."""
    specs = [EngineSpec(f"engine-{number}", factory) for number in range(engines)]
    return EnginePool(specs, LocalPlacement(), max_restarts=max_restarts, **options)


def sharp_model(folder: Path, text: str = "two and two is four", **sizes: Any) -> PreTrainedModel:
    """A model in this new folder whose matrices are large, so that its distributions distinguish tokens."""
    model = AutoModelForCausalLM.from_pretrained(make_model(folder, [text], **sizes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(5)
    model.save_pretrained(folder)
    return model


def scaled(model: PreTrainedModel, factor: float) -> PreTrainedModel:
    """A copy of the model with other weights."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(factor)
    return other


def perturb(model: nn.Module, deviation: float = 0.05) -> None:
    """Change every trainable parameter in place, as an optimizer does."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(deviation * torch.randn_like(parameter))


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


def assert_sampled_by(
    model: PreTrainedModel,
    requests: Sequence[SampleRequest],
    completions: Sequence[Completion],
    *,
    last: int = 0,
) -> None:
    """Each completion answers the request at its index, with the model's log-probs (those of the last tokens)."""
    for request, completion in zip(requests, completions, strict=True):
        expected = policy_logprobs(model, request, completion)[-last:]
        for found in (completion.sampler_logprobs, completion.policy_logprobs):
            if found is not None:
                np.testing.assert_allclose(found[-last:], expected, atol=1e-4, rtol=0)


def assert_close(first: Sequence[Completion], second: Sequence[Completion], atol: float = 1e-4) -> None:
    """Equal tokens and ends; log-probs may differ by rounding, which depends on the batch."""
    for one, other in zip(first, second, strict=True):
        assert one.token_ids.tolist() == other.token_ids.tolist()
        assert (one.finish_reason, one.version) == (other.finish_reason, other.version)
        np.testing.assert_allclose(one.sampler_logprobs, other.sampler_logprobs, atol=atol)
        assert one.policy_logprobs is not None and other.policy_logprobs is not None
        np.testing.assert_allclose(one.policy_logprobs, other.policy_logprobs, atol=atol)


def same(first: Completion, second: Completion) -> bool:
    """Whether tokens, log-probs and finish reason are equal bit for bit."""
    return (
        first.finish_reason == second.finish_reason
        and np.array_equal(first.token_ids, second.token_ids)
        and np.array_equal(first.sampler_logprobs, second.sampler_logprobs)
        and _equal(first.policy_logprobs, second.policy_logprobs)
    )


def assert_same(first: Sequence[Completion], second: Sequence[Completion]) -> None:
    assert all(same(one, other) for one, other in zip(first, second, strict=True))


def _equal(first: FloatArray | None, second: FloatArray | None) -> bool:
    return first is second if first is None or second is None else np.array_equal(first, second)


class Letters:
    """Tokenizer of letters: token 0 is `a`."""

    def encode(self, text: str, **options: Any) -> list[int]:
        return [ord(letter) - ord("a") for letter in text]

    def decode(self, tokens: Sequence[int], **options: Any) -> str:
        return "".join(chr(ord("a") + token) for token in tokens)
