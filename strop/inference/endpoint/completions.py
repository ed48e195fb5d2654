"""Requests to `/v1/completions` and their responses: text or token ids in, text and tokens with log-probs out.

The fields are OpenAI's and vLLM's.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from strop.inference.endpoint.request import (
    MAX_CHOICES,
    MAX_TOP_LOGPROBS,
    BadRequest,
    check_keys,
    parse_count,
    parse_flag,
    parse_include_usage,
    parse_model,
    parse_number,
    parse_stop,
    parse_token_ids,
    quote,
)
from strop.inference.endpoint.response import TextCallback, TextChoice
from strop.types import IntArray, SamplingParams

_ACCEPTED_KEYS = frozenset(
    (
        "model",
        "prompt",
        "n",
        "echo",
        "stream",
        "stream_options",
        "max_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "repetition_penalty",
        "min_tokens",
        "stop",
        "stop_token_ids",
        "ignore_eos",
        "seed",
        "logprobs",
        "include_stop_str_in_output",
        "return_token_ids",
        "return_tokens_as_token_ids",
        "user",
    )
)
_NEUTRAL_VALUES: Mapping[str, tuple[Any, ...]] = {
    "best_of": (None, 1),
    "suffix": (None, ""),
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
    "logit_bias": (None, {}),
    "skip_special_tokens": (None, False),
}
_DEFAULT_MAX_TOKENS = 16
"""OpenAI's default of `max_tokens`."""
_MAX_PROMPTS = 2048
"""Maximum number of prompts in one request, OpenAI's."""


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A valid request."""

    model: str
    prompts: tuple[str | IntArray, ...]
    """Texts, or token ids [P]; each has `n` choices."""
    sampling: SamplingParams
    """Parameters of a choice; its `max_tokens` is 1 where `samples` is False."""
    seed: int | None
    n: int = 1
    samples: bool = True
    """Whether tokens are sampled: False for `max_tokens` 0, which needs `echo`."""
    echo: bool = False
    """Whether a choice begins with its prompt."""
    logprobs: int | None = None
    """Number of most likely tokens to report for each token; None if no log-probs are asked for."""
    keeps_stop: bool = False
    """Whether a stop text that ends a choice is a part of it."""
    names_ids: bool = False
    """Whether tokens are named `token_id:` with their id, in place of their texts."""
    stream: bool = False
    include_usage: bool = False


@dataclass(frozen=True, slots=True)
class CompletionResponse:
    """A model's response to one request."""

    id: str
    choices: tuple[TextChoice, ...]
    """Choices of the first prompt, then those of the second, and so on."""
    prompt_tokens: int
    completion_tokens: int


class CompletionModel(Protocol):
    """A model that completes texts and token ids from event loops of any thread."""

    async def complete(
        self, request: CompletionRequest, on_text: TextCallback | None = None
    ) -> CompletionResponse:
        """Respond to a request. Raises `BadRequest` if that is not possible."""
        ...


def parse_completion_request(body: Any) -> CompletionRequest:
    """Parse a JSON body. Raises `BadRequest` for invalid values and unsupported features."""
    body = check_keys(body, _ACCEPTED_KEYS, _NEUTRAL_VALUES)
    defaults = SamplingParams()
    temperature, top_p = (
        parse_number(body, "temperature", maximum=100),
        parse_number(body, "top_p", maximum=1),
    )
    penalty = parse_number(body, "repetition_penalty", maximum=100)
    max_tokens = parse_count(body, "max_tokens", minimum=0)
    echo = parse_flag(body, "echo")
    if max_tokens == 0 and not echo:
        raise BadRequest("max_tokens is 0; it must be 1 or more, or 0 together with echo: true")
    sampling = SamplingParams(
        temperature=defaults.temperature if temperature is None else temperature,
        top_p=defaults.top_p if top_p is None else top_p,
        top_k=parse_count(body, "top_k", minimum=0) or 0,
        min_p=parse_number(body, "min_p", maximum=1) or 0.0,
        repetition_penalty=defaults.repetition_penalty if penalty is None else penalty,
        max_tokens=_DEFAULT_MAX_TOKENS if max_tokens is None else max(max_tokens, 1),
        min_tokens=parse_count(body, "min_tokens", minimum=0) or 0,
        stop=parse_stop(body.get("stop")),
        stop_token_ids=tuple(parse_token_ids(body, "stop_token_ids")),
        ignore_eos=parse_flag(body, "ignore_eos"),
    )
    return CompletionRequest(
        model=parse_model(body),
        prompts=_parse_prompts(body.get("prompt")),
        sampling=sampling,
        seed=parse_count(body, "seed", minimum=0),
        n=parse_count(body, "n", maximum=MAX_CHOICES) or 1,
        samples=max_tokens != 0,
        echo=echo,
        logprobs=parse_count(body, "logprobs", minimum=0, maximum=MAX_TOP_LOGPROBS),
        keeps_stop=parse_flag(body, "include_stop_str_in_output"),
        names_ids=parse_flag(body, "return_tokens_as_token_ids"),
        stream=parse_flag(body, "stream"),
        include_usage=parse_include_usage(body),
    )


