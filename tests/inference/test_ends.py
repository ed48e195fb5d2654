"""What ends an answer, and what holds its end back."""

from __future__ import annotations

import numpy as np
import pytest
from transformers import GenerationConfig

from strop.config.schema.rollout import NativeEngine as NativeSection
from strop.inference.native import NativeEngine
from strop.inference.native.ends import end_token_ids
from strop.inference.native.stops import StopTexts
from strop.inference.native.weights import named_weights
from strop.types import Sampling
from tests.inference.helpers import full_logits, random_prompts, requests_for, sample

PROMPTS = random_prompts(4, 9, 15)
MANY_ENDS = tuple(range(0, 300, 3))


def answers(tiny, sampling: Sampling, samples: int = 4):
    return sample(tiny().engine(), requests_for(PROMPTS, sampling, samples=samples))


def test_end_and_stop_tokens_stay_in_the_answer_and_end_it(tiny):
    ends = {*MANY_ENDS, 1}
    for completion in answers(tiny, Sampling(max_tokens=40, stop_token_ids=MANY_ENDS)):
        *inner, last = completion.token_ids.tolist()
        assert not ends & set(inner)
        assert completion.finish == ("stop" if last in ends else "length")
        assert last in ends or len(completion.token_ids) == 40


def test_the_limit_is_exact_and_a_stop_at_the_limit_is_a_stop(tiny):
    free = answers(tiny, Sampling(max_tokens=12, ignore_eos=True))
    assert all(len(completion.token_ids) == 12 and completion.finish == "length" for completion in free)
    last = int(free[0].token_ids[-1])
    request = requests_for(PROMPTS, Sampling(max_tokens=12, ignore_eos=True, stop_token_ids=(last,)))[0]
    stopped = sample(tiny().engine(), [request])[0]
    assert stopped.finish == "stop"


def test_one_token_answers(tiny):
    for completion in answers(tiny, Sampling(max_tokens=1)):
        assert len(completion.token_ids) == 1


def test_min_tokens_holds_every_end_back(tiny):
    sampling = Sampling(max_tokens=40, min_tokens=7, stop_token_ids=MANY_ENDS)
    ends = np.array([*MANY_ENDS, 1])
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


def test_rows_that_come_late_are_held_back_too(tiny):
    sampling = Sampling(max_tokens=20, min_tokens=6, stop_token_ids=MANY_ENDS)
    completions = sample(tiny().engine(max_sequences=2), requests_for(PROMPTS, sampling, samples=4))
    assert all(len(completion.token_ids) >= 7 for completion in completions)


def test_ignore_eos_goes_on_after_end_tokens_but_not_after_stop_tokens(tiny):
    model = tiny()
    config = GenerationConfig(eos_token_id=list(MANY_ENDS))
    engine = NativeEngine(
        model.model.config,
        named_weights(model.model),
        NativeSection(),
        model.tokenizer,
        device="cpu",
        dtype=model.model.dtype,
        generation_config=config,
    )
    plain = sample(engine, requests_for(PROMPTS, Sampling(max_tokens=30), samples=4))
    assert any(len(completion.token_ids) < 30 for completion in plain)
    ignoring = sample(engine, requests_for(PROMPTS, Sampling(max_tokens=30, ignore_eos=True), samples=4))
    assert all(len(completion.token_ids) == 30 for completion in ignoring)
    for short, long in zip(plain, ignoring, strict=True):
        assert short.token_ids.tolist() == long.token_ids[: len(short.token_ids)].tolist()


def test_end_tokens_are_the_generation_configs_and_the_tokenizers(tiny):
    model = tiny()
    assert end_token_ids(model.model.config, None, model.tokenizer) == {1}
    assert end_token_ids(model.model.config, GenerationConfig(eos_token_id=[7, 9]), model.tokenizer) == {
        1,
        7,
        9,
    }
    assert end_token_ids(model.model.config, GenerationConfig(eos_token_id=7), model.tokenizer) == {1, 7}


@pytest.mark.parametrize("min_tokens", [0, 9])
def test_stop_texts_end_an_answer_where_they_are_first_complete(tiny, min_tokens):
    tokenizer = tiny().tokenizer
    free = answers(tiny, Sampling(max_tokens=40, ignore_eos=True))
    pairs = [tokenizer.decode(completion.token_ids[20:22]) for completion in free]
    stops = tuple(pair for pair in pairs if "\ufffd" not in pair)
    assert len(stops) > 2
    sampling = Sampling(max_tokens=40, ignore_eos=True, stop=stops, min_tokens=min_tokens)
    stopped = answers(tiny, sampling)
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
        assert cut.finish == ("stop" if ends else "length")
    assert any(completion.finish == "stop" for completion in stopped)


def test_stop_texts_are_found_across_tokens_and_inside_characters(tiny):
    tokenizer = tiny().tokenizer
    stops = StopTexts(tokenizer)

    def first_end(text: str, *wanted: str) -> str | None:
        tokens = tokenizer.encode(text)
        for n in range(1, len(tokens) + 1):
            if stops.completed(tokens[:n], wanted):
                return tokenizer.decode(tokens[:n])
        return None

    assert first_end("one two three", "o t") == "one two t"[: len(first_end("one two three", "o t"))]
    assert "o t" in first_end("one two three", "o t")
    assert first_end("one two three", "four") is None
    assert first_end("a café, and then", "fé") == "a café"
    assert first_end("a €uro and a café", "é", "€u").endswith("€u")
    assert first_end("it ends <|end|> here", "<|end|>") == "it ends <|end|>"
    assert first_end("x" * 50 + "yz", "x" * 40 + "y") == "x" * 50 + "y"
