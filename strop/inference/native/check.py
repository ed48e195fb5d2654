"""Requests that cannot be taken as they are."""

from __future__ import annotations

from strop.errors import InferenceError
from strop.types import SampleRequest


def check_request(request: SampleRequest, vocab_size: int, longest: int | None) -> None:
    """Raises `InferenceError` with what is wrong, and what would be right."""
    wrong = _wrong_prompt(request, vocab_size) or _wrong_sampling(request) or _wrong_length(request, longest)
    if wrong is not None:
        raise InferenceError(f"request {request.id!r}: {wrong}")


def _wrong_prompt(request: SampleRequest, vocab_size: int) -> str | None:
    prompt = request.prompt_ids
    if prompt.ndim != 1 or len(prompt) == 0:
        return f"the prompt has shape {prompt.shape}; it must be a list of one token or more"
    low, high = int(prompt.min()), int(prompt.max())
    if low < 0 or high >= vocab_size:
        bad = low if low < 0 else high
        return f"the prompt has token {bad}, but the model's tokens are 0 to {vocab_size - 1}"
    if request.seed < 0:
        return f"the seed is {request.seed}; write 0 or more"
    return None


def _wrong_sampling(request: SampleRequest) -> str | None:
    sampling = request.sampling
    rules = (
        ("temperature", sampling.temperature >= 0, "0 (greedy) or more"),
        ("top_p", 0 < sampling.top_p <= 1, "above 0 and at most 1"),
        ("top_k", sampling.top_k >= 0, "0 (all) or more"),
        ("min_p", 0 <= sampling.min_p < 1, "0 or more and below 1"),
        ("repetition_penalty", sampling.repetition_penalty > 0, "above 0"),
        ("max_tokens", sampling.max_tokens >= 1, "1 or more"),
        ("min_tokens", 0 <= sampling.min_tokens < sampling.max_tokens, "0 or more and below max_tokens"),
        ("stop", all(sampling.stop), "texts that are not empty"),
    )
    for name, holds, wanted in rules:
        if not holds:
            return f"{name} is {getattr(sampling, name)!r}; it must be {wanted}"
    return None


def _wrong_length(request: SampleRequest, longest: int | None) -> str | None:
    total = len(request.prompt_ids) + request.sampling.max_tokens
    if longest is None or total <= longest:
        return None
    return (
        f"{len(request.prompt_ids)} prompt tokens and max_tokens {request.sampling.max_tokens} are {total} "
        f"together, but the model has no positions beyond {longest}; shorten either"
    )
