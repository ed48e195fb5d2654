"""Requests to `/v1/completions` and their responses: tokens in, and tokens with log-probs out.

The fields are OpenAI's and vLLM's. A prompt must be token ids: a text would leave its tokens open.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from strop.inference.endpoint.errors import BadRequest
from strop.inference.endpoint.fields import (
    check_keys,
    parse_count,
    parse_flag,
    parse_model,
    parse_number,
    parse_stop,
    parse_token_ids,
)
from strop.types import Completion, IntArray, SamplingParams

_ACCEPTED_KEYS = frozenset(
    (
        "model",
        "prompt",
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
        "return_token_ids",
        "return_tokens_as_token_ids",
        "user",
    )
)
_NEUTRAL_VALUES: Mapping[str, tuple[Any, ...]] = {
    "n": (None, 1),
    "best_of": (None, 1),
    "echo": (None, False),
    "stream": (None, False),
    "suffix": (None, ""),
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
    "logit_bias": (None, {}),
    "include_stop_str_in_output": (None, True),
    "skip_special_tokens": (None, False),
}
_DEFAULT_MAX_TOKENS = 16
"""OpenAI's default of `max_tokens`."""


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """A valid request."""

    model: str
    prompt_ids: IntArray
    """[P]"""
    sampling: SamplingParams
    seed: int | None


@dataclass(frozen=True, slots=True)
class TokenResponse:
    """A model's response to one request."""

    id: str
    text: str
    completion: Completion


class TokenModel(Protocol):
    """A model that completes token ids from event loops of any thread."""

    async def complete(self, request: TokenRequest) -> TokenResponse:
        """Respond to a request. Raises `BadRequest` if that is not possible."""
        ...


def parse_token_request(body: Any) -> TokenRequest:
    """Parse a JSON body. Raises `BadRequest` for invalid values and unsupported features."""
    body = check_keys(body, _ACCEPTED_KEYS, _NEUTRAL_VALUES)
    prompt = parse_token_ids(body, "prompt")
    if not prompt:
        raise BadRequest("prompt must be a list of one or more token ids")
    defaults = SamplingParams()
    temperature, top_p = (
        parse_number(body, "temperature", maximum=100),
        parse_number(body, "top_p", maximum=1),
    )
    penalty = parse_number(body, "repetition_penalty", maximum=100)
    sampling = SamplingParams(
        temperature=defaults.temperature if temperature is None else temperature,
        top_p=defaults.top_p if top_p is None else top_p,
        top_k=parse_count(body, "top_k", minimum=0) or 0,
        min_p=parse_number(body, "min_p", maximum=1) or 0.0,
        repetition_penalty=defaults.repetition_penalty if penalty is None else penalty,
        max_tokens=parse_count(body, "max_tokens") or _DEFAULT_MAX_TOKENS,
        min_tokens=parse_count(body, "min_tokens", minimum=0) or 0,
        stop=parse_stop(body.get("stop")),
        stop_token_ids=tuple(parse_token_ids(body, "stop_token_ids")),
        ignore_eos=parse_flag(body, "ignore_eos"),
    )
    return TokenRequest(
        model=parse_model(body),
        prompt_ids=np.array(prompt, dtype=np.int32),
        sampling=sampling,
        seed=parse_count(body, "seed", minimum=0),
    )


def token_body(request: TokenRequest, response: TokenResponse) -> dict[str, Any]:
    """Body of a response; `token_ids` and the log-probs of the distribution sampled from are always there."""
    completion = response.completion
    ids = completion.token_ids.tolist()
    logprobs = {
        "tokens": [f"token_id:{token}" for token in ids],
        "token_logprobs": completion.sampler_logprobs.tolist(),
        "top_logprobs": None,
        "text_offset": [],
    }
    choice = {
        "index": 0,
        "text": response.text,
        "finish_reason": completion.finish_reason,
        "token_ids": ids,
        "logprobs": logprobs,
    }
    prompt_tokens = len(request.prompt_ids)
    return {
        "id": f"cmpl-{response.id}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": request.model,
        "choices": [choice],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": len(ids),
            "total_tokens": prompt_tokens + len(ids),
        },
    }
