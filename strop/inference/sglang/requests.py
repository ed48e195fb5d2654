"""Conversion of Strop's sampling requests and completions to and from SGLang's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from strop.errors import InferenceError
from strop.inference.completion import effective_stop_tokens, split_versions, versions_of_spans
from strop.types import Completion, FloatArray, SampleRequest, SamplingParams

_MAX_SEED = 2**63


@dataclass(frozen=True, slots=True)
class StopPlan:
    """Which ends of a completion SGLang finds itself.

    SGLang tests for stop strings before `min_new_tokens`, and for no stop token at all under `ignore_eos`. Such a
    completion is sampled up to its maximum length, and cut afterwards.
    """

    tokens: frozenset[int]
    """Stop tokens that are passed to SGLang, the model's end tokens included."""
    strings: tuple[str, ...]
    """Stop strings that are passed to SGLang."""
    cut_tokens: frozenset[int]
    """Stop tokens at which the completion is cut afterwards."""
    cut_strings: tuple[str, ...]
    """Stop strings after which the completion is cut afterwards."""


def stop_plan(sampling: SamplingParams, eos_ids: frozenset[int], vocab_size: int) -> StopPlan:
    """The plan for a request; tokens beyond the vocabulary are never sampled and are left out."""
    stops = frozenset(t for t in effective_stop_tokens(sampling, eos_ids) if 0 <= t < vocab_size)
    late = sampling.min_tokens > 0
    return StopPlan(
        tokens=frozenset() if sampling.ignore_eos else stops,
        strings=() if late else sampling.stop,
        cut_tokens=stops if sampling.ignore_eos else frozenset(),
        cut_strings=sampling.stop if late else (),
    )


def check_support(request: SampleRequest) -> None:
    """Raise `InferenceError` for a request whose distribution SGLang would change."""
    sampling = request.sampling
    if sampling.ignore_eos and sampling.min_tokens > 0 and sampling.stop_token_ids:
        raise InferenceError(
            f"request {request.id!r}: with ignore_eos, min_tokens and stop_token_ids SGLang also excludes the end "
            "token at first; remove one of the three"
        )
    if sampling.repetition_penalty != 1:
        raise InferenceError(
            f"request {request.id!r}: repetition_penalty is {sampling.repetition_penalty}; SGLang's penalty leaves out "
            "the prompt's tokens, so write 1, or use another engine"
        )


def is_filtered(sampling: SamplingParams) -> bool:
    """Whether tokens are drawn from a part of the distribution only."""
    return sampling.temperature > 0 and (sampling.top_p < 1 or sampling.top_k > 0 or sampling.min_p > 0)


def to_sglang(request: SampleRequest, plan: StopPlan, vocab_size: int) -> dict[str, Any]:
    """SGLang's arguments of a request, without its id. A greedy request has no filters.

    SGLang gives the log-probs of the policy, and with a sampling mask those of the filtered distribution too, for
    which it needs a top_k.
    """
    sampling = request.sampling
    filtered = is_filtered(sampling)
    all_tokens = vocab_size if filtered else -1
    return {
        "input_ids": request.prompt_ids.tolist(),
        "return_logprob": True,
        "logprob_start_len": 0 if request.prompt_logprobs else -1,
        "return_sampling_mask": filtered,
        "sampling_params": {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p if filtered else 1.0,
            "top_k": min(sampling.top_k or vocab_size, vocab_size) if filtered else all_tokens,
            "min_p": sampling.min_p if filtered else 0.0,
            "sampling_seed": request.seed % _MAX_SEED,
            "max_new_tokens": sampling.max_tokens,
            "min_new_tokens": 0 if not plan.tokens else sampling.min_tokens,
            "ignore_eos": not plan.tokens,
            "stop_token_ids": sorted(plan.tokens) or None,
            "stop": list(plan.strings),
            "no_stop_trim": True,
            "skip_special_tokens": False,
        },
    }


def to_completion(
    request: SampleRequest, output: Mapping[str, Any], version_of: Callable[[str], int]
) -> Completion:
    """The completion of a finished request, as SGLang ended it; `version_of` gives the version of a label of the
    weights.

    Raises `InferenceError` for one that SGLang aborted or gave fewer tokens than it may have.
    """
    info = output["meta_info"]
    logprobs = info["output_token_logprobs"]
    reason = info["finish_reason"]["type"]
    sampling = request.sampling
    if reason not in ("stop", "length", "abort") or (
        reason == "length" and len(logprobs) != sampling.max_tokens
    ):
        raise InferenceError(
            f"request {request.id!r}: SGLang ended it after {len(logprobs)} of {sampling.max_tokens} tokens "
            f"({info['finish_reason']})"
        )
    # A request that is aborted while it waits has no versions and no sampling log-probs.
    labels = info.get("weight_versions", ())
    spans = [(version_of(span["version"]), span["start"], span["end"]) for span in labels]
    version, token_versions = split_versions(
        versions_of_spans(spans, len(logprobs)), current=spans[0][0] if spans else 0
    )
    policy = np.asarray([logprob for logprob, *_ in logprobs], dtype=np.float32)
    sampled = policy
    if sampling.temperature == 0:
        sampled = np.zeros_like(policy)
    elif is_filtered(sampling) and logprobs:
        sampled = np.asarray(info["output_token_sampling_logprobs"], dtype=np.float32)
    return Completion(
        token_ids=np.asarray([token for _, token, *_ in logprobs], dtype=np.int32),
        sampler_logprobs=sampled,
        policy_logprobs=None if sampling.min_tokens > 0 else policy,
        finish_reason=reason,
        version=version,
        token_versions=token_versions,
        prompt_logprobs=_prompt_logprobs(info) if request.prompt_logprobs else None,
    )


def _prompt_logprobs(info: Mapping[str, Any]) -> FloatArray:
    """[P - 1] Log-probs of the prompt's tokens; SGLang gives none for the first."""
    return np.asarray([logprob for logprob, *_ in info["input_token_logprobs"][1:]], dtype=np.float32)
