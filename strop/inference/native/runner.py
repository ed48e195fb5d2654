"""What the scheduler asks of a model: prompts in, then one token a step for every row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import torch

from strop.inference.native.moves import Moves
from strop.types import Ints


class Runner(Protocol):
    """Rows and prompts are numbered by place: 0, 1, ... without gaps, new ones at the end."""

    vocab_size: int
    device: torch.device
    keeps_prompts: bool
    """Rows may join a prompt in a later step; else only right after its `prefill`."""
    longest: int | None
    """Most tokens a sequence may have; None where the model sets no limit."""

    def describe(self) -> str:
        """One line: whose forward, and which dtype."""
        ...

    def shared_share(self) -> float:
        """How much of the weights is the giver's memory, 0 to 1."""
        ...

    def load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Take new weights."""
        ...

    def tokens_needed(self, rows: int, row_tokens: int, prompts: int, prompt_tokens: int) -> int:
        """Tokens of cache for so many rows and prompts when the widest are so wide."""
        ...

    def joins_well(self, joining: int, under_way: int) -> bool:
        """Whether so many new rows are worth letting in now, beside those under way."""
        ...

    def prefill(self, prompts: Sequence[Ints]) -> torch.Tensor:
        """[prompts, V] logits after each; the prompts take the next places."""
        ...

    def add_rows(self, slots: Sequence[int]) -> None:
        """New rows, each at the end of the prompt in its slot."""
        ...

    def decode(self, tokens: torch.Tensor) -> torch.Tensor:
        """[R, V] logits after giving each row its next token [R]."""
        ...

    def drop_rows(self, moves: Moves) -> None:
        """Let rows go."""
        ...

    def drop_prompts(self, moves: Moves) -> None:
        """Let prompts go that no row uses any more."""
        ...

    def clear(self) -> None:
        """Forget all rows and prompts."""
        ...
