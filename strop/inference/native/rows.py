"""The completions under way, side by side: what each has drawn, and when it ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch

from strop.inference.native.drawing import Choice, choice_of, draw
from strop.inference.native.ends import TokenSets, ending_tokens
from strop.inference.native.moves import Moves
from strop.inference.native.seen import SeenTokens
from strop.inference.native.stops import StopTexts
from strop.inference.native.ticket import Ticket
from strop.types import Completion, Floats


@dataclass(slots=True)
class Columns:
    """One place for each row that may be under way; those in use come first."""

    tokens: torch.Tensor
    """[N, width] int64"""
    sampler_logprobs: torch.Tensor
    """[N, width] float32"""
    policy_logprobs: torch.Tensor
    """[N, width] float32"""
    uniforms: torch.Tensor
    """[N, width] float32 The row's own stream of draws."""
    length: torch.Tensor
    """[N] int64 Tokens drawn."""
    max_tokens: torch.Tensor
    """[N] int64"""
    min_tokens: torch.Tensor
    """[N] int64"""
    slot: torch.Tensor
    """[N] int64 The prompt's place."""
    ending: torch.Tensor
    """[N] int64 Row of the table of tokens that end an answer."""
    version: torch.Tensor
    """[N] int64 Of the weights that drew the first token."""


@dataclass(frozen=True, slots=True)
class Finished:
    """Rows that have drawn their last token."""

    leaving: torch.Tensor
    """[R] bool"""
    stopped: torch.Tensor
    """[R] bool: ended by a token or a text, not by the limit."""


