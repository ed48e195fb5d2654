"""Sampling from an engine whose weights are replaced while completions are running."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from strop.config.schema.buffer import PauseMode
from strop.errors import InferenceError
from strop.inference.completion import StopStringMatcher, cut_at_stop, split_versions
from strop.protocols import EngineCapabilities, InferenceEngine, TrainerAddress
from strop.seeds import derive_seed
from strop.types import Completion, FloatArray, IntArray, SampleRequest
from strop.workers.threads import EventLoopThread
from strop.workers.waiting import StopCheck, wait_until

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


_POLL_SECONDS = 0.01


class InterruptibleSampler:
    """Passes requests to an engine, and handles running completions at each load as the pause mode says.

    A load that fails leaves the engine paused: nothing is sampled from a mixture of two versions. The next load
    continues.
    """

    def __init__(
        self,
        engine: InferenceEngine,
        event_loop: EventLoopThread,
        tokenizer: PreTrainedTokenizerBase,
        mode: PauseMode,
        *,
        timeout_seconds: float,
        check: StopCheck,
    ) -> None:
        """`event_loop` is that of all calls of `sample`. Under `finish` a load waits at most `timeout_seconds`;
        `check` is called during the wait, and may raise."""
        self._engine = engine
        self._event_loop = event_loop
        self._matcher = StopStringMatcher(tokenizer)
        self._mode = mode
        self._timeout_seconds = timeout_seconds
        self._check = check
        self._admitting = asyncio.Event()
        """Set while requests are passed to the engine; changed in the event loop."""
        self._admitting.set()
        self._running = 0
        """Number of calls that the engine has."""

    @property
    def capabilities(self) -> EngineCapabilities:
        """Features of the engine."""
        return self._engine.capabilities

    async def sample(self, requests: Sequence[SampleRequest]) -> list[Completion]:
        """Completions in the order of the requests. Aborted ones are continued, or sampled again."""
        parts: list[list[Completion]] = [[] for _ in requests]
        pending = list(range(len(requests)))
        while pending:
            completions = await self._pass_on([self._next(requests[each], parts[each]) for each in pending])
            for each, completion in zip(pending, completions, strict=True):
                parts[each].append(completion)
            pending = [each for each in pending if parts[each][-1].finish_reason == "abort"]
            if self._mode == "restart":
                for each in pending:
                    parts[each].clear()
        return [joined(request, part, self._matcher) for request, part in zip(requests, parts, strict=True)]

    def load(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Load weights in the event loop, between two steps of the engine; for any other thread.

        Raises what the engine raises. Under `finish` it first waits for running completions, and raises
        `InferenceError` after the timeout.
        """
        self._load(lambda: self._engine.load(weights, version))

    def load_process_group(self, trainer: TrainerAddress, version: int) -> None:
        """Have the engine receive a version from the trainer; see `load`."""
        self._load(lambda: self._engine.load_process_group(trainer, version))

    def _load(self, load: Callable[[], None]) -> None:
        self._event_loop.call(self._admitting.clear)
        match self._mode:
            case "keep":
                self._engine.pause()
            case "finish":
                self._wait_for_running()
            case "abort" | "restart":
                self._engine.abort()
        self._event_loop.call(load)
        if self._mode == "keep":
            self._engine.resume()
        self._event_loop.call(self._admitting.set)

    def _next(self, request: SampleRequest, parts: Sequence[Completion]) -> SampleRequest:
        """The request for what `parts` lack."""
        for part in parts:
            request = continuation(request, part.token_ids)
        return request

    async def _pass_on(self, requests: Sequence[SampleRequest]) -> list[Completion]:
        await self._admitting.wait()
        self._running += 1
        try:
            return await self._engine.sample(requests)
        finally:
            self._running -= 1

    def _wait_for_running(self) -> None:
        finished = wait_until(
            lambda: self._running == 0,
            "running completions, before a load of weights",
            timeout_seconds=self._timeout_seconds,
            interval_seconds=_POLL_SECONDS,
            check=self._check,
        )
        if not finished:
            raise InferenceError(
                f"Completions that were running before a load of weights have not ended in {self._timeout_seconds:g} "
                "s. `synchronizer.style.pause_mode: finish` waits for them; write `abort` or `keep`, or a larger "
                "`synchronizer.timeout_seconds`."
            )


def continuation(request: SampleRequest, tokens: IntArray) -> SampleRequest:
    """The request for the rest of a completion whose first tokens [C] are there.

    It has a seed of its own. Raises `ValueError` if no token remains to be sampled.
    """
    if len(tokens) == 0:
        return request
    sampling, count = request.sampling, len(tokens)
    if count >= sampling.max_tokens:
        raise ValueError(f"{count} of {sampling.max_tokens} tokens have been sampled")
    remaining = replace(
        sampling, max_tokens=sampling.max_tokens - count, min_tokens=max(0, sampling.min_tokens - count)
    )
    return replace(
        request,
        prompt_ids=np.concatenate([request.prompt_ids, tokens]),
        sampling=remaining,
        seed=derive_seed(request.seed, "continuation", count),
        messages=(),
        prompt_logprobs=False,
    )


def joined(request: SampleRequest, parts: Sequence[Completion], matcher: StopStringMatcher) -> Completion:
    """The completion of a request from its parts in order.

    It ends at a stop string that begins in one part and ends in the next, which no engine looks for.
    """
    *_, last = parts
    sampled = [part for part in parts if len(part.token_ids)] or [last]
    versions = np.concatenate([_versions(part) for part in sampled])
    version, token_versions = split_versions(versions, current=last.version)
    whole = Completion(
        token_ids=np.concatenate([part.token_ids for part in sampled]),
        sampler_logprobs=np.concatenate([part.sampler_logprobs for part in sampled]),
        policy_logprobs=_policy_logprobs(sampled),
        finish_reason=last.finish_reason,
        version=version,
        token_versions=token_versions,
        prompt_logprobs=_prompt_logprobs(parts),
    )
    sampling = request.sampling
    if len(sampled) == 1 or not sampling.stop:
        return whole
    return cut_at_stop(whole, sampling.min_tokens, matcher, strings=sampling.stop)


def _versions(part: Completion) -> IntArray:
    if part.token_versions is not None:
        return part.token_versions
    return np.full(len(part.token_ids), part.version, dtype=np.int32)


def _policy_logprobs(parts: Sequence[Completion]) -> FloatArray | None:
    given = [part.policy_logprobs for part in parts if part.policy_logprobs is not None]
    return np.concatenate(given) if len(given) == len(parts) else None


def _prompt_logprobs(parts: Sequence[Completion]) -> FloatArray | None:
    """Log-probs of the first part that has any: later parts have another prompt."""
    given = (part.prompt_logprobs for part in parts if part.prompt_logprobs is not None)
    return next(given, None)
