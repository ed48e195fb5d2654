"""Requests for completions of token ids, and their responses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from strop.inference.endpoint.errors import BadRequest
from strop.inference.endpoint.token_completions import TokenResponse, parse_token_request, token_body
from strop.types import Completion, SamplingParams

LEAST = {"model": "m", "prompt": [5, 6]}


def test_a_request_has_openais_defaults():
    parsed = parse_token_request(LEAST)
    assert parsed.prompt_ids.tolist() == [5, 6] and parsed.seed is None
    assert parsed.sampling == SamplingParams(max_tokens=16)


def test_all_parameters_of_sampling():
    values = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 3,
        "min_p": 0.1,
        "repetition_penalty": 1.5,
        "max_tokens": 9,
        "min_tokens": 2,
        "ignore_eos": True,
    }
    parsed = parse_token_request(LEAST | values | {"stop": "a", "stop_token_ids": [7], "seed": 0})
    assert parsed.sampling == SamplingParams(**values, stop=("a",), stop_token_ids=(7,))
    assert parsed.seed == 0


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"prompt": "text"}, "prompt is 'text'; it must be a list of token ids"),
        ({"prompt": [[5, 6]]}, "must be a list of token ids"),
        ({"prompt": [True]}, "must be a list of token ids"),
        ({"prompt": [-1]}, "must be a list of token ids"),
        ({"prompt": [2**31]}, "must be a list of token ids"),
        ({"prompt": []}, "one or more token ids"),
        ({"prompt": None}, "one or more token ids"),
        ({"stop_token_ids": [1.5]}, "stop_token_ids is"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"top_k": -1}, "top_k is -1; it must be a whole number, 0 or more"),
        ({"min_p": "x"}, "min_p is 'x'"),
        ({"n": 2}, "n: 2 is not supported"),
        ({"stream": True}, "stream: True is not supported"),
        ({"logprob": 1}, "logprob is not supported"),
        ({"model": 5}, "model is 5"),
    ],
)
def test_invalid_values(changes: dict[str, Any], fault: str):
    with pytest.raises(BadRequest) as caught:
        parse_token_request(LEAST | changes)
    assert fault in str(caught.value)


def test_a_response_has_token_ids_and_their_logprobs():
    logprobs = np.array([-0.5, -1.5], dtype=np.float32)
    completion = Completion(np.array([7, 8], dtype=np.int32), logprobs, None, "length", 0)
    body = token_body(parse_token_request(LEAST), TokenResponse("1", "ab", completion))
    (choice,) = body["choices"]
    assert (choice["text"], choice["token_ids"], choice["finish_reason"]) == ("ab", [7, 8], "length")
    assert choice["logprobs"]["token_logprobs"] == [-0.5, -1.5]
    assert choice["logprobs"]["tokens"] == ["token_id:7", "token_id:8"]
    assert body["usage"] == {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4}
