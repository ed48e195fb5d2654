"""The comparison of an engine's log-probs with the trainer's after a load of weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from strop import load
from strop.errors import InferenceError
from strop.run.rollout.inference_engines import max_logprob_gap
from strop.run.rollout.load_check import LoadCheck, ProbedLoader, ProbedWeights, probe_tokens
from strop.types import Completion, SampleRequest
from strop.workers.threads import EventLoopThread


def completion(tokens: int, **prompt: Any) -> Completion:
    """A completion whose log-probs are -1."""
    logprobs = np.full(tokens, -1, dtype=np.float32)
    return Completion(np.arange(tokens, dtype=np.int32), logprobs, logprobs, "length", 3, **prompt)


class Engine:
    """Answers the probe with log-probs of -1."""

    async def sample(self, requests: list[SampleRequest]) -> list[Completion]:
        assert len(requests[0].prompt_ids) == 11
        return [completion(requests[0].sampling.max_tokens)]


class Trainer:
    """Has other log-probs for the targets of the probe, by a constant."""

    def __init__(self, gap: float) -> None:
        self.gap = gap

    def token_values(self, experiences: list[Any], quantity: str) -> list[np.ndarray]:
        return [np.where(experiences[0].loss_mask, -1 + self.gap, 0)]


class Tokenizer:
    def encode(self, text: str) -> list[int]:
        return list(text.encode())


def check(gap: float) -> Any:
    loop = EventLoopThread("test")
    try:
        return LoadCheck(Trainer(gap), Engine(), loop, Tokenizer(), 22, max_gap=0.05)(7)  # type: ignore[arg-type]
    finally:
        loop.close()


def test_a_small_gap_is_a_metric_and_a_large_one_an_error():
    assert check(0.01) == {"engine/logprob_gap": pytest.approx(0.01)}
    for gap in (0.2, float("nan")):
        with pytest.raises(InferenceError, match=r"version 7 of the weights.*engine: native"):
            check(gap)


@pytest.mark.parametrize(
    ("engine", "model", "expected"),
    [
        ({"type": "native"}, {}, None),
        ({"type": "vllm"}, {}, 0.05),
        ({"type": "vllm", "dtype": "float32"}, {"compute_dtype": "bfloat16"}, 0.2),
        ({"type": "vllm", "dtype": "bfloat16"}, {}, 0.2),
        ({"type": "sglang_server", "base_url": "http://localhost:1"}, {"dtype": "bfloat16"}, 0.2),
        ({"type": "vllm", "dtype": "bfloat16", "max_logprob_gap": 0.01}, {}, 0.01),
    ],
)
def test_half_precision_may_round_more(engine: dict[str, Any], model: dict[str, str], expected: float | None):
    values = {"model": {"path": "model", **model}, "reward": "exact", "rollout": {"engine": engine}}
    assert max_logprob_gap(load(values | {"data": {"train": {"path": "train.jsonl"}}}).run) == expected


class PublishingTrainer(Trainer):
    """Publishes one tensor."""

    def iter_weights(self) -> Any:
        yield "weight", torch.ones(1)


class LoadedSampler:
    """Takes weights, and answers the probe with log-probs of -1 for the prompt."""

    def load(self, weights: Any, version: int) -> None:
        self.names = [name for name, _ in weights]

    async def sample(self, requests: list[SampleRequest]) -> list[Completion]:
        (request,) = requests
        assert request.prompt_logprobs
        prompt = np.full(len(request.prompt_ids) - 1, -1, dtype=np.float32)
        return [completion(1, prompt_logprobs=prompt)]


def load_published(gap: float, max_gap: float | None) -> tuple[LoadedSampler, dict[str, float]]:
    tokens = probe_tokens(Tokenizer(), 22)  # type: ignore[arg-type]
    assert len(tokens) == 21
    loop, sampler = EventLoopThread("test"), LoadedSampler()
    loader = ProbedLoader(sampler, loop, tokens, max_gap)  # type: ignore[arg-type]
    try:
        loader.load(ProbedWeights(PublishingTrainer(gap), tokens).iter_weights(), 7)  # type: ignore[arg-type]
    finally:
        loop.close()
    return sampler, loader.metrics


def test_a_separate_explorer_compares_the_published_logprobs_of_the_probe_unless_it_is_native():
    sampler, metrics = load_published(0.01, max_gap=0.05)
    assert sampler.names == ["weight"]
    assert metrics == {"engine/logprob_gap": pytest.approx(0.01)}
    with pytest.raises(InferenceError, match="version 7 of the weights"):
        load_published(0.2, max_gap=0.05)
    sampler, metrics = load_published(0.2, max_gap=None)
    assert sampler.names == ["weight"] and metrics == {}
