"""Prefill, decoding, changes of rows and the choice of tokens on the fake GPU: a step waits once, for finished rows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from strop.inference.completion import StopStringMatcher
from strop.inference.native.model.decoder import NativeModelRunner
from strop.inference.native.model.runner import DecodingSteps, DirectSteps, Prompt, plan_compaction
from strop.inference.native.model.weights import is_applicable
from strop.inference.native.pending_request import PendingRequest, SampleCall, prompt_key
from strop.inference.native.sequences import SequenceBatch
from strop.models.lora import low_rank_updates
from strop.models.packed_attention.forward import base_model
from strop.models.shared_weights import named_weights
from strop.protocols import LowRankUpdate
from strop.types import SampleRequest, SamplingParams
from tests.fake_cuda.fake_models import SIZES, fake_adapted, fake_model
from tests.inference.recorded_operators import CheckedSteps

SAMPLINGS = {
    "plain": [SamplingParams(max_tokens=9), SamplingParams(max_tokens=5)],
    "tempered": [SamplingParams(max_tokens=9, temperature=0.7), SamplingParams(max_tokens=5, temperature=0)],
    "filtered": [
        SamplingParams(max_tokens=9, top_k=5, top_p=0.9, min_p=0.01),
        SamplingParams(max_tokens=5, repetition_penalty=1.2, min_tokens=3),
    ],
}


STEPS = {"called": DirectSteps, "as recorded": CheckedSteps}
"""Steps as a plain engine calls them, and as a CUDA graph would record them: nothing comes from the host's memory."""


def runner_of(
    model: PreTrainedModel, steps: DecodingSteps, adapter: Mapping[str, LowRankUpdate] | None = None
) -> NativeModelRunner:
    return NativeModelRunner(
        model.config,
        named_weights(model),
        device=torch.device("cuda"),
        dtype=torch.bfloat16,
        adapter=adapter,
        steps=steps,
    )


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS.keys())
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral"])
def test_prefill_and_decoding(gpu: torch.device, family: str, steps: Callable[[], DecodingSteps]) -> None:
    check_prefill_and_decoding(runner_of(fake_model(family), steps()))


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS.keys())
def test_prefill_and_decoding_with_an_unmerged_adapter(
    gpu: torch.device, steps: Callable[[], DecodingSteps]
) -> None:
    adapted = fake_adapted(fake_model("qwen2"), "all-linear")
    adapter = low_rank_updates(adapted)
    assert adapter is not None
    assert is_applicable(adapter, torch.bfloat16)
    check_prefill_and_decoding(runner_of(base_model(adapted), steps(), adapter))


def check_prefill_and_decoding(runner: NativeModelRunner) -> None:
    prompts = [Prompt(np.arange(length, dtype=np.int32), top_logprobs=2) for length in (5, 9)]
    prefilled = runner.prefill(prompts)
    logits, (_, scores) = prefilled.logits, prefilled.scores
    assert scores is not None and scores.top_ids.device.type == "cuda" and scores.top_ids.shape == (8, 2)
    assert (logits.device.type, logits.shape) == ("cuda", (2, SIZES["vocab_size"]))
    runner.add_rows([0, 0, 1])
    for removed in ([False, True, False], [True, False]):
        for _ in range(2):
            logits = runner.decode(torch.zeros(len(removed), dtype=torch.int64))
            assert (logits.device.type, logits.shape) == ("cuda", (len(removed), SIZES["vocab_size"]))
        runner.compact_rows(plan_compaction(np.array(removed), runner.device))
    runner.compact_prompts(plan_compaction(np.array([True, False]), runner.device))
    assert runner.decode(torch.zeros(1, dtype=torch.int64)).shape == (1, SIZES["vocab_size"])


@pytest.mark.parametrize("samplings", SAMPLINGS.values(), ids=SAMPLINGS.keys())
def test_sampling_of_tokens(gpu: torch.device, samplings: list[SamplingParams]) -> None:
    vocab = SIZES["vocab_size"]
    sequences = SequenceBatch(vocab, gpu, frozenset({2}), StopStringMatcher(lambda _tokens: ""))
    loop = asyncio.new_event_loop()
    call = SampleCall(len(samplings), loop.create_future())
    requests = [
        SampleRequest(f"{number}", np.arange(4, dtype=np.int32), sampling, seed=7)
        for number, sampling in enumerate(samplings)
    ]
    sequences.add(
        [PendingRequest(each, call, index, prompt_key(each)) for index, each in enumerate(requests)], [0, 0]
    )
    for _ in range(2):
        sequences.sample_next(torch.zeros(2, vocab), version=0)
        assert sequences.finished_flags().device.type == "cuda"
    assert sequences.last_tokens.device.type == "cuda"
    loop.close()
