"""From logits to tokens, with the log-probs of what was drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from strop.inference.native.cuts import cut_min_p, cut_top_k, cut_top_p, penalise_seen
from strop.types import Sampling


@dataclass(frozen=True, slots=True)
class Setting:
    """One option, for those rows that use it."""

    rows: torch.Tensor
    """[n] int64"""
    values: torch.Tensor
    """[n, 1]"""


@dataclass(frozen=True, slots=True)
class Choice:
    """How each of R rows draws; made anew only when rows come or go. None: no row uses the option."""

    temperature: Setting | None
    """Rows whose temperature is neither 1 nor 0."""
    greedy: torch.Tensor | None
    """[R] bool"""
    all_greedy: bool
    repetition_penalty: Setting | None
    top_k: Setting | None
    top_p_tail: Setting | None
    """1 - top_p"""
    min_p: Setting | None

    @property
    def shaped(self) -> bool:
        """Whether any row draws from something else than its tempered distribution."""
        options = (self.repetition_penalty, self.top_k, self.top_p_tail, self.min_p)
        return any(option is not None for option in options)


@dataclass(frozen=True, slots=True)
class Drawn:
    """One token for each row."""

    tokens: torch.Tensor
    """[R] int64"""
    sampler_logprobs: torch.Tensor
    """[R] float32"""
    policy_logprobs: torch.Tensor
    """[R] float32"""


def choice_of(samplings: Sequence[Sampling], device: torch.device) -> Choice:
    """Gather the rows' settings. A greedy row uses no option but the repetition penalty."""

    def setting(used: Callable[[Sampling], bool], value: Callable[[Sampling], float]) -> Setting | None:
        rows = [row for row, sampling in enumerate(samplings) if used(sampling)]
        if not rows:
            return None
        values = torch.tensor([value(samplings[row]) for row in rows], device=device)
        return Setting(torch.tensor(rows, device=device), values[:, None])

    greedy = [sampling.temperature == 0 for sampling in samplings]
    return Choice(
        temperature=setting(lambda s: s.temperature not in (0, 1), lambda s: s.temperature),
        greedy=torch.tensor(greedy, device=device) if any(greedy) else None,
        all_greedy=all(greedy),
        repetition_penalty=setting(lambda s: s.repetition_penalty != 1, lambda s: s.repetition_penalty),
        top_k=setting(lambda s: s.temperature > 0 and s.top_k > 0, lambda s: s.top_k),
        top_p_tail=setting(lambda s: s.temperature > 0 and s.top_p < 1, lambda s: 1 - s.top_p),
        min_p=setting(lambda s: s.temperature > 0 and s.min_p > 0, lambda s: s.min_p),
    )


def draw(
    logits: torch.Tensor,
    choice: Choice,
    uniforms: torch.Tensor,
    *,
    seen: torch.Tensor | None = None,
    barred: torch.Tensor | None = None,
) -> Drawn:
    """Draw one token for each row of `logits` [R, V] with its uniform [R] in [0, 1).

    `seen` [n, V] bool: tokens in prompt and answer, of the rows with a repetition penalty.
    `barred` [R, V] bool: tokens that cannot be drawn now. Hugging Face's order: penalty, bars,
    temperature, top-k, top-p, min-p.
    """
    scores = logits.float()
    if choice.greedy is None and barred is None and not choice.shaped:
        shares = _tempered(scores, choice).softmax(dim=-1)
        tokens = invert_cdf(shares, uniforms)
        logprobs = shares.gather(1, tokens[:, None])[:, 0].log_()
        return Drawn(tokens, logprobs, logprobs)
    policy = _tempered(scores, choice).log_softmax(dim=-1)
    if choice.repetition_penalty is not None and seen is not None:
        scores = scores.clone() if scores is logits else scores
        _apply(penalise_seen, scores, choice.repetition_penalty, seen)
    if barred is not None:
        scores = scores.masked_fill(barred, -torch.inf)
    if choice.all_greedy:
        tokens = likeliest(scores)
        sampled = torch.zeros(len(tokens), device=scores.device)
    else:
        tokens, sampled = _draw_shaped(scores, choice, uniforms)
    return Drawn(tokens, sampled, policy.gather(1, tokens[:, None])[:, 0])


def invert_cdf(shares: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """[R] The first token at which the cumulative sum of `shares` [R, V] passes the uniform [R] of the total.

    Summed in two levels, blocks and then the tokens of one block: a running sum over the whole
    vocabulary would cost more than the softmax. A token without a share is never drawn.
    """
    rows, vocab = shares.shape
    size = math.gcd(vocab, 64)
    blocks = shares.view(rows, vocab // size, size)
    block_ends = blocks.sum(dim=-1).cumsum_(dim=-1)
    target = uniforms[:, None] * block_ends[:, -1:]
    block = _first_above(block_ends, target)
    before = torch.where(block > 0, block_ends.gather(1, (block - 1).clamp(min=0)), 0.0)
    inside = blocks[torch.arange(rows, device=shares.device), block[:, 0]].cumsum_(dim=-1)
    return (block * size + _first_above(inside, target - before))[:, 0]


def likeliest(scores: torch.Tensor) -> torch.Tensor:
    """[R] The first token of the highest score, in two levels like `invert_cdf`."""
    rows, vocab = scores.shape
    size = math.gcd(vocab, 64)
    blocks = scores.view(rows, vocab // size, size)
    block = blocks.amax(dim=-1).argmax(dim=-1)
    return block * size + blocks[torch.arange(rows, device=scores.device), block].argmax(dim=-1)


def _draw_shaped(
    scores: torch.Tensor, choice: Choice, uniforms: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    tempered = _tempered(scores, choice)
    tempered = tempered.clone() if tempered is scores else tempered
    for cut, setting in (
        (cut_top_k, choice.top_k),
        (cut_top_p, choice.top_p_tail),
        (cut_min_p, choice.min_p),
    ):
        if setting is not None:
            _apply(cut, tempered, setting)
    logprobs = tempered.log_softmax(dim=-1)
    tokens = invert_cdf(logprobs.exp(), uniforms)
    sampled = logprobs.gather(1, tokens[:, None])[:, 0]
    if choice.greedy is not None:
        tokens = torch.where(choice.greedy, likeliest(scores), tokens)
        sampled = sampled.masked_fill(choice.greedy, 0.0)
    return tokens, sampled


def _tempered(scores: torch.Tensor, choice: Choice) -> torch.Tensor:
    """Scores over temperature; the same tensor where every row's is 1."""
    setting = choice.temperature
    if setting is None:
        return scores
    if len(setting.rows) == len(scores):
        return scores / setting.values
    return scores.index_copy(0, setting.rows, scores[setting.rows] / setting.values)


def _apply(cut: Callable[..., None], scores: torch.Tensor, setting: Setting, *more: torch.Tensor) -> None:
    """Change only the rows that use the option."""
    if len(setting.rows) == len(scores):
        cut(scores, *more, setting.values)
        return
    part = scores[setting.rows]
    cut(part, *more, setting.values)
    scores[setting.rows] = part


def _first_above(ends: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """[R, 1] The first place of rising `ends` [R, n] above the target; rounding never leads past the last."""
    below_end = ends[:, -1:] * (1 - 2.0**-20)
    return torch.searchsorted(ends, torch.minimum(target, below_end), right=True)
