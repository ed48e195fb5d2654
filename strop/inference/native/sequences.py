"""Batch of running sequences: their sampled tokens, sampling state and stop conditions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

from strop.errors import InferenceError
from strop.inference.completion import StopStringMatcher, effective_stop_tokens, split_versions
from strop.inference.native.model.runner import Compaction
from strop.inference.native.pending_request import PendingRequest, TokenSetTable
from strop.inference.native.token_sampling import (
    SamplingMetadata,
    SeenTokenMask,
    build_sampling_metadata,
    sample_tokens,
)
from strop.types import BoolArray, Completion, FinishReason, FloatArray

_Number = TypeVar("_Number", np.float32, np.int32)


@dataclass(slots=True)
class SequenceState:
    """Allocated state of N rows, of which the first R are in use."""

    tokens: torch.Tensor
    """[N, width] int64"""
    sampler_logprobs: torch.Tensor
    """[N, width] float32"""
    policy_logprobs: torch.Tensor
    """[N, width] float32"""
    uniforms: torch.Tensor
    """[N, width] float32 The row's own random numbers, one for each token."""
    versions: torch.Tensor
    """[N, width] int64 Version of the weights that sampled each token."""
    length: torch.Tensor
    """[N] int64 Number of sampled tokens."""
    max_tokens: torch.Tensor
    """[N] int64"""
    min_tokens: torch.Tensor
    """[N] int64"""
    stop_set: torch.Tensor
    """[N] int64 Row in the table of stop tokens."""


@dataclass(frozen=True, slots=True)
class FinishedSequences:
    """Rows that have sampled their last token."""

    finished: BoolArray
    """[R]"""
    stopped: BoolArray
    """[R] Ended by a stop token or a stop string, not by the limit."""


