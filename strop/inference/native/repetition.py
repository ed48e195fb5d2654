"""Tokens in each running sequence's prompt and completion, for the repetition penalty."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from strop.inference.native.model.compaction import Compaction
from strop.inference.native.pending_request import PendingRequest


class SeenTokenMask:
    """[N, V] bool; allocated when the first sequence with a penalty arrives."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._table = torch.zeros(0, vocab_size, dtype=torch.bool, device=device)
        self._used = 0

    def add(self, requests: Sequence[PendingRequest]) -> None:
        """Append rows that hold the tokens of the prompts."""
        has_penalty = any(pending.request.sampling.repetition_penalty != 1 for pending in requests)
        if not (has_penalty or len(self._table)):
            self._used += len(requests)
            return
        first = self._used
        self._used += len(requests)
        self._reserve(self._used)
        for row, pending in enumerate(requests, start=first):
            prompt = torch.from_numpy(pending.request.prompt_ids).to(self._table.device, torch.int64)
            self._table[row] = False
            self._table[row, prompt] = True

    def mark(self, tokens: torch.Tensor, first: int) -> None:
        """Add one sampled token to each row from `first` on."""
        if len(self._table):
            rows = torch.arange(first, first + len(tokens), device=tokens.device)
            self._table[rows, tokens] = True

    def mask_of(self, rows: torch.Tensor) -> torch.Tensor:
        """[n, V] bool of these rows [n]."""
        return self._table[rows]

    def compact(self, compaction: Compaction) -> None:
        """Remove finished rows."""
        self._used = compaction.after
        if len(self._table):
            compaction.apply(self._table)

    def _reserve(self, rows: int) -> None:
        if rows > len(self._table):
            extra = self._table.new_zeros(
                max(rows, 2 * len(self._table)) - len(self._table), self._table.shape[1]
            )
            self._table = torch.cat((self._table, extra))
