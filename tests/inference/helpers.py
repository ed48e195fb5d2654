"""What several tests do."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from strop.config.schema.rollout import NativeEngine as NativeSection
from strop.inference.native import NativeEngine
from strop.types import Completion, Ints, SampleRequest, Sampling


@dataclass(frozen=True, eq=False)
class Tiny:
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast

    def engine(self, *, dtype: torch.dtype | None = None, **section: object) -> NativeEngine:
        return NativeEngine.from_model(self.model, NativeSection(**section), self.tokenizer, dtype=dtype)


def random_prompts(*lengths: int, seed: int = 0, vocab: int = 250) -> list[Ints]:
    rng = np.random.default_rng(seed)
    return [rng.integers(5, vocab, size=length).astype(np.int32) for length in lengths]


def requests_for(
    prompts: Sequence[Ints], sampling: Sampling, samples: int = 1, seed: int = 0
) -> list[SampleRequest]:
    return [
        SampleRequest(f"{p}.{n}", prompt, sampling, seed=seed + 100 * p + n)
        for p, prompt in enumerate(prompts)
        for n in range(samples)
    ]


def sample(engine: NativeEngine, requests: Sequence[SampleRequest]) -> list[Completion]:
    return asyncio.run(engine.sample(requests))


def full_logits(model: PreTrainedModel, prompt: Ints, answer: Ints) -> torch.Tensor:
    """[C, V] float32: what a whole forward says before each token of the answer."""
    tokens = torch.from_numpy(np.concatenate([prompt, answer])).long()[None]
    with torch.no_grad():
        logits = model(tokens, use_cache=False).logits[0].float()
    return logits[len(prompt) - 1 : -1]


def policy_logprobs(model: PreTrainedModel, request: SampleRequest, completion: Completion) -> np.ndarray:
    """[C] of the completion's tokens, by a whole forward."""
    logits = full_logits(model, request.prompt_ids, completion.token_ids)
    logprobs = (logits / (request.sampling.temperature or 1.0)).log_softmax(-1)
    chosen = torch.from_numpy(completion.token_ids).long()[:, None]
    return logprobs.gather(1, chosen)[:, 0].numpy()


def same(first: Completion, second: Completion) -> bool:
    """Equal bit for bit."""
    return (
        first.finish == second.finish
        and np.array_equal(first.token_ids, second.token_ids)
        and np.array_equal(first.sampler_logprobs, second.sampler_logprobs)
        and np.array_equal(first.policy_logprobs, second.policy_logprobs)
    )