class SequenceBatch:
    """All sequences that sample a token in the next step, indexed by row as in `Compaction`."""

    def __init__(
        self, vocab_size: int, device: torch.device, eos_ids: frozenset[int], stop_strings: StopStringMatcher
    ) -> None:
        """`eos_ids` end a completion unless its request ignores them."""
        self._device = device
        self._eos_ids = eos_ids
        self._stop_strings = stop_strings
        self._vocab_size = vocab_size
        self.clear()

    def clear(self) -> None:
        """Remove all sequences, and free their memory."""
        self.requests: list[PendingRequest] = []
        self.slots: list[int] = []
        """[R] Prompt slot of each row."""
        self._stop_tokens = TokenSetTable(self._vocab_size, self._device)
        self._seen = SeenTokenMask(self._vocab_size, self._device)
        self._state = _empty_state(0, 0, self._device)
        self._row_indices = torch.arange(0, device=self._device)
        self._metadata: SamplingMetadata | None = None
        self._rows_with_stop_strings: list[int] | None = None
        self._min_tokens_steps = 0
        """Number of steps until `min_tokens` cannot matter for any row."""

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def last_tokens(self) -> torch.Tensor:
        """[R] int64 Last sampled token of each row."""
        length = self._state.length[: len(self)]
        return self._state.tokens[self._row_indices[: len(self)], length - 1]

    def add(self, requests: Sequence[PendingRequest], slots: Sequence[int]) -> None:
        """Append rows that have sampled nothing yet."""
        first = len(self)
        samplings = [pending.request.sampling for pending in requests]
        self.requests += requests
        self._reserve(len(self), max(sampling.max_tokens for sampling in samplings))
        added, state = slice(first, len(self)), self._state

        def column(values: Sequence[int]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.int64, device=self._device)

        state.length[added] = 0
        self.slots += slots
        state.max_tokens[added] = column([sampling.max_tokens for sampling in samplings])
        state.min_tokens[added] = column([sampling.min_tokens for sampling in samplings])
        state.stop_set[added] = column(
            [self._stop_tokens.row(effective_stop_tokens(s, self._eos_ids)) for s in samplings]
        )
        for row, pending in enumerate(requests, start=first):
            sampling = pending.request.sampling
            if sampling.temperature > 0:
                stream = torch.from_numpy(uniform_stream(pending.request.seed, sampling.max_tokens))
                state.uniforms[row, : len(stream)] = stream
        self._seen.add(requests)
        self._min_tokens_steps = max(self._min_tokens_steps, *(s.min_tokens for s in samplings))
        self._metadata = self._rows_with_stop_strings = None

    def sample_next(self, logits: torch.Tensor, version: int, first: int = 0) -> None:
        """Sample the next token of each row from `first` on, from logits [R - first, V] of this version."""
        rows, state = self._row_indices[first : len(self)], self._state
        selected = slice(first, len(self))
        length = state.length[selected]
        metadata = self._metadata_from(first)
        penalty = metadata.repetition_penalty
        banned = None
        if self._min_tokens_steps > 0:
            too_short = length < state.min_tokens[selected]
            banned = self._stop_tokens.table[state.stop_set[selected]] & too_short[:, None]
        sampled = sample_tokens(
            logits,
            metadata,
            state.uniforms[rows, length],
            seen=None if penalty is None else self._seen.mask_of(penalty.rows + first),
            banned=banned,
        )
        state.tokens[rows, length] = sampled.tokens
        state.sampler_logprobs[rows, length] = sampled.sampler_logprobs
        state.policy_logprobs[rows, length] = sampled.policy_logprobs
        state.versions[rows, length] = version
        self._record_top_tokens(logits, first)
        state.length[selected] += 1
        self._seen.mark(sampled.tokens, first)
        if first == 0:
            self._min_tokens_steps -= 1

    def find_finished(self, first: int = 0) -> FinishedSequences:
        """Find the rows from `first` on whose newest token was their last: the one wait of a step for the device."""
        found = np.zeros((2, len(self)), dtype=np.bool_)
        found[:, first:] = self.finished_flags(first).cpu().numpy()
        return FinishedSequences(found[0], found[1])

    def finished_flags(self, first: int = 0) -> torch.Tensor:
        """[2, R - first] bool Whether each row from `first` on has finished, and whether it was stopped; not yet read.

        Rows with stop strings are read.
        """
        selected, state = slice(first, len(self)), self._state
        rows = self._row_indices[selected]
        length = state.length[selected]
        token = state.tokens[rows, length - 1]
        stopped = self._stop_tokens.table[state.stop_set[selected], token]
        for row in self._stop_string_rows():
            if row >= first and self._completes_stop_string(row):
                stopped[row - first] = True
        return torch.stack((stopped | (length >= state.max_tokens[selected]), stopped))

    def completions(self, rows: Sequence[int], finish_reasons: Sequence[FinishReason]) -> list[Completion]:
        """Tokens and log-probs that these rows have sampled; the device is read once for all of them.

        Raises `InferenceError` for log-probs that are not finite.
        """
        state, index = self._state, torch.tensor(rows, dtype=torch.int64, device=self._device)
        lengths = state.length[index].tolist()
        width = max(lengths, default=0)

        def read(column: torch.Tensor, kind: type[_Number]) -> list[npt.NDArray[_Number]]:
            values = column[index, :width].cpu().numpy()
            return [row[:length].astype(kind) for row, length in zip(values, lengths, strict=True)]

        sampler_logprobs = read(state.sampler_logprobs, np.float32)
        policy_logprobs = read(state.policy_logprobs, np.float32)
        if not np.isfinite(np.concatenate([*sampler_logprobs, *policy_logprobs, [0.0]])).all():
            raise InferenceError(
                "The model computes log-probs that are NaN or infinite. Its training has diverged, its config.json is "
                "damaged, or its numbers are too large for rollout.engine.dtype."
            )
        tokens = read(state.tokens, np.int32)
        versions = [split_versions(each, current=0) for each in read(state.versions, np.int32)]
        return [
            Completion(
                token_ids=tokens[place],
                sampler_logprobs=sampler_logprobs[place],
                policy_logprobs=policy_logprobs[place],
                finish_reason=finish_reasons[place],
                version=versions[place][0],
                token_versions=versions[place][1],
                **self.requests[row].scores.fields_of_completion(),
            )
            for place, row in enumerate(rows)
        ]

    def compact(self, compaction: Compaction) -> None:
        """Remove finished rows; the memory is freed when none remains."""
        if compaction.after == 0:
            self.clear()
            return
        compaction.apply_to_list(self.requests)
        compaction.apply_to_list(self.slots)
        for column in fields(self._state):
            compaction.apply(getattr(self._state, column.name))
        self._seen.compact(compaction)
        self._metadata = self._rows_with_stop_strings = None

    def _metadata_from(self, first: int) -> SamplingMetadata:
        if first:
            samplings = [pending.request.sampling for pending in self.requests[first:]]
            return build_sampling_metadata(samplings, self._device)
        if self._metadata is None:
            samplings = [pending.request.sampling for pending in self.requests]
            self._metadata = build_sampling_metadata(samplings, self._device)
        return self._metadata

    def _record_top_tokens(self, logits: torch.Tensor, first: int) -> None:
        """Record the most likely tokens of the rows whose requests ask for them, from logits [R - first, V]."""
        asked = [pending for pending in self.requests[first:] if pending.request.top_logprobs]
        if not asked:
            return
        rows = [row for row, pending in enumerate(self.requests[first:]) if pending.request.top_logprobs]
        temperatures = [pending.request.sampling.temperature or 1.0 for pending in asked]
        scale = torch.tensor(temperatures, device=self._device)[:, None]
        logprobs = (logits[rows].float() / scale).log_softmax(dim=-1)
        best = logprobs.topk(max(pending.request.top_logprobs for pending in asked), dim=-1)
        for pending, ids, values in zip(asked, best.indices, best.values, strict=True):
            pending.scores.top_ids.append(ids[: pending.request.top_logprobs])
            pending.scores.top_logprobs.append(values[: pending.request.top_logprobs])

    def _stop_string_rows(self) -> list[int]:
        if self._rows_with_stop_strings is None:
            self._rows_with_stop_strings = [
                row for row, pending in enumerate(self.requests) if pending.request.sampling.stop
            ]
        return self._rows_with_stop_strings

    def _completes_stop_string(self, row: int) -> bool:
        sampling, length = self.requests[row].request.sampling, int(self._state.length[row])
        if length <= sampling.min_tokens:
            return False
        start = max(0, length - self._stop_strings.window(sampling.stop))
        tokens: list[int] = self._state.tokens[row, start:length].tolist()
        return self._stop_strings.completes_stop(tokens, sampling.stop)

    def _reserve(self, rows: int, width: int) -> None:
        old = self._state
        old_rows, old_width = old.tokens.shape
        if rows <= old_rows and width <= old_width:
            return
        new = _empty_state(max(rows, old_rows), max(width, old_width), self._device)
        for column in fields(old):
            source, target = getattr(old, column.name), getattr(new, column.name)
            target[tuple(slice(size) for size in source.shape)] = source
        self._state = new
        self._row_indices = torch.arange(len(new.length), device=self._device)


def uniform_stream(seed: int, count: int) -> FloatArray:
    """[count] random numbers in [0, 1) of a seed, from a counter-based generator (Philox, SC 2011)."""
    return np.random.Generator(np.random.Philox(key=seed)).random(count, dtype=np.float32)


def _empty_state(rows: int, width: int, device: torch.device) -> SequenceState:
    def per_token(dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(rows, width, dtype=dtype, device=device)

    def per_row() -> torch.Tensor:
        return torch.zeros(rows, dtype=torch.int64, device=device)

    return SequenceState(
        tokens=per_token(torch.int64),
        sampler_logprobs=per_token(torch.float32),
        policy_logprobs=per_token(torch.float32),
        uniforms=per_token(torch.float32),
        versions=per_token(torch.int64),
        length=per_row(),
        max_tokens=per_row(),
        min_tokens=per_row(),
        stop_set=per_row(),
    )
