"""Which tokens a row has met, in its prompt and its answer: what a repetition penalty asks."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from strop.inference.native.moves import Moves
from strop.inference.native.ticket import Ticket


class SeenTokens:
    """[N, V] bool, kept from the first row with a penalty on."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._table = torch.zeros(0, vocab_size, dtype=torch.bool, device=device)
        self._used = 0

    def add(self, tickets: Sequence[Ticket]) -> None:
        """Rows at the end, with their prompts' tokens."""
        wanted = any(ticket.request.sampling.repetition_penalty != 1 for ticket in tickets)
        if not (wanted or len(self._table)):
            self._used += len(tickets)
            return
        first = self._used
        self._used += len(tickets)
        self._reserve(self._used)
        for row, ticket in enumerate(tickets, start=first):
            prompt = torch.from_numpy(ticket.request.prompt_ids).to(self._table.device, torch.int64)
            self._table[row] = False
            self._table[row, prompt] = True

    def note(self, tokens: torch.Tensor, first: int) -> None:
        """The rows from `first` on have each drawn a token."""
        if len(self._table):
            rows = torch.arange(first, first + len(tokens), device=tokens.device)
            self._table[rows, tokens] = True

    def of(self, rows: torch.Tensor) -> torch.Tensor:
        """[n, V] bool"""
        return self._table[rows]

    def drop(self, moves: Moves) -> None:
        """Let rows go."""
        self._used = moves.after
        if len(self._table):
            moves.apply(self._table)

    def _reserve(self, rows: int) -> None:
        if rows > len(self._table):
            more = self._table.new_zeros(
                max(rows, 2 * len(self._table)) - len(self._table), self._table.shape[1]
            )
            self._table = torch.cat((self._table, more))
