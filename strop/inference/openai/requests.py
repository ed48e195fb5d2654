"""Conversion of Strop's sampling requests and completions to and from the bodies of OpenAI-compatible APIs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from strop.errors import InferenceError
from strop.types import Completion, FloatArray, IntArray, SampleRequest

_MAX_SEED = 2**63
_TOKEN_ID_PREFIX = "token_id:"
"""Prefix of a token's name in log-probs that have ids in place of texts."""
_NEUTRAL: Mapping[str, Any] = {
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "min_tokens": 0,
    "stop": (),
    "ignore_eos": False,
}
"""Values without an effect, which are not sent: a server may not have the parameter."""
_FILTERS = ("top_p", "top_k", "min_p")
"""Parameters without an effect on a greedy request."""


def completion_body(request: SampleRequest, model: str, stop_token_ids: list[int]) -> dict[str, Any]:
    """Body for `/completions`; the prompt is sent as token ids, and the reply's are asked for."""
    return {
        "model": model,
        "prompt": request.prompt_ids.tolist(),
        "stop_token_ids": stop_token_ids,
        "logprobs": 1,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        **_sampling(request),
    }


def chat_body(request: SampleRequest, model: str, *, keeps_special_tokens: bool) -> dict[str, Any]:
    """Body for `/chat/completions`; `keeps_special_tokens` asks for them in the text of the reply, by a parameter that
    OpenAI's own API does not have.

    Raises `InferenceError` for a prompt that is no conversation without tools.
    """
    if not request.messages:
        raise InferenceError(
            f"request {request.id!r}: rollout.engine.api is chat, which sends conversations without tools; this "
            "prompt is plain text or has tools. Write `api: completions`, which sends its token ids."
        )
    sampling = _sampling(request)
    if request.sampling.stop_token_ids:
        sampling["stop_token_ids"] = list(request.sampling.stop_token_ids)
    if keeps_special_tokens:
        sampling["skip_special_tokens"] = False
    return {"model": model, "messages": [dict(message) for message in request.messages], **sampling}


def parse_reply(
    request: SampleRequest, reply: Any, encode: Callable[[str], IntArray], version: int
) -> Completion:
    """The completion of a reply of either API.

    Without token ids in the reply the text is encoded, and the log-probs are NaN. Raises `InferenceError` for a
    reply that is not in OpenAI's format, or that the server ended early.
    """
    try:
        (choice,) = reply["choices"]
        text = (choice["message"]["content"] if "message" in choice else choice["text"]) or ""
        finish, token_ids, logprobs = choice["finish_reason"], _token_ids(choice), _logprobs(choice)
        if token_ids is None:
            ids = encode(text.encode("utf-8", "replace").decode())
        else:
            ids = np.array(token_ids, dtype=np.int32)
        known = token_ids is not None and logprobs is not None and len(logprobs) == len(ids)
        sampler_logprobs = _float_array(logprobs if known else [np.nan] * len(ids))
        if ids.ndim != 1 or (ids < 0).any() or sampler_logprobs.shape != ids.shape:
            raise ValueError("token ids and log-probs are two lists of numbers")
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise InferenceError(
            f"request {request.id!r}: the server's reply is not in OpenAI's format ({error!r})"
        ) from error
    if finish not in ("stop", "length"):
        raise InferenceError(f"request {request.id!r}: the server ended it early ({finish})")
    return Completion(
        token_ids=ids,
        sampler_logprobs=sampler_logprobs,
        policy_logprobs=None,
        finish_reason=finish,
        version=version,
    )


def _sampling(request: SampleRequest) -> dict[str, Any]:
    sampling = request.sampling
    greedy = sampling.temperature == 0
    body: dict[str, Any] = {"temperature": sampling.temperature, "max_tokens": sampling.max_tokens}
    if not greedy:
        body["seed"] = request.seed % _MAX_SEED
    for name, neutral in _NEUTRAL.items():
        value = getattr(sampling, name)
        if value != neutral and not (greedy and name in _FILTERS):
            body[name] = list(value) if isinstance(value, tuple) else value
    return body


def _token_ids(choice: Mapping[str, Any]) -> list[int] | None:
    """Sampled token ids: vLLM's field, or the names of the tokens in the log-probs; None from other servers."""
    if choice.get("token_ids") is not None:
        return list(choice["token_ids"])
    names = (choice.get("logprobs") or {}).get("tokens") or []
    if not names or not all(name.startswith(_TOKEN_ID_PREFIX) for name in names):
        return None
    return [int(name.removeprefix(_TOKEN_ID_PREFIX)) for name in names]


def _logprobs(choice: Mapping[str, Any]) -> list[float] | None:
    return (choice.get("logprobs") or {}).get("token_logprobs")


def _float_array(values: Any) -> FloatArray:
    return np.array(values, dtype=np.float32)