def completion_response_body(request: CompletionRequest, response: CompletionResponse) -> dict[str, Any]:
    """Body of a response without streaming."""
    choices = [_choice(request, number, each) for number, each in enumerate(response.choices)]
    return {**_head(request, response.id), "choices": choices, "usage": _usage(response)}


class CompletionStream:
    """Chunks of a streamed response: parts of texts while they grow, and the rest when all are complete."""

    def __init__(self, request: CompletionRequest) -> None:
        self._request = request
        self._head = _head(request, secrets.token_hex(8))
        self._sent: dict[int, str] = {}
        """Text so far of each choice that has begun."""

    def text(self, index: int, text: str) -> Iterator[dict[str, Any]]:
        """Chunks of a part of a choice's text."""
        self._sent[index] = self._sent.get(index, "") + text
        choice = {"index": index, "text": text, "finish_reason": None, "logprobs": None}
        yield {**self._head, "choices": [choice]}

    def rest(self, response: CompletionResponse) -> Iterator[dict[str, Any]]:
        """Chunks of what was not sent yet: a choice's last one has the tokens of all its text."""
        for index, each in enumerate(response.choices):
            sent = self._sent.get(index, "")
            if not each.text.startswith(sent):
                raise ValueError(f"choice {index} does not begin with the text that was sent")
            choice = _choice(self._request, index, each) | {"text": each.text[len(sent) :]}
            yield {**self._head, "choices": [choice]}
        if self._request.include_usage:
            yield {**self._head, "choices": [], "usage": _usage(response)}


def _parse_prompts(value: Any) -> tuple[str | IntArray, ...]:
    prompts: Sequence[Any] = value if isinstance(value, list) else [value]
    if prompts and all(type(item) is int for item in prompts):
        prompts = [value]
    if not 0 < len(prompts) <= _MAX_PROMPTS:
        raise BadRequest(f"prompt has {len(prompts)} texts; it must have 1 to {_MAX_PROMPTS}")
    return tuple(_parse_prompt(item) for item in prompts)


def _parse_prompt(value: Any) -> str | IntArray:
    if isinstance(value, str):
        return value
    is_list = isinstance(value, list) and len(value) > 0
    if not is_list or not all(type(token) is int and 0 <= token < 2**31 for token in value):
        raise BadRequest(
            f"prompt is {quote(value)}; it must be text, a list of one or more token ids, or a list of such"
        )
    return np.array(value, dtype=np.int32)


def _choice(request: CompletionRequest, index: int, choice: TextChoice) -> dict[str, Any]:
    """A choice; its `token_ids` and the log-probs of its tokens are always there."""
    tokens = choice.tokens
    named = [f"token_id:{each.token}" if request.names_ids else each.text for each in tokens]
    offsets = [0]
    for each in tokens:
        offsets.append(offsets[-1] + len(each.text))
    # Of tokens with the same text, such as parts of characters, the most likely one is reported: it is written last.
    top = [None if each.logprob is None else dict(reversed(each.top)) for each in tokens]
    return {
        "index": index,
        "text": choice.text,
        "finish_reason": choice.finish_reason,
        "token_ids": [each.token for each in tokens],
        "logprobs": {
            "tokens": named,
            "token_logprobs": [each.logprob for each in tokens],
            "top_logprobs": top if request.logprobs else None,
            "text_offset": offsets[:-1],
        },
    }


def _head(request: CompletionRequest, identity: str) -> dict[str, Any]:
    return {
        "id": f"cmpl-{identity}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": request.model,
    }


def _usage(response: CompletionResponse) -> dict[str, int]:
    return {
        "prompt_tokens": response.prompt_tokens,
        "completion_tokens": response.completion_tokens,
        "total_tokens": response.prompt_tokens + response.completion_tokens,
    }
