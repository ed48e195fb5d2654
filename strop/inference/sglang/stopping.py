"""Cut of a completion at the end that SGLang did not look for."""

from __future__ import annotations

from dataclasses import replace

from strop.inference.native.stopping import StopStringMatcher
from strop.inference.sglang.requests import StopPlan
from strop.types import Completion, SamplingParams


def cut_at_stop(
    completion: Completion, plan: StopPlan, sampling: SamplingParams, matcher: StopStringMatcher
) -> Completion:
    """The completion up to the first stop token or stop string of the plan's cuts after `min_tokens`."""
    tokens = completion.token_ids.tolist()
    for length in range(sampling.min_tokens + 1, len(tokens) + 1):
        stopped = tokens[length - 1] in plan.cut_tokens
        if plan.cut_strings and not stopped:
            window = tokens[max(0, length - matcher.window(plan.cut_strings)) : length]
            stopped = matcher.completes_stop(window, plan.cut_strings)
        if stopped:
            return _first(completion, length)
    return completion


def _first(completion: Completion, length: int) -> Completion:
    policy = completion.policy_logprobs
    return replace(
        completion,
        token_ids=completion.token_ids[:length],
        sampler_logprobs=completion.sampler_logprobs[:length],
        policy_logprobs=None if policy is None else policy[:length],
        finish_reason="stop",
    )
