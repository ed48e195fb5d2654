"""Conversion of Strop's sampling requests and completions to and from vLLM's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from strop.errors import InferenceError
from strop.inference.stop_tokens import effective_stop_tokens
from strop.inference.token_versions import split_versions, versions_of_spans
from strop.inference.vllm.library import VllmLibrary
from strop.types import Completion, FloatArray, IntArray, SampleRequest, SamplingParams

_MIN_TEMPERATURE = 0.01
"""vLLM replaces lower temperatures by this one."""
_MAX_SEED = 2**63


def check_temperature(request: SampleRequest) -> None:
    """Raise `InferenceError` for a temperature that vLLM would change."""
    temperature = request.sampling.temperature
    if 0 < temperature < _MIN_TEMPERATURE:
        raise InferenceError(
            f"request {request.id!r}: temperature is {temperature}; vLLM samples at {_MIN_TEMPERATURE} or above, "
            "or greedily with 0"
        )


def to_vllm(request: SampleRequest, eos_ids: frozenset[int], vocab_size: int, library: VllmLibrary) -> Any:
    """vLLM's sampling parameters of a request."""
    arguments = sampling_arguments(request, eos_ids, vocab_size)
    return library.sampling_params(**arguments, flat_logprobs=True, output_kind=library.final_output)


def sampling_arguments(request: SampleRequest, eos_ids: frozenset[int], vocab_size: int) -> dict[str, Any]:
    """Sampling parameters of a request by vLLM's names. A greedy request has no filters."""
    sampling = request.sampling
    greedy = sampling.temperature == 0
    stops = sorted(token for token in effective_stop_tokens(sampling, eos_ids) if 0 <= token < vocab_size)
    return {
        "temperature": sampling.temperature,
        "top_p": 1.0 if greedy else sampling.top_p,
        "top_k": 0 if greedy else sampling.top_k,
        "min_p": 0.0 if greedy else sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "seed": None if greedy else request.seed % _MAX_SEED,
        "max_tokens": sampling.max_tokens,
        "min_tokens": sampling.min_tokens,
        # End tokens are stop tokens here, so that both follow Strop's rules about `min_tokens`.
        "ignore_eos": True,
        "stop_token_ids": stops,
        "stop": list(sampling.stop),
        "include_stop_str_in_output": True,
        "detokenize": bool(sampling.stop),
        "skip_special_tokens": False,
        "logprobs": 0,
        "prompt_logprobs": 0 if request.prompt_logprobs else None,
    }


def to_completion(request: SampleRequest, output: Any) -> Completion:
    """The completion of a finished request. Raises `InferenceError` for one that vLLM ended early."""
    (found,) = output.outputs
    spans = [(_version(span.version), span.start, span.end) for span in found.weight_versions]
    completion = completed(
        request,
        np.asarray(found.token_ids, dtype=np.int32),
        np.asarray(found.logprobs.logprobs, dtype=np.float32),
        found.finish_reason,
        spans,
    )
    if (
        not request.prompt_logprobs or found.finish_reason == "abort"
    ):  # perhaps before its prompt was computed
        return completion
    return replace(completion, prompt_logprobs=np.asarray(output.prompt_logprobs.logprobs, dtype=np.float32))


def _version(label: str) -> int:
    """Version of a label of the weights; those that vLLM started with have no number."""
    return 0 if label == "default" else int(label)


def completed(
    request: SampleRequest,
    token_ids: IntArray,
    logprobs: FloatArray,
    finish_reason: str,
    spans: Sequence[tuple[int, int, int]],
) -> Completion:
    """The completion of vLLM's tokens and their log-probs; each span of tokens is (version, start, end).

    Raises `InferenceError` for one that vLLM ended early.
    """
    if finish_reason not in ("stop", "length", "abort"):
        raise InferenceError(f"request {request.id!r}: vLLM ended it early ({finish_reason})")
    version, token_versions = split_versions(versions_of_spans(spans, len(token_ids)), current=0)
    greedy = request.sampling.temperature == 0
    return Completion(
        token_ids=token_ids,
        sampler_logprobs=np.zeros_like(logprobs) if greedy else logprobs,
        policy_logprobs=_policy_logprobs(request.sampling, logprobs),
        finish_reason=finish_reason,  # type: ignore[arg-type]
        version=version,
        token_versions=token_versions,
    )


def _policy_logprobs(sampling: SamplingParams, sampled: FloatArray) -> FloatArray | None:
    """vLLM reports the log-probs of one distribution: the policy's only where nothing changes it."""
    greedy = sampling.temperature == 0
    filtered = not greedy and (sampling.top_p < 1 or sampling.top_k > 0 or sampling.min_p > 0)
    changed = sampling.repetition_penalty != 1 or sampling.min_tokens > 0
    return None if filtered or changed else sampled
