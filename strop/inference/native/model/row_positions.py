"""Positions of the rows of a decoding step, in tensors whose memory stays the same while rows leave and join."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from strop.inference.native.model.compaction import Compaction
from strop.transfers import to_device
from strop.types import IntArray


class RowPositions:
    """Position of each of R rows in its sequence; up to the allocated number, rows follow that are not in use.

    A step may compute rows that are not in use, too: they have a valid token, no prompt, and fewer tokens
    than the longest row in use.
    """

    def __init__(self, device: torch.device) -> None:
        """No rows."""
        self._device = device
        self.slots: list[int] = []
        """[R] Slot of the row's prompt, on the host."""
        self._lengths: list[int] = []
        """[R] `own_tokens` on the host, so that a step does not wait for the device."""
        self._columns = torch.zeros(4, 0, dtype=torch.int64, device=device)

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def longest(self) -> int:
        """Largest number of sampled tokens in the cache of any row; 0 without rows."""
        return max(self._lengths, default=0)

    @property
    def next_tokens(self) -> torch.Tensor:
        """[allocated] int64 Token that the next step processes."""
        return self._columns[0]

    @property
    def prompt_tokens(self) -> torch.Tensor:
        """[allocated] int64 Length of the row's prompt."""
        return self._columns[1]

    @property
    def first_positions(self) -> torch.Tensor:
        """[allocated] int64 Position of the first sampled token; below `prompt_tokens` after a prompt with images."""
        return self._columns[2]

    @property
    def own_tokens(self) -> torch.Tensor:
        """[allocated] int64 Number of the row's sampled tokens in the cache; a step adds 1 on the device."""
        return self._columns[3]

    def reserve(self, rows: int) -> None:
        """Allocate this number of rows or more."""
        missing = rows - self._columns.shape[1]
        if missing > 0:
            self._columns = torch.cat((self._columns, self._columns.new_zeros(4, missing)), dim=1)

    def add(self, slots: Sequence[int], prompt_tokens: Sequence[int], first_positions: Sequence[int]) -> None:
        """Append rows without sampled tokens, for which memory is reserved."""
        first = len(self)
        self.slots += slots
        self._lengths += [0] * len(slots)
        none: list[int] = [0] * len(slots)
        added: IntArray = np.array([none, prompt_tokens, first_positions, none])
        self._columns[:, first : len(self)] = to_device(added, self._device)

    def advance(self) -> None:
        """Count the token that a step has added to each row on the device."""
        self._lengths[:] = [length + 1 for length in self._lengths]

    def compact(self, compaction: Compaction) -> None:
        """Remove rows."""
        compaction.apply_to_list(self.slots)
        compaction.apply_to_list(self._lengths)
        compaction.apply(self._columns, dim=1)
        self._columns[:, compaction.after :] = 0
