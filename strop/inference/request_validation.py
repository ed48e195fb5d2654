"""Validation of sampling requests, the same for every engine."""

from __future__ import annotations

from collections.abc import Callable

from strop.errors import InferenceError
from strop.protocols import ImageProcessor
from strop.types import SampleRequest

_MIN_TEMPERATURE = 1e-6
"""Logits divided by a much lower temperature exceed float32."""


def validate_request(
    request: SampleRequest,
    vocab_size: int,
    max_sequence_tokens: int | None,
    image_processor: Callable[[], ImageProcessor] | None = None,
) -> None:
    """Raise `InferenceError` with the reason if a request is invalid.

    `max_sequence_tokens` limits prompt and completion together; None sets no limit. `image_processor` is that of the
    engine's model; None for an engine or a model without images.
    """
    fault = _prompt_fault(request, vocab_size) or _sampling_fault(request)
    fault = fault or _length_fault(request, max_sequence_tokens)
    if request.media:
        fault = fault or _image_fault(request, image_processor)
    if fault is not None:
        raise InferenceError(f"request {request.id!r}: {fault}")


def _image_fault(request: SampleRequest, image_processor: Callable[[], ImageProcessor] | None) -> str | None:
    if image_processor is None:
        return (
            "it has images, which this engine does not take for this model; write rollout.engine: native, and use a "
            "model that reads images"
        )
    processor = image_processor()
    # A pad token that the model itself sampled in an earlier turn is one too many.
    pads = int((request.prompt_ids == processor.image_token_id).sum())
    features = sum(processor.feature_count(image.width, image.height) for image in request.media)
    if pads == features:
        return None
    return f"the prompt has {pads} image tokens, but its {len(request.media)} images have {features}"


def _prompt_fault(request: SampleRequest, vocab_size: int) -> str | None:
    prompt = request.prompt_ids
    if prompt.ndim != 1 or len(prompt) == 0:
        return f"the prompt has shape {prompt.shape}; it must be a list of one token or more"
    low, high = int(prompt.min()), int(prompt.max())
    if low < 0 or high >= vocab_size:
        invalid = low if low < 0 else high
        return f"the prompt has token {invalid}, but the model's tokens are 0 to {vocab_size - 1}"
    if not 0 <= request.seed < 2**64:
        return f"the seed is {request.seed}; it must be from 0 to {2**64 - 1}"
    return None


def _sampling_fault(request: SampleRequest) -> str | None:
    sampling = request.sampling
    is_sampled = sampling.temperature >= _MIN_TEMPERATURE
    rules = (
        (
            "temperature",
            is_sampled or sampling.temperature == 0,
            f"0 (greedy), or at least {_MIN_TEMPERATURE}",
        ),
        ("top_p", 0 < sampling.top_p <= 1, "above 0 and at most 1"),
        ("top_k", sampling.top_k >= 0, "0 (all) or more"),
        ("min_p", 0 <= sampling.min_p < 1, "0 or more and below 1"),
        ("repetition_penalty", sampling.repetition_penalty > 0, "above 0"),
        ("max_tokens", sampling.max_tokens >= 1, "1 or more"),
        ("min_tokens", 0 <= sampling.min_tokens < sampling.max_tokens, "0 or more and below max_tokens"),
        ("stop", all(sampling.stop), "strings that are not empty"),
    )
    for name, is_valid, expected in rules:
        if not is_valid:
            return f"{name} is {getattr(sampling, name)!r}; it must be {expected}"
    return None


def _length_fault(request: SampleRequest, max_sequence_tokens: int | None) -> str | None:
    total = len(request.prompt_ids) + request.sampling.max_tokens
    if max_sequence_tokens is None or total <= max_sequence_tokens:
        return None
    return (
        f"{len(request.prompt_ids)} prompt tokens and max_tokens {request.sampling.max_tokens} are {total} "
        f"tokens, but the model has only {max_sequence_tokens} positions; shorten either"
    )


def refuse_top_logprobs(request: SampleRequest, engine: str) -> None:
    """Raise `InferenceError` for a request of the most likely tokens, for an engine that does not report them."""
    if request.top_logprobs:
        raise InferenceError(f"request {request.id!r}: {engine} does not report the most likely tokens")


def refuse_prompt_logprobs(request: SampleRequest, engine: str) -> None:
    """Raise `InferenceError` for a request of the prompt's log-probs, for an engine that does not compute them."""
    if request.prompt_logprobs:
        raise InferenceError(f"request {request.id!r}: {engine} does not compute log-probs of prompts")