class Rows:
    """All rows that draw a token in the next step; places are those of `Moves`."""

    def __init__(
        self, vocab_size: int, device: torch.device, end_tokens: frozenset[int], stops: StopTexts
    ) -> None:
        self._device = device
        self._end_tokens = end_tokens
        self._stops = stops
        self._vocab_size = vocab_size
        self.clear()

    def clear(self) -> None:
        """Forget all rows, and give their memory back."""
        self.tickets: list[Ticket] = []
        self._ending = TokenSets(self._vocab_size, self._device)
        self._seen = SeenTokens(self._vocab_size, self._device)
        self._columns = _empty_columns(0, 0, self._device)
        self._every = torch.arange(0, device=self._device)
        self._choice: Choice | None = None
        self._stopping: list[int] | None = None
        self._holding = 0
        """Steps of all rows after which no row's `min_tokens` can matter any more."""

    def __len__(self) -> int:
        return len(self.tickets)

    @property
    def last_tokens(self) -> torch.Tensor:
        """[R] int64 What each row drew last."""
        length = self._columns.length[: len(self)]
        return self._columns.tokens[self._every[: len(self)], length - 1]

    @property
    def slots(self) -> torch.Tensor:
        """[R] int64 Each row's prompt."""
        return self._columns.slot[: len(self)]

    @slots.setter
    def slots(self, slots: torch.Tensor) -> None:
        self._columns.slot[: len(self)] = slots

    def add(self, tickets: Sequence[Ticket], slots: Sequence[int], version: int) -> None:
        """Rows at the end that have drawn nothing yet."""
        first = len(self)
        samplings = [ticket.request.sampling for ticket in tickets]
        self.tickets += tickets
        self._reserve(len(self), max(sampling.max_tokens for sampling in samplings))
        here, columns = slice(first, len(self)), self._columns

        def column(values: Sequence[int]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.int64, device=self._device)

        columns.length[here] = 0
        columns.version[here] = version
        columns.slot[here] = column(slots)
        columns.max_tokens[here] = column([sampling.max_tokens for sampling in samplings])
        columns.min_tokens[here] = column([sampling.min_tokens for sampling in samplings])
        columns.ending[here] = column(
            [self._ending.row(ending_tokens(s, self._end_tokens)) for s in samplings]
        )
        for row, ticket in enumerate(tickets, start=first):
            sampling = ticket.request.sampling
            if sampling.temperature > 0:
                stream = torch.from_numpy(uniform_stream(ticket.request.seed, sampling.max_tokens))
                columns.uniforms[row, : len(stream)] = stream
        self._seen.add(tickets)
        self._holding = max(self._holding, *(sampling.min_tokens for sampling in samplings))
        self._choice = self._stopping = None

    def draw(self, logits: torch.Tensor, first: int = 0) -> None:
        """Give each row from `first` on its next token, from logits [R - first, V]."""
        rows, columns = self._every[first : len(self)], self._columns
        here = slice(first, len(self))
        length = columns.length[here]
        choice = self._choice_from(first)
        penalised = choice.repetition_penalty
        barred = None
        if self._holding > 0:
            held = length < columns.min_tokens[here]
            barred = self._ending.table[columns.ending[here]] & held[:, None]
        drawn = draw(
            logits,
            choice,
            columns.uniforms[rows, length],
            seen=None if penalised is None else self._seen.of(penalised.rows + first),
            barred=barred,
        )
        columns.tokens[rows, length] = drawn.tokens
        columns.sampler_logprobs[rows, length] = drawn.sampler_logprobs
        columns.policy_logprobs[rows, length] = drawn.policy_logprobs
        columns.length[here] += 1
        self._seen.note(drawn.tokens, first)
        if first == 0:
            self._holding -= 1

    def finished(self, first: int = 0) -> Finished:
        """Which rows, of those from `first` on that have just drawn, are done."""
        here, columns = slice(first, len(self)), self._columns
        rows = self._every[here]
        length = columns.length[here]
        token = columns.tokens[rows, length - 1]
        stopped = self._ending.table[columns.ending[here], token]
        for row in self._with_stop_texts():
            if row >= first and self._completes_text(row):
                stopped[row - first] = True
        leaving = torch.zeros(len(self), dtype=torch.bool, device=self._device)
        leaving[here] = stopped | (length >= columns.max_tokens[here])
        every_stopped = torch.zeros_like(leaving)
        every_stopped[here] = stopped
        return Finished(leaving, every_stopped)

    def completion(self, row: int, stopped: bool) -> Completion:
        """What a row has drawn."""
        columns = self._columns
        length = int(columns.length[row])
        return Completion(
            token_ids=columns.tokens[row, :length].to("cpu", torch.int32).numpy().copy(),
            sampler_logprobs=columns.sampler_logprobs[row, :length].cpu().numpy().copy(),
            policy_logprobs=columns.policy_logprobs[row, :length].cpu().numpy().copy(),
            finish="stop" if stopped else "length",
            version=int(columns.version[row]),
        )

    def drop(self, moves: Moves) -> None:
        """Let rows go."""
        if moves.after == 0:
            self.clear()
            return
        moves.apply_to_list(self.tickets)
        for column in fields(self._columns):
            moves.apply(getattr(self._columns, column.name))
        self._seen.drop(moves)
        self._choice = self._stopping = None

    def _choice_from(self, first: int) -> Choice:
        if first:
            return choice_of([t.request.sampling for t in self.tickets[first:]], self._device)
        if self._choice is None:
            self._choice = choice_of([t.request.sampling for t in self.tickets], self._device)
        return self._choice

    def _with_stop_texts(self) -> list[int]:
        if self._stopping is None:
            self._stopping = [row for row, t in enumerate(self.tickets) if t.request.sampling.stop]
        return self._stopping

    def _completes_text(self, row: int) -> bool:
        sampling, length = self.tickets[row].request.sampling, int(self._columns.length[row])
        if length <= sampling.min_tokens:
            return False
        start = max(0, length - self._stops.window(sampling.stop))
        return self._stops.completed(self._columns.tokens[row, start:length].tolist(), sampling.stop)

    def _reserve(self, rows: int, width: int) -> None:
        old = self._columns
        places, old_width = old.tokens.shape
        if rows <= places and width <= old_width:
            return
        new = _empty_columns(max(rows, places), max(width, old_width), self._device)
        for column in fields(old):
            source, target = getattr(old, column.name), getattr(new, column.name)
            target[tuple(slice(size) for size in source.shape)] = source
        self._columns = new
        self._every = torch.arange(len(new.length), device=self._device)


def uniform_stream(seed: int, count: int) -> Floats:
    """[count] draws in [0, 1): the seed's own, by a counter-based generator (Philox, SC 2011)."""
    return np.random.Generator(np.random.Philox(key=seed)).random(count, dtype=np.float32)


def _empty_columns(places: int, width: int, device: torch.device) -> Columns:
    def wide(dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(places, width, dtype=dtype, device=device)

    def narrow() -> torch.Tensor:
        return torch.zeros(places, dtype=torch.int64, device=device)

    return Columns(
        tokens=wide(torch.int64),
        sampler_logprobs=wide(torch.float32),
        policy_logprobs=wide(torch.float32),
        uniforms=wide(torch.float32),
        length=narrow(),
        max_tokens=narrow(),
        min_tokens=narrow(),
        slot=narrow(),
        ending=narrow(),
        version=narrow(),
    )
