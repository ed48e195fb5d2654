"""Stop tokens, stop strings, min_tokens and max_tokens of the native engine."""

from __future__ import annotations

import numpy as np
import pytest
from transformers import GenerationConfig

from strop.config.schema.rollout import NativeEngineConfig
from strop.data.encoding.model_tokens import eos_token_ids
from strop.inference.completion import StopStringMatcher
from strop.inference.native import NativeEngine
from strop.models.shared_weights import named_weights
from strop.types import SamplingParams
from tests.inference.helpers import full_logits, random_prompts, requests_for, sample

PROMPTS = random_prompts(4, 9, 15)
END = 1
STOP_TOKENS = tuple(range(0, 300, 3))


def completions_of(engine, samples: int = 4, **sampling):
    return sample(engine, requests_for(PROMPTS, SamplingParams(**sampling), samples=samples))


def test_max_tokens_is_exact_and_a_stop_at_the_limit_is_a_stop(tiny):
    free = completions_of(tiny().engine(), max_tokens=12, ignore_eos=True)
    assert all(len(each.token_ids) == 12 and each.finish_reason == "length" for each in free)
    last = int(free[0].token_ids[-1])
    stopped = completions_of(tiny().engine(), max_tokens=12, ignore_eos=True, stop_token_ids=(last,))
    assert stopped[0].finish_reason == "stop"
    for one in completions_of(tiny().engine(), max_tokens=1):
        assert len(one.token_ids) == 1


@pytest.mark.parametrize("max_sequences", [256, 2], ids=["at once", "rows admitted later"])
def test_min_tokens_delays_every_stop_and_changes_the_sampled_distribution(tiny, max_sequences):
    sampling = SamplingParams(max_tokens=40, min_tokens=7, stop_token_ids=STOP_TOKENS)
    ends = np.array([*STOP_TOKENS, END])
    requests = requests_for(PROMPTS, sampling, samples=4)
    completions = sample(tiny().engine(max_sequences=max_sequences), requests)
    for request, completion in zip(requests, completions, strict=True):
        assert not np.isin(completion.token_ids[:-1], ends).any()
        assert completion.finish_reason == ("stop" if completion.token_ids[-1] in ends else "length")
        logits = full_logits(tiny().model, request.prompt_ids, completion.token_ids)
        rows = range(len(completion.token_ids))
        policy = logits.log_softmax(-1)[rows, completion.token_ids].numpy()
        logits[:7, ends] = -np.inf
        sampled = logits.log_softmax(-1)[rows, completion.token_ids].numpy()
        np.testing.assert_allclose(completion.sampler_logprobs, sampled, atol=1e-4)
        np.testing.assert_allclose(completion.policy_logprobs, policy, atol=1e-4)
    lengths = [len(completion.token_ids) for completion in completions]
    assert min(lengths) >= 8 and len(set(lengths)) > 1


def test_ignore_eos_ignores_end_tokens_but_not_stop_tokens(tiny):
    model = tiny()
    engine = NativeEngine(
        model.model.config,
        named_weights(model.model),
        NativeEngineConfig(),
        model.tokenizer,
        device="cpu",
        dtype=model.model.dtype,
        generation_config=GenerationConfig(eos_token_id=list(STOP_TOKENS)),
    )
    plain = completions_of(engine, max_tokens=30)
    assert any(len(completion.token_ids) < 30 for completion in plain)
    ignoring = completions_of(engine, max_tokens=30, ignore_eos=True)
    assert all(len(completion.token_ids) == 30 for completion in ignoring)
    for short, long in zip(plain, ignoring, strict=True):
        assert short.token_ids.tolist() == long.token_ids[: len(short.token_ids)].tolist()


def test_end_tokens_of_generation_config_and_tokenizer(tiny):
    config, tokenizer = tiny().model.config, tiny().tokenizer
    for given, expected in ((None, {END}), ([7, 9], {END, 7, 9}), (7, {END, 7})):
        generation = None if given is None else GenerationConfig(eos_token_id=given)
        assert eos_token_ids(config, generation, tokenizer) == expected


@pytest.mark.parametrize("min_tokens", [0, 9])
def test_stop_strings_end_a_completion_at_their_first_occurrence(tiny, min_tokens):
    tokenizer = tiny().tokenizer
    free = completions_of(tiny().engine(), max_tokens=40, ignore_eos=True)
    pairs = [tokenizer.decode(completion.token_ids[20:22]) for completion in free]
    stops = tuple(pair for pair in pairs if "\ufffd" not in pair)
    assert len(stops) > 2
    stopped = completions_of(
        tiny().engine(), max_tokens=40, ignore_eos=True, stop=stops, min_tokens=min_tokens
    )
    for whole, cut in zip(free, stopped, strict=True):
        length = len(cut.token_ids)
        assert cut.token_ids.tolist() == whole.token_ids[:length].tolist()
        before = tokenizer.decode(whole.token_ids[:min_tokens])
        texts = {n: tokenizer.decode(whole.token_ids[:n]) for n in range(min_tokens + 1, 41)}
        ends = [n for n, text in texts.items() if any(text.count(s) > before.count(s) for s in stops)]
        assert length == (ends[0] if ends else 40)
        assert cut.finish_reason == ("stop" if ends else "length")
    assert any(completion.finish_reason == "stop" for completion in stopped)


@pytest.mark.parametrize(
    ("text", "stops", "expected"),
    [
        ("one two three", ("e t",), "one t"),
        ("one two three", ("four",), None),
        ("a café, and then", ("fé",), "a café"),
        ("a €uro and a café", ("é", "€u"), "a €u"),
        ("it ends <|end|> here", ("<|end|>",), "it ends <|end|>"),
        ("x" * 50 + "yz", ("x" * 40 + "y",), "x" * 50 + "y"),
    ],
)
def test_stop_strings_are_found_across_tokens_and_inside_characters(tiny, text, stops, expected):
    tokenizer = tiny().tokenizer
    tokens, matcher = tokenizer.encode(text), StopStringMatcher(tokenizer)
    found = [tokens[:n] for n in range(1, len(tokens) + 1) if matcher.completes_stop(tokens[:n], stops)]
    if expected is None:
        assert not found
    else:
        assert tokenizer.decode(found[0]).startswith(expected)
        assert not tokenizer.decode(found[0][:-1]).startswith(expected)
