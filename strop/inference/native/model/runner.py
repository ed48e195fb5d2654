"""Protocol between the scheduler and a model: prefill of prompts, then one decoding step for all rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from strop.inference.native.model.compaction import Compaction
from strop.types import ImageReference, IntArray

SCORE_CHUNK_TOKENS = 512
"""Number of a prompt's tokens whose logits exist at once."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt of one or more requests."""

    token_ids: IntArray
    media: tuple[ImageReference, ...] = ()
    """Its images, in the order of their tokens."""
    top_logprobs: int | None = None
    """Number of most likely tokens to report with the log-prob of each of its tokens; None computes no log-probs."""


@dataclass(frozen=True, slots=True)
class TokenScores:
    """Log-probs of N tokens, with the K most likely tokens at each of their positions."""

    logprobs: torch.Tensor
    """[N] float32"""
    top_ids: torch.Tensor
    """[N, K] int64"""
    top_logprobs: torch.Tensor
    """[N, K] float32"""


@dataclass(frozen=True, slots=True)
class PrefilledPrompts:
    """Results of a prefill."""

    logits: torch.Tensor
    """[prompts, V] after each prompt."""
    scores: Sequence[TokenScores | None]
    """Scores of each prompt's tokens after its first; None where they were not asked for."""


def score_tokens(
    states: torch.Tensor, to_logits: Callable[[torch.Tensor], torch.Tensor], tokens: torch.Tensor, top: int
) -> TokenScores:
    """Scores of tokens [N] under softmax(logits), with the logits of some positions at a time.

    `to_logits` computes logits [n, V] from the states [n, ...] of positions, each before the token that it predicts.
    """
    columns: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
    parts = zip(torch.split(states, SCORE_CHUNK_TOKENS), torch.split(tokens, SCORE_CHUNK_TOKENS), strict=True)
    for part, targets in parts:
        logprobs = to_logits(part).float().log_softmax(dim=-1)
        best = logprobs.topk(top, dim=-1)
        columns.append((logprobs.gather(1, targets[:, None])[:, 0], best.indices, best.values))
    return TokenScores(*(torch.cat(column) for column in zip(*columns, strict=True)))


class ModelRunner(Protocol):
    """Runs a model over rows and prompts, each numbered 0, 1, ... without gaps; new ones are appended."""

    vocab_size: int
    device: torch.device
    caches_prompts: bool
    """Whether rows may join a prompt in a later step; if False, only directly after its `prefill`."""
    max_sequence_tokens: int | None
    """Maximum number of tokens in a sequence; None if the model sets no limit."""

    def describe(self) -> str:
        """One line: implementation and data type."""
        ...

    def shared_fraction(self) -> float:
        """Fraction of the weights that use the memory of the given tensors, 0 to 1."""
        ...

    def load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Replace weights."""
        ...

    def release_weights(self) -> None:
        """Free the weights that do not use the memory of given tensors."""
        ...

    def has_weights(self) -> bool:
        """Whether all weights are present: False after `release_weights` until `load` has given them again."""
        ...

    def cache_tokens_needed(self, rows: int, row_tokens: int, prompts: int, prompt_tokens: int) -> int:
        """Cache size in tokens for this number of rows and prompts of at most these lengths."""
        ...

    def should_admit(self, joining: int, running: int) -> bool:
        """Whether to admit `joining` new rows now or to wait until more can join."""
        ...

    def prefill(self, prompts: Sequence[Prompt]) -> PrefilledPrompts:
        """Prefill prompts, which take the next slots."""
        ...

    def add_rows(self, slots: Sequence[int]) -> None:
        """Append rows, each at the end of the prompt in its slot."""
        ...

    def decode(self, tokens: torch.Tensor) -> torch.Tensor:
        """[R, V] logits after each row's next token [R]; valid until the next call."""
        ...

    def compact_rows(self, compaction: Compaction) -> None:
        """Remove finished rows."""
        ...

    def compact_prompts(self, compaction: Compaction) -> None:
        """Remove prompts that no row uses any more."""
        ...

    def clear(self) -> None:
        """Remove all rows and prompts, and free the cache."""
        ...
