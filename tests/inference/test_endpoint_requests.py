"""Requests to the endpoint as functions: parsers of chats and of completions of token ids, and responses."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strop.inference.endpoint.completions import (
    CompletionResponse,
    completion_response_body,
    parse_completion_request,
)
from strop.inference.endpoint.request import BadRequest, ChatRequest, parse_chat_request, parse_json
from strop.inference.endpoint.response import TextChoice, TokenLogprob
from strop.inference.served_model import ServedModel
from strop.types import SamplingParams
from tests.inference.endpoints import GOOD, tiny_model


def parsed(body: bytes) -> ChatRequest:
    return parse_chat_request(parse_json(body, "the request"))


def user(content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}]}


def calls(*tool_calls: Any) -> dict[str, Any]:
    return {"messages": [{"role": "assistant", "tool_calls": list(tool_calls)}]}


def call(**function: Any) -> dict[str, Any]:
    """One tool call."""
    return calls({"id": "1", "type": "function", "function": function})


WRONG_VALUES: list[tuple[str, dict[str, Any]]] = [
    ("messages is 5", {"messages": 5}),
    ("messages is 'text'", {"messages": "text"}),
    ("messages is {}", {"messages": {}}),
    ("messages is []", {"messages": []}),
    ("messages[0] is 5", {"messages": [5]}),
    ("messages[0] is None", {"messages": [None]}),
    ("messages[0].role is None", {"messages": [{"content": "x"}]}),
    ("messages[0].role is ['user']", {"messages": [{"role": ["user"], "content": "x"}]}),
    ("messages[0].content is None", user(None)),
    ("messages[0].content is 5", user(5)),
    ("must begin with data:image", user([{"type": "image_url", "image_url": {"url": "x"}}])),
    ("it must be an object", user(["x"])),
    ("only text and image_url are supported", user([{"type": "input_audio"}])),
    ("text of a part is 5", user([{"type": "text", "text": 5}])),
    ("tool_call_id is {", {"messages": [{"role": "tool", "content": "x", "tool_call_id": {"a": 1}}]}),
    ("tool_calls is 5", {"messages": [{"role": "assistant", "tool_calls": 5}]}),
    ("tool_calls[0] is 'x'", calls("x")),
    ("function is None", calls({"function": None})),
    ("function.name is None", call(arguments="{}")),
    ("function.name is 5", call(name=5, arguments="{}")),
    ("arguments is not JSON", call(name="f", arguments="{")),
    ("arguments is [1]", call(name="f", arguments="[1]")),
    ("arguments is nested", call(name="f", arguments="[" * 100_000)),
    ("arguments has a lone surrogate", call(name="f", arguments='{"a": "\\ud800"}')),
    ("tools is 'x'", {"tools": "x"}),
    ("tools is '[]'", {"tools": "[]"}),
    ("tools[0] is 5", {"tools": [5]}),
    ("tools[0].function is None", {"tools": [{"type": "function"}]}),
    ("tools[0].function.name is []", {"tools": [{"type": "function", "function": {"name": []}}]}),
    ("parameters is [1]", {"tools": [{"type": "function", "function": {"name": "f", "parameters": [1]}}]}),
    ("stop is 5", {"stop": 5}),
    ("stop is [5]", {"stop": [5]}),
    ("stop is ''", {"stop": ""}),
    ("stop is {", {"stop": {"a": 1}}),
    ("stream_options is 'x'", {"stream_options": "x"}),
    ("include_usage is 'x'", {"stream_options": {"include_usage": "x"}}),
    ("stream is 'x'", {"stream": "x"}),
    ("max_tokens is 0", {"max_tokens": 0}),
    ("max_tokens is -1", {"max_tokens": -1}),
    ("max_tokens is 1.5", {"max_tokens": 1.5}),
    ("max_tokens is True", {"max_tokens": True}),
    ("max_tokens is 1e+308", {"max_tokens": 1e308}),
    ("numbers must be finite", {"max_tokens": float("inf")}),
    ("numbers must be finite", {"temperature": float("nan")}),
    ("temperature is -1", {"temperature": -1}),
    ("temperature is 'warm'", {"temperature": "warm"}),
    ("top_p is 2", {"top_p": 2}),
    ("model is 5", {"model": 5}),
    ("n is 0", {"n": 0}),
    ("n is 129; it must be at most 128", {"n": 129}),
    ("seed is -1", {"seed": -1}),
    ("flavor is not supported", {"flavor": 1}),
    ("logprobs is 3", {"logprobs": 3}),
    ("top_logprobs is 21; it must be at most 20", {"logprobs": True, "top_logprobs": 21}),
    ("top_logprobs is 2; it needs logprobs: true", {"top_logprobs": 2}),
    ("tool_choice: 'required' is not supported", {"tool_choice": "required"}),
]
MALFORMED = {
    "nothing": b"",
    "not JSON": b"{",
    "not an object": b"5",
    "null": b"null",
    "not UTF-8": b'{"model": "\xff"}',
    "lone surrogate": json.dumps(GOOD | user("\ud800")).encode(),
    "lone surrogate in a key": b'{"\\udfff": 1}',
    "encoded surrogate": b'{"model": "\xed\xa0\x80"}',
    "deep arrays": b"[" * 100_000,
    "deep objects": b'{"a":' * 100_000,
    "nested too deep": b'{"messages":' + b"[" * 70 + b"]" * 70 + b"}",
    "number of many digits": b'{"max_tokens": ' + b"9" * 5000 + b"}",
    "infinite exponent": b'{"temperature": 1e999}',
}


@pytest.mark.parametrize(("message", "changes"), WRONG_VALUES, ids=[message for message, _ in WRONG_VALUES])
def test_the_parser_names_wrong_values(message: str, changes: dict[str, Any]) -> None:
    with pytest.raises(BadRequest) as caught:
        parsed(json.dumps(GOOD | changes).encode())
    assert message in str(caught.value) and caught.value.status == 400


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED)
def test_the_parser_rejects_malformed_bodies(body: bytes) -> None:
    with pytest.raises(BadRequest):
        parsed(body)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(
    [*GOOD, "tools", "stop", "stream", "stream_options", "temperature", "top_p", "max_completion_tokens"]
)
MESSAGE = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["system", "user", "assistant", "tool"]) | JSON,
        "content": st.text(max_size=8) | JSON,
        "tool_calls": JSON | st.lists(st.fixed_dictionaries({}, optional={"id": JSON, "function": JSON})),
        "tool_call_id": JSON,
        "name": JSON,
    },
)
BODIES = st.one_of(
    JSON,
    st.dictionaries(KEYS, JSON, max_size=4).map(lambda changes: GOOD | changes),
    st.lists(MESSAGE, min_size=1, max_size=3).map(lambda messages: GOOD | {"messages": messages}),
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedModel]:
    with tiny_model(tmp_path_factory.mktemp("endpoint") / "model") as model:
        yield model


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(BODIES, st.integers(0, 50))
def test_no_generated_body_is_an_error_of_parser_or_model(model: ServedModel, body: Any, cut: int) -> None:
    text = json.dumps(body).encode()
    for sent in (text, text[: len(text) * cut // 50]):
        with contextlib.suppress(BadRequest):
            asyncio.run(model.chat(parsed(sent)))


LEAST = {"model": "m", "prompt": [5, 6]}


def test_a_request_of_tokens_has_openais_defaults():
    parsed = parse_completion_request(LEAST)
    (prompt,) = parsed.prompts
    assert not isinstance(prompt, str) and prompt.tolist() == [5, 6]
    assert (parsed.seed, parsed.n, parsed.echo, parsed.logprobs, parsed.samples) == (
        None,
        1,
        False,
        None,
        True,
    )
    assert parsed.sampling == SamplingParams(max_tokens=16)


def test_a_request_of_tokens_has_all_parameters_of_sampling():
    values = {"temperature": 0.5, "top_p": 0.9, "top_k": 3, "min_p": 0.1, "repetition_penalty": 1.5}
    values |= {"max_tokens": 9, "min_tokens": 2, "ignore_eos": True}
    parsed = parse_completion_request(LEAST | values | {"stop": "a", "stop_token_ids": [7], "seed": 0})
    assert parsed.sampling == SamplingParams(**values, stop=("a",), stop_token_ids=(7,))
    assert parsed.seed == 0


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"prompt": [[5, 6], []]}, "prompt is []; it must be text, a list of one or more token ids"),
        ({"prompt": [True]}, "prompt is True"),
        ({"prompt": [-1]}, "prompt is [-1]"),
        ({"prompt": [2**31]}, "one or more token ids"),
        ({"prompt": ["a", 5]}, "prompt is 5"),
        ({"prompt": []}, "prompt has 0 texts"),
        ({"prompt": None}, "prompt is None"),
        ({"stop_token_ids": [1.5]}, "stop_token_ids is"),
        ({"max_tokens": 0}, "max_tokens is 0; it must be 1 or more, or 0 together with echo: true"),
        ({"top_k": -1}, "top_k is -1; it must be a whole number, 0 or more"),
        ({"min_p": "x"}, "min_p is 'x'"),
        ({"best_of": 2}, "best_of: 2 is not supported"),
        ({"logprobs": 21}, "logprobs is 21; it must be at most 20"),
        ({"logprob": 1}, "logprob is not supported"),
        ({"model": 5}, "model is 5"),
    ],
)
def test_the_parser_names_wrong_values_of_a_request_of_tokens(changes: dict[str, Any], fault: str):
    with pytest.raises(BadRequest) as caught:
        parse_completion_request(LEAST | changes)
    assert fault in str(caught.value)


def test_prompts_are_texts_or_tokens_one_or_several():
    for prompt, expected in (
        ("a b", ["a b"]),
        (["a", "b"], ["a", "b"]),
        ([5, 6], [[5, 6]]),
        ([[5], [6, 7]], [[5], [6, 7]]),
    ):
        found = parse_completion_request(LEAST | {"prompt": prompt}).prompts
        assert [each if isinstance(each, str) else each.tolist() for each in found] == expected


def test_a_response_of_tokens_has_token_ids_and_their_logprobs():
    tokens = (TokenLogprob(7, "a", -0.5), TokenLogprob(8, "b", -1.5, (("c", -1.0), ("b", -1.5), ("c", -2.0))))
    response = CompletionResponse("1", (TextChoice("ab", "length", tokens),), 2, 2)
    request = parse_completion_request(LEAST | {"return_tokens_as_token_ids": True})
    body = completion_response_body(request, response)
    (choice,) = body["choices"]
    assert (choice["text"], choice["token_ids"], choice["finish_reason"]) == ("ab", [7, 8], "length")
    assert choice["logprobs"]["token_logprobs"] == [-0.5, -1.5]
    assert choice["logprobs"]["tokens"] == ["token_id:7", "token_id:8"]
    assert choice["logprobs"]["top_logprobs"] is None
    assert body["usage"] == {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4}
    (choice,) = completion_response_body(parse_completion_request(LEAST | {"logprobs": 2}), response)[
        "choices"
    ]
    assert choice["logprobs"]["tokens"] == ["a", "b"] and choice["logprobs"]["text_offset"] == [0, 1]
    assert choice["logprobs"]["top_logprobs"] == [{}, {"c": -1.0, "b": -1.5}]
