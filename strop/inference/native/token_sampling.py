"""Sampling of tokens from logits: repetition penalty, Hugging Face's filters, and log-probs of the result.

Each filter changes float32 `scores` [n, V] in place; its option is a column [n, 1], one value per row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from strop.inference.native.model.runner import Compaction
from strop.inference.native.pending_request import PendingRequest
from strop.types import SamplingParams

_SCORES_AT_ONCE = 1 << 20
"""Scores of a CPU's rows that are sampled from at once: their 4 MiB stay in the core's cache, and in the heap, while
larger tensors would come from the system at each step, which zeroes their pages."""


def apply_repetition_penalty(scores: torch.Tensor, seen: torch.Tensor, penalty: torch.Tensor) -> None:
    """Make tokens in `seen` [n, V] bool less likely if the penalty is above 1 (arXiv 1909.05858)."""
    penalized = torch.where(scores < 0, scores * penalty, scores / penalty)
    torch.where(seen, penalized, scores, out=scores)


def filter_top_k(scores: torch.Tensor, top_k: torch.Tensor, *, largest: int) -> None:
    """Keep the k most likely tokens, and all that tie with the last of them; `largest` is the largest k."""
    limit = min(largest, scores.shape[1])
    highest = scores.topk(limit, dim=-1).values
    scores.masked_fill_(scores < highest.gather(1, top_k.clamp(max=limit) - 1), -torch.inf)


def filter_top_p(scores: torch.Tensor, tail: torch.Tensor) -> None:
    """Drop the least likely tokens with a total probability of at most `tail` = 1 - top_p (arXiv 1904.09751)."""
    ordered, order = scores.sort(dim=-1)
    dropped = ordered.softmax(dim=-1).cumsum_(dim=-1) <= tail
    dropped[:, -1] = False
    scores.masked_fill_(torch.zeros_like(dropped).scatter_(1, order, dropped), -torch.inf)


def filter_min_p(scores: torch.Tensor, min_p: torch.Tensor) -> None:
    """Drop tokens less likely than `min_p` times the most likely token (arXiv 2407.01082)."""
    probabilities = scores.softmax(dim=-1)
    scores.masked_fill_(probabilities < min_p * probabilities.amax(dim=-1, keepdim=True), -torch.inf)


@dataclass(frozen=True, slots=True)
class RowOption:
    """Values of one sampling option for the rows that use it."""

    rows: torch.Tensor
    """[n] int64"""
    values: torch.Tensor
    """[n, 1]"""


@dataclass(frozen=True, slots=True)
class SamplingMetadata:
    """Sampling options of R rows, rebuilt only when rows change; an option that no row uses is None."""

    temperature: torch.Tensor | None
    """[R, 1] Temperatures, 1 for greedy rows; None where all are 1."""
    greedy: torch.Tensor | None
    """[R] bool"""
    all_greedy: bool
    repetition_penalty: RowOption | None
    top_k: RowOption | None
    largest_top_k: int
    """Largest value of `top_k`, on the host; 0 without one."""
    top_p_tail: RowOption | None
    """1 - top_p"""
    min_p: RowOption | None

    @property
    def has_filters(self) -> bool:
        """Whether any row samples from another distribution than its tempered one."""
        options = (self.repetition_penalty, self.top_k, self.top_p_tail, self.min_p)
        return any(option is not None for option in options)


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """One token for each row."""

    tokens: torch.Tensor
    """[R] int64"""
    sampler_logprobs: torch.Tensor
    """[R] float32"""
    policy_logprobs: torch.Tensor
    """[R] float32"""


def build_sampling_metadata(samplings: Sequence[SamplingParams], device: torch.device) -> SamplingMetadata:
    """Collect the options of all rows. A greedy row uses no option but the repetition penalty."""

    def option(
        is_used: Callable[[SamplingParams], bool], value: Callable[[SamplingParams], float]
    ) -> RowOption | None:
        rows = [row for row, sampling in enumerate(samplings) if is_used(sampling)]
        if not rows:
            return None
        values = torch.tensor([value(samplings[row]) for row in rows], device=device)
        return RowOption(torch.tensor(rows, device=device), values[:, None])

    greedy = [sampling.temperature == 0 for sampling in samplings]
    temperatures = [sampling.temperature or 1.0 for sampling in samplings]
    is_tempered = any(temperature != 1 for temperature in temperatures)
    return SamplingMetadata(
        temperature=torch.tensor(temperatures, device=device)[:, None] if is_tempered else None,
        greedy=torch.tensor(greedy, device=device) if any(greedy) else None,
        all_greedy=all(greedy),
        repetition_penalty=option(lambda s: s.repetition_penalty != 1, lambda s: s.repetition_penalty),
        top_k=option(lambda s: s.temperature > 0 and s.top_k > 0, lambda s: s.top_k),
        largest_top_k=max((s.top_k for s in samplings if s.temperature > 0), default=0),
        top_p_tail=option(lambda s: s.temperature > 0 and s.top_p < 1, lambda s: 1 - s.top_p),
        min_p=option(lambda s: s.temperature > 0 and s.min_p > 0, lambda s: s.min_p),
    )


def sample_tokens(
    logits: torch.Tensor,
    metadata: SamplingMetadata,
    uniforms: torch.Tensor,
    *,
    seen: torch.Tensor | None = None,
    banned: torch.Tensor | None = None,
) -> SampledTokens:
    """Sample one token for each row of `logits` [R, V] with its uniform [R] in [0, 1).

    `seen` [n, V] bool: tokens in prompt and completion, of the rows with a repetition penalty.
    `banned` [R, V] bool: tokens that must not be sampled in this step. The order is Hugging Face's: penalty,
    banned tokens, temperature, top-k, top-p, min-p.
    """
    if metadata.greedy is None and banned is None and not metadata.has_filters:
        return _sample_from_softmax(logits, metadata.temperature, uniforms)
    scores = logits.float()
    policy = _apply_temperature(scores, metadata).log_softmax(dim=-1)
    if metadata.repetition_penalty is not None and seen is not None:
        scores = scores.clone() if scores is logits else scores
        _apply_to_rows(apply_repetition_penalty, scores, metadata.repetition_penalty, seen)
    if banned is not None:
        scores = scores.masked_fill(banned, -torch.inf)
    if metadata.all_greedy:
        tokens = argmax_tokens(scores)
        sampled = torch.zeros(len(tokens), device=scores.device)
    else:
        tokens, sampled = _sample_filtered(scores, metadata, uniforms)
    return SampledTokens(tokens, sampled, policy.gather(1, tokens[:, None])[:, 0])


def _sample_from_softmax(
    logits: torch.Tensor, temperature: torch.Tensor | None, uniforms: torch.Tensor
) -> SampledTokens:
    """Tokens where no option but the temperature applies; on a CPU, of some rows at a time."""
    size = max(1, len(logits) if logits.is_cuda else _SCORES_AT_ONCE // logits.shape[1])
    tokens, logprobs = torch.empty_like(uniforms, dtype=torch.int64), torch.empty_like(uniforms)
    for first in range(0, len(logits), size):
        rows = slice(first, first + size)
        scores = logits[rows].float()
        probabilities = (scores if temperature is None else scores / temperature[rows]).softmax(dim=-1)
        tokens[rows] = invert_cdf(probabilities, uniforms[rows])
        logprobs[rows] = probabilities.gather(1, tokens[rows, None])[:, 0].log_()
    return SampledTokens(tokens, logprobs, logprobs)


def invert_cdf(probabilities: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """[R] The first token whose cumulative sum in `probabilities` [R, V] exceeds uniform [R] times the total.

    The sum has two levels, blocks and then the tokens of one block: a cumulative sum over the whole
    vocabulary would cost more than the softmax. A token of probability 0 is never sampled.
    """
    rows, vocab = probabilities.shape
    size = math.gcd(vocab, 64)
    blocks = probabilities.view(rows, vocab // size, size)
    block_ends = blocks.sum(dim=-1).cumsum_(dim=-1)
    target = uniforms[:, None] * block_ends[:, -1:]
    block = _first_above(block_ends, target)
    before = torch.where(block > 0, block_ends.gather(1, (block - 1).clamp(min=0)), 0.0)
    inside = blocks[torch.arange(rows, device=probabilities.device), block[:, 0]].cumsum_(dim=-1)
    return (block * size + _first_above(inside, target - before))[:, 0]


def argmax_tokens(scores: torch.Tensor) -> torch.Tensor:
    """[R] The first token of the highest score, in two levels like `invert_cdf`."""
    rows, vocab = scores.shape
    size = math.gcd(vocab, 64)
    blocks = scores.view(rows, vocab // size, size)
    block = blocks.amax(dim=-1).argmax(dim=-1)
    return block * size + blocks[torch.arange(rows, device=scores.device), block].argmax(dim=-1)


def _sample_filtered(
    scores: torch.Tensor, metadata: SamplingMetadata, uniforms: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    tempered = _apply_temperature(scores, metadata)
    tempered = tempered.clone() if tempered is scores else tempered
    for apply_filter, option in (
        (partial(filter_top_k, largest=metadata.largest_top_k), metadata.top_k),
        (filter_top_p, metadata.top_p_tail),
        (filter_min_p, metadata.min_p),
    ):
        if option is not None:
            _apply_to_rows(apply_filter, tempered, option)
    logprobs = tempered.log_softmax(dim=-1)
    tokens = invert_cdf(logprobs.exp(), uniforms)
    sampled = logprobs.gather(1, tokens[:, None])[:, 0]
    if metadata.greedy is not None:
        tokens = torch.where(metadata.greedy, argmax_tokens(scores), tokens)
        sampled = sampled.masked_fill(metadata.greedy, 0.0)
    return tokens, sampled


def _apply_temperature(scores: torch.Tensor, metadata: SamplingMetadata) -> torch.Tensor:
    """Scores divided by temperature; the same tensor if every row's temperature is 1 or 0."""
    return scores if metadata.temperature is None else scores / metadata.temperature


def _apply_to_rows(
    apply: Callable[..., None], scores: torch.Tensor, option: RowOption, *arguments: torch.Tensor
) -> None:
    """Change only the rows that use the option."""
    if len(option.rows) == len(scores):
        apply(scores, *arguments, option.values)
        return
    selected = scores[option.rows]
    apply(selected, *arguments, option.values)
    scores[option.rows] = selected


def _first_above(cumulative: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """[R, 1] Index of the first value in rising `cumulative` [R, n] above the target.

    The target is capped just below the last value, so that rounding never gives an index past the end; the index is
    capped too, for values that are NaN.
    """
    below_end = cumulative[:, -1:] * (1 - 2.0**-20)
    found = torch.searchsorted(cumulative, torch.minimum(target, below_end), right=True)
    return found.clamp_(max=cumulative.shape[1] - 1)


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
