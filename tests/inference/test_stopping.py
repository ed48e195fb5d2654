"""Stop tokens, stop strings, min_tokens and max_tokens of the native engine."""

from __future__ import annotations

import numpy as np
import pytest
from transformers import GenerationConfig

from strop.config.schema.inference_engine import NativeEngineConfig
from strop.inference.native import NativeEngine
from strop.inference.native.stopping import StopStringMatcher
from strop.inference.stop_tokens import eos_token_ids
from strop.models.shared_weights import named_weights
from strop.types import SamplingParams
from tests.inference.helpers import full_logits, random_prompts, requests_for, sample

PROMPTS = random_prompts(4, 9, 15)
STOP_TOKENS = tuple(range(0, 300, 3))


def completions_of(tiny, sampling: SamplingParams, samples: int = 4):
    return sample(tiny().engine(), requests_for(PROMPTS, sampling, samples=samples))


def test_stop_tokens_end_a_completion_and_are_part_of_it(tiny):
    ends = {*STOP_TOKENS, 1}
    for completion in completions_of(tiny, SamplingParams(max_tokens=40, stop_token_ids=STOP_TOKENS)):
        *inner, last = completion.token_ids.tolist()
        assert not ends & set(inner)
        assert completion.finish_reason == ("stop" if last in ends else "length")
        assert last in ends or len(completion.token_ids) == 40


def test_max_tokens_is_exact_and_a_stop_at_the_limit_is_a_stop(tiny):
    free = completions_of(tiny, SamplingParams(max_tokens=12, ignore_eos=True))
    assert all(
        len(completion.token_ids) == 12 and completion.finish_reason == "length" for completion in free
    )
    last = int(free[0].token_ids[-1])
    request = requests_for(PROMPTS, SamplingParams(max_tokens=12, ignore_eos=True, stop_token_ids=(last,)))[0]
    stopped = sample(tiny().engine(), [request])[0]
    assert stopped.finish_reason == "stop"


def test_completions_of_one_token(tiny):
    for completion in completions_of(tiny, SamplingParams(max_tokens=1)):
        assert len(completion.token_ids) == 1


def test_min_tokens_delays_every_stop(tiny):
    sampling = SamplingParams(max_tokens=40, min_tokens=7, stop_token_ids=STOP_TOKENS)
    ends = np.array([*STOP_TOKENS, 1])
    requests = requests_for(PROMPTS, sampling, samples=4)
    lengths = []
    for request, completion in zip(requests, sample(tiny().engine(), requests), strict=True):
        lengths.append(len(completion.token_ids))
        assert not np.isin(completion.token_ids[:7], ends).any()
        logits = full_logits(tiny().model, request.prompt_ids, completion.token_ids)
        rows = range(len(completion.token_ids))
        policy = logits.log_softmax(-1)[rows, completion.token_ids].numpy()
        logits[:7, ends] = -np.inf
        sampled = logits.log_softmax(-1)[rows, completion.token_ids].numpy()
        np.testing.assert_allclose(completion.sampler_logprobs, sampled, atol=1e-4)
        np.testing.assert_allclose(completion.policy_logprobs, policy, atol=1e-4)
    assert min(lengths) >= 8 and len(set(lengths)) > 1


def test_min_tokens_holds_for_rows_admitted_later(tiny):
    sampling = SamplingParams(max_tokens=20, min_tokens=6, stop_token_ids=STOP_TOKENS)
    completions = sample(tiny().engine(max_sequences=2), requests_for(PROMPTS, sampling, samples=4))
    assert all(len(completion.token_ids) >= 7 for completion in completions)


def test_ignore_eos_ignores_end_tokens_but_not_stop_tokens(tiny):
    model = tiny()
    config = GenerationConfig(eos_token_id=list(STOP_TOKENS))
    engine = NativeEngine(
        model.model.config,
        named_weights(model.model),
        NativeEngineConfig(),
        model.tokenizer,
        device="cpu",
        dtype=model.model.dtype,
        generation_config=config,
    )
    plain = sample(engine, requests_for(PROMPTS, SamplingParams(max_tokens=30), samples=4))
    assert any(len(completion.token_ids) < 30 for completion in plain)
    ignoring = sample(
        engine, requests_for(PROMPTS, SamplingParams(max_tokens=30, ignore_eos=True), samples=4)
    )
    assert all(len(completion.token_ids) == 30 for completion in ignoring)
    for short, long in zip(plain, ignoring, strict=True):
        assert short.token_ids.tolist() == long.token_ids[: len(short.token_ids)].tolist()


def test_end_tokens_of_generation_config_and_tokenizer(tiny):
    model = tiny()
    assert eos_token_ids(model.model.config, None, model.tokenizer) == {1}
    assert eos_token_ids(model.model.config, GenerationConfig(eos_token_id=[7, 9]), model.tokenizer) == {
        1,
        7,
        9,
    }
    assert eos_token_ids(model.model.config, GenerationConfig(eos_token_id=7), model.tokenizer) == {1, 7}


@pytest.mark.parametrize("min_tokens", [0, 9])
def test_stop_strings_end_a_completion_at_their_first_occurrence(tiny, min_tokens):
    tokenizer = tiny().tokenizer
    free = completions_of(tiny, SamplingParams(max_tokens=40, ignore_eos=True))
    pairs = [tokenizer.decode(completion.token_ids[20:22]) for completion in free]
    stops = tuple(pair for pair in pairs if "\ufffd" not in pair)
    assert len(stops) > 2
    sampling = SamplingParams(max_tokens=40, ignore_eos=True, stop=stops, min_tokens=min_tokens)
    stopped = completions_of(tiny, sampling)
    for whole, cut in zip(free, stopped, strict=True):
        length = len(cut.token_ids)
        assert cut.token_ids.tolist() == whole.token_ids[:length].tolist()
        before = tokenizer.decode(whole.token_ids[:min_tokens])
        ends = [
            n
            for n in range(min_tokens + 1, 41)
            if any(tokenizer.decode(whole.token_ids[:n]).count(s) > before.count(s) for s in stops)
        ]
        assert length == (ends[0] if ends else 40)
        assert cut.finish_reason == ("stop" if ends else "length")
    assert any(completion.finish_reason == "stop" for completion in stopped)


def test_stop_strings_are_found_across_tokens_and_inside_characters(tiny):
    tokenizer = tiny().tokenizer
    stops = StopStringMatcher(tokenizer)

    def first_end(text: str, *wanted: str) -> str | None:
        tokens = tokenizer.encode(text)
        for n in range(1, len(tokens) + 1):
            if stops.completes_stop(tokens[:n], wanted):
                return tokenizer.decode(tokens[:n])
        return None

    assert first_end("one two three", "o t") == "one two t"[: len(first_end("one two three", "o t"))]
    assert "o t" in first_end("one two three", "o t")
    assert first_end("one two three", "four") is None
    assert first_end("a café, and then", "fé") == "a café"
    assert first_end("a €uro and a café", "é", "€u").endswith("€u")
    assert first_end("it ends <|end|> here", "<|end|>") == "it ends <|end|>"
    assert first_end("x" * 50 + "yz", "x" * 40 + "y") == "x" * 50 + "y"
