"""Continuous batching: the scheduler chooses which requests go through the model in the next step."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from strop.inference.native.model.runner import ModelRunner, Prompt, TokenScores, plan_compaction
from strop.inference.native.pending_request import PendingRequest, SampleCall
from strop.inference.native.prefix_cache import CachedTokens, PrefixCache
from strop.inference.native.sequences import SequenceBatch
from strop.types import BoolArray, Completion, EngineStatistics, FinishReason, FloatArray

_NONE = EngineStatistics(0, 0, 0.0, 0, 0, 0)


@dataclass(slots=True)
class CachedPrompt:
    """A prompt whose keys and values are in the cache."""

    key: bytes | None
    """Bytes of its tokens; None after a change of weights, so that no further request joins it."""
    tokens: int
    logits: torch.Tensor
    """[V] Logits for the first token of its completions."""
    scores: TokenScores | None
    """Scores of its own tokens, where its requests ask for them."""


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counters of an engine since its construction, and its current load."""

    generated_tokens: int
    """Tokens sampled so far."""
    prompt_tokens: int
    """Prompt tokens prefilled so far; a shared prompt counts once."""
    running: int
    """Completions that are being sampled."""
    waiting: int
    """Completions that wait for cache capacity."""


class Scheduler:
    """Admits waiting requests in order of arrival while the cache has capacity for their longest completions.

    Capacity for the whole of `max_tokens` is reserved at admission, so an admitted request always completes.
    """

    def __init__(
        self, runner: ModelRunner, sequences: SequenceBatch, cache_tokens: int, max_sequences: int
    ) -> None:
        """Run at most `max_sequences` at once, with `cache_tokens` tokens of keys and values."""
        self._runner = runner
        self._sequences = sequences
        self._cache_tokens = cache_tokens
        self._max_sequences = max_sequences
        self._waiting: deque[PendingRequest] = deque()
        self._prompts: list[CachedPrompt] = []
        self.prefixes = PrefixCache()
        """Tokens of ended requests, in what the running ones leave of the cache."""
        self._changed = False
        """Whether sequences have finished or requests have arrived since the last admission."""
        self._generated_tokens = 0
        self._prompt_tokens = 0
        self._reserved_tokens = 0
        """Tokens of the cache that the running sequences reserve, as of the last admission."""
        self.statistics = StepStatistics()
        self.version = 0

    @property
    def has_requests(self) -> bool:
        """Whether any request is waiting or running."""
        return bool(self._waiting or len(self._sequences))

    @property
    def stats(self) -> EngineStats:
        """Counters and current load."""
        return EngineStats(
            self._generated_tokens, self._prompt_tokens, len(self._sequences), len(self._waiting)
        )

    def add_requests(self, requests: Sequence[PendingRequest]) -> None:
        """Append requests to the queue in this order."""
        self._waiting.extend(requests)
        self._changed = True

    def remove_cancelled(self) -> None:
        """Remove the requests of all cancelled calls: cancellations often come in numbers."""
        for call in self.calls():
            call.cancelled = call.future.cancelled()
        self._waiting = deque(pending for pending in self._waiting if not pending.call.cancelled)
        cancelled = [pending.call.cancelled for pending in self._sequences.requests]
        if any(cancelled):
            self._remove(np.array(cancelled, dtype=np.bool_))

    def clear(self) -> None:
        """Remove all requests, and free the cache."""
        self._waiting.clear()
        self._prompts.clear()
        self.prefixes.clear()
        self._sequences.clear()
        self._runner.clear()

    def abort(self) -> list[tuple[PendingRequest, Completion]]:
        """Remove all requests; returns each with the tokens that it has."""
        requests = self._sequences.requests
        completions = self._sequences.completions(range(len(requests)), ["abort"] * len(requests))
        running = list(zip(requests, completions, strict=True))
        waiting = [(pending, _empty_completion(self.version)) for pending in self._waiting]
        self.clear()
        return running + waiting

    def invalidate_prompts(self) -> None:
        """Prefill prompts again for later requests, because the weights have changed."""
        self.prefixes.clear()
        for prompt in self._prompts:
            prompt.key = None

    def calls(self) -> list[SampleCall]:
        """Calls that have a waiting or running request."""
        pending = (*self._waiting, *self._sequences.requests)
        return list(dict.fromkeys(each.call for each in pending))

    def step(self) -> None:
        """Admit requests, and sample one token for every sequence; new ones sample their first beforehand."""
        started, generated = time.perf_counter(), self._generated_tokens
        self._admit()
        running = len(self._sequences)
        if running:
            self._sample(self._runner.decode(self._sequences.last_tokens), first=0)
        self.statistics.record_step(
            running=running,
            waiting=len(self._waiting),
            kv_usage=min(1.0, self._reserved_tokens / self._cache_tokens),
            sampled_tokens=self._generated_tokens - generated,
            seconds=time.perf_counter() - started,
        )

    def fits_alone(self, pending: PendingRequest) -> bool:
        """Whether the cache can hold a request that runs alone, for which padding does not count."""
        return pending.prompt_tokens + pending.request.sampling.max_tokens <= self._cache_tokens

    def _admit(self) -> None:
        if not (self._waiting and self._changed):
            return
        self._changed = False
        admitted = self._choose()
        if not admitted or not self._runner.should_admit(len(admitted), len(self._sequences)):
            return
        slots = self._prefill(admitted)
        first = len(self._sequences)
        self._sequences.add(admitted, slots)
        for _ in admitted:  # only now, so that a failed prefill fails their calls
            self._waiting.popleft()
        for pending, slot in zip(admitted, slots, strict=True):
            pending.scores.prompt = self._prompts[slot].scores
        self._runner.add_rows(slots)
        logits = torch.stack([self._prompts[slot].logits for slot in slots])
        if not self._runner.caches_prompts:
            self._prompts.clear()
        self._sample(logits, first)

    def _choose(self) -> list[PendingRequest]:
        """Longest head of the queue that fits into the cache together with the running sequences."""
        running = self._sequences.requests
        row_tokens = max((pending.request.sampling.max_tokens for pending in running), default=0)
        prompt_tokens = max((pending.prompt_tokens for pending in running), default=0)
        prompts: set[bytes | None] = {prompt.key for prompt in self._prompts}
        invalidated = len(self._prompts) - len(prompts)
        chosen: list[PendingRequest] = []
        for pending in self._waiting:
            prompts.add(pending.prompt_key)
            row_tokens = max(row_tokens, pending.request.sampling.max_tokens)
            prompt_tokens = max(prompt_tokens, pending.prompt_tokens)
            count = len(running) + len(chosen) + 1
            needed = self._runner.cache_tokens_needed(
                count, row_tokens, len(prompts) + invalidated, prompt_tokens
            )
            if count > self._max_sequences or (needed > self._cache_tokens and count > 1):
                break
            chosen.append(pending)
            self._reserved_tokens = needed
        return chosen

    def _prefill(self, requests: Sequence[PendingRequest]) -> list[int]:
        """Prompt slot of each request; prompts that are not in the cache go through the model once."""
        slots = {prompt.key: slot for slot, prompt in enumerate(self._prompts) if prompt.key is not None}
        new: dict[bytes, Prompt] = {}
        for pending in requests:
            if pending.prompt_key not in slots and pending.prompt_key not in new:
                new[pending.prompt_key] = self.prefixes.take_prompt(pending.request)
        self.prefixes.shrink(self._cache_tokens - self._reserved_tokens)
        if new:
            prefilled = self._runner.prefill(list(new.values()))
            rows = zip(new.items(), prefilled.logits, prefilled.scores, strict=True)
            for (key, prompt), logits, scores in rows:
                slots[key] = len(self._prompts)
                self._prompts.append(CachedPrompt(key, len(prompt.token_ids), logits, scores))
        computed = sum(len(prompt.new_ids) for prompt in new.values())
        self._prompt_tokens += computed
        wanted = sum(pending.prompt_tokens for pending in requests)
        self.statistics.record_prompts(wanted, wanted - computed)
        return [slots[pending.prompt_key] for pending in requests]

    def _sample(self, logits: torch.Tensor, first: int) -> None:
        sequences = self._sequences
        sequences.sample_next(logits, self.version, first)
        self._generated_tokens += len(sequences) - first
        if any(pending.call.on_token for pending in sequences.requests[first:]):
            tokens = sequences.last_tokens.tolist()
            for row, pending in enumerate(sequences.requests[first:], first):
                if pending.call.on_token is not None:
                    pending.call.on_token(pending.index, tokens[row])
        result = sequences.find_finished(first)
        finished = np.flatnonzero(result.finished).tolist()
        if not finished:
            return
        reasons: list[FinishReason] = ["stop" if result.stopped[row] else "length" for row in finished]
        for row, completion in zip(finished, sequences.completions(finished, reasons), strict=True):
            pending = sequences.requests[row]
            if pending.request.may_continue and self._runner.takes_prefixes:
                self._keep(row, pending, completion)
            pending.call.set_completion(pending.index, completion)
        self._remove(result.finished)

    def _keep(self, row: int, pending: PendingRequest, completion: Completion) -> None:
        """Keep the keys and values of a request that has ended, unless the weights have changed since its start."""
        if self._prompts[self._sequences.slots[row]].key is None:
            return
        tokens = np.concatenate([pending.request.prompt_ids, completion.token_ids[:-1]])
        self.prefixes.put(pending.request.id, CachedTokens(tokens, self._runner.copy_row(row)))
        self.prefixes.shrink(self._cache_tokens - self._reserved_tokens)

    def _remove(self, finished: BoolArray) -> None:
        """Remove these rows, and then the prompts that no row uses any more."""
        compaction = plan_compaction(finished, self._runner.device)
        self._sequences.compact(compaction)
        self._runner.compact_rows(compaction)
        self._changed = True
        if self._prompts:
            self._remove_unused_prompts()

    def _remove_unused_prompts(self) -> None:
        unused = np.ones(len(self._prompts), dtype=np.bool_)
        unused[self._sequences.slots] = False
        if unused.any():
            compaction = plan_compaction(unused, self._runner.device)
            self._sequences.slots = compaction.new_indices()[self._sequences.slots].tolist()
            self._runner.compact_prompts(compaction)
            compaction.apply_to_list(self._prompts)


def _empty_completion(version: int) -> Completion:
    """The completion of a request that is aborted before its first token."""
    nothing: FloatArray = np.zeros(0, dtype=np.float32)
    return Completion(np.zeros(0, dtype=np.int32), nothing, nothing, "abort", version)


class StepStatistics:
    """Adds up the load of the scheduler's steps."""

    def __init__(self) -> None:
        self._total = _NONE

    def record_prompts(self, tokens: int, cached: int) -> None:
        """Add the prompt tokens of admitted requests, and how many of them were in the cache."""
        self._add(replace(_NONE, prompt_tokens=tokens, cached_prompt_tokens=cached))

    def record_step(
        self, *, running: int, waiting: int, kv_usage: float, sampled_tokens: int, seconds: float
    ) -> None:
        """Add one step: its load, the fraction of the KV cache that is reserved, its tokens and its duration."""
        step = EngineStatistics(running, waiting, kv_usage, 0, 0, 0, sampled_tokens, seconds)
        self._add(step)

    def take(self) -> EngineStatistics:
        """The load since the last call."""
        taken, self._total = self._total, _NONE
        return taken

    def _add(self, statistics: EngineStatistics) -> None:
        self._total = self._total.combined_with(statistics)
