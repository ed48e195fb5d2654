"""Log-probs, entropies and divergences from a language-model head, computed in chunks of the sequence.

The logits of a whole batch are never allocated.

Only positions whose next token is a target go through the head, `CHUNK_ROWS` at a time. The backward pass
recomputes the logits, and their gradient by formula, with z the tempered logits, p their softmax, y the target,
H the entropy, D a divergence from another model and s its slopes (below):

    d log p_y / d z_j = [j = y] - p_j            H = -sum_v p_v log p_v
    d H / d z_j = -p_j (log p_j + H)             d D / d z_j = s_j - p_j sum_v s_v

Statistics are float32 for any dtype of the model.

A divergence, with p the policy, q the teacher, m = beta q + (1 - beta) p, is a sum over tokens v of f(p_v, q_v):

    reverse_kl  p (log p - log q)                                            KL(p || q); slope p (log p - log q + 1)
    forward_kl  q (log q - log p)                                            KL(q || p); slope -q
    jsd         beta q (log q - log m) + (1 - beta) p (log p - log m)        slope (1 - beta) p (log p - log m)

The jsd is equation 1 of GKD (Agarwal et al., arXiv 2306.13649). A slope is the derivative by log p_v, with the
other log-probs fixed. `top_k` restricts the sum to the k most likely tokens. What remains is no divergence of two
distributions and may be negative; it then counts as 0, without a slope, as in verl.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, assert_never

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

from strop.config.schema.distillation import DivergenceConfig, ForwardKlConfig, JsdConfig, ReverseKlConfig
from strop.models.dtensor import whole_parameter
from strop.transfers import Positions

CHUNK_ROWS = 256
"""Positions per chunk: enough for fast matrix products, with little memory for any vocabulary."""


@dataclass(frozen=True, slots=True)
class LogitTransform:
    """A model's transform of its head's output: logits * scale, then softcap * tanh(logits / softcap)."""

    scale: float = 1.0
    softcap: float | None = None

    def apply(self, logits: Tensor) -> Tensor:
        """The transformed logits; the same tensor if the transform is the identity."""
        if self.scale != 1.0:
            logits = logits * self.scale
        return logits if self.softcap is None else torch.tanh(logits / self.softcap) * self.softcap

    def slope(self, transformed: Tensor) -> Tensor | float:
        """Derivative of `apply`, computed from its result."""
        return (
            self.scale if self.softcap is None else self.scale * (1 - (transformed / self.softcap).square())
        )


class FrozenDistribution(Protocol):
    """Distribution of a frozen model at the positions of a micro-batch."""

    def logprobs(self, rows: Positions, temperature: Tensor) -> Tensor:
        """[n, V] float32 Log-probs of the next token at each of these n positions."""
        ...


@dataclass(frozen=True, slots=True)
class FrozenStates:
    """Hidden states of a frozen model for a micro-batch, and its head; logits are computed in chunks."""

    hidden: Tensor
    """[T, H]"""
    head: nn.Module
    transform: LogitTransform = LogitTransform()
    temperature: float | None = None
    """Divisor of the logits; None for that of the policy's."""

    @torch.no_grad()
    def logprobs(self, rows: Positions, temperature: Tensor) -> Tensor:
        """[n, V] float32 Log-probs of the next token at each of these n positions."""
        logits = self._head_output(self.hidden[rows.on_device])
        logits = self.transform.apply(logits.float())
        divisor = temperature[:, None] if self.temperature is None else self.temperature
        return logits.div_(divisor).log_softmax(-1)

    def _head_output(self, hidden: Tensor) -> Tensor:
        """The head as a function: DeepSpeed's order of modules would differ between ranks with their chunks."""
        head = self.head
        if type(head) is not nn.Linear:
            called: Tensor = head(hidden)
            return called
        bias = None if head.bias is None else whole_parameter(head.bias)
        return nn.functional.linear(hidden, whole_parameter(head.weight), bias)


@torch.no_grad()
def gathered_head(head: nn.Module) -> nn.Module:
    """The head of a frozen model as a whole, since tensor-parallel ranks may read it a different number of times."""
    weight = getattr(head, "weight", None)
    if not isinstance(weight, DTensor) or not any(placement.is_shard() for placement in weight.placements):
        return head
    gathered = nn.Linear(weight.shape[1], weight.shape[0], bias=head.bias is not None, device="meta")
    gathered.weight = nn.Parameter(whole_parameter(weight), requires_grad=False)
    if isinstance(head.bias, Tensor):
        gathered.bias = nn.Parameter(whole_parameter(head.bias), requires_grad=False)
    return gathered


@dataclass(frozen=True, slots=True)
class Comparison:
    """A divergence from the distribution of a frozen model."""

    other: FrozenDistribution
    divergence: DivergenceConfig


@torch.no_grad()
def squared_probability_sums(
    distribution: FrozenDistribution, rows: Positions, temperature: Tensor
) -> Tensor:
    """[N] Sum over the vocabulary of the squared probabilities of the next token at N positions `rows`."""
    sums = torch.empty_like(temperature)
    for c in _chunks(len(rows)):
        sums[c] = distribution.logprobs(rows[c], temperature[c]).mul_(2).exp_().sum(-1)
    return sums


@torch.no_grad()
def entropy_effects(distribution: FrozenDistribution, rows: Positions, temperature: Tensor) -> Tensor:
    """[N] Sum over the vocabulary of p^2 (H + log p) at N positions `rows`, with the probabilities p of the next token
    and their entropy H."""
    sums = torch.empty_like(temperature)
    for c in _chunks(len(rows)):
        logprobs = distribution.logprobs(rows[c], temperature[c])
        p = logprobs.exp()
        entropy = -(p * logprobs).nan_to_num().sum(-1, keepdim=True)
        sums[c] = (p.square() * (entropy + logprobs.clamp(min=-1e4))).sum(-1)
    return sums


def head_outputs(
    head: nn.Module,
    hidden: Tensor,
    rows: Positions,
    labels: Tensor,
    temperature: Tensor,
    transform: LogitTransform,
    *,
    entropy: bool,
    comparisons: Sequence[Comparison] = (),
) -> tuple[Tensor, Tensor | None, tuple[Tensor, ...]]:
    """Log-probs of the labels, entropies [N] if requested, and the divergence [N] of each comparison.

    Args:
        hidden: [T, H] hidden states of the decoder; gradients flow to them and to the head.
        rows: [N] positions whose states predict the labels.
        labels: [N], or [N, K] for K tokens at each position; the log-probs have the same shape.
    """
    if type(head) is nn.Linear:
        logprobs, entropies, *divergences = _Linear.apply(  # type: ignore[no-untyped-call]
            hidden,
            whole_parameter(head.weight, is_gradient_partial=True),
            None if head.bias is None else whole_parameter(head.bias, is_gradient_partial=True),
            rows,
            labels,
            temperature,
            transform,
            entropy,
            comparisons,
        )
    else:
        logprobs, entropies, *divergences = _through_module(
            head, hidden, rows, labels, temperature, transform, comparisons
        )
    return logprobs, entropies if entropy else None, tuple(divergences)


class _Linear(torch.autograd.Function):
    """`head_outputs` for a head that is a linear layer."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        rows: Positions,
        labels: Tensor,
        temperature: Tensor,
        transform: LogitTransform,
        entropy: bool,
        comparisons: Sequence[Comparison],
    ) -> tuple[Tensor | None, ...]:
        logprobs = torch.empty_like(labels, dtype=torch.float32)
        entropies, totals, *divergences = (torch.empty_like(temperature) for _ in range(2 + len(comparisons)))
        for c in _chunks(len(rows)):
            logits = _logits(hidden[rows[c].on_device], weight, bias, transform).div_(temperature[c, None])
            logprobs[c], entropies[c], totals[c] = _statistics(logits, labels[c], entropy)
            for compared, found in zip(comparisons, divergences, strict=True):
                other = compared.other.logprobs(rows[c], temperature[c])
                found[c] = token_divergences(logits, other, compared.divergence)
        ctx.save_for_backward(hidden, weight, bias, labels, temperature, entropies, totals)
        ctx.rows, ctx.transform, ctx.comparisons = rows, transform, comparisons
        ctx.set_materialize_grads(False)
        return logprobs, entropies if entropy else None, *divergences

    @staticmethod
    def backward(
        ctx: Any,
        grad_logprobs: Tensor | None,
        grad_entropy: Tensor | None,
        *grad_divergences: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, labels, temperature, entropies, totals = ctx.saved_tensors
        rows, wants = ctx.rows, ctx.needs_input_grad
        grad_hidden = torch.zeros_like(hidden) if wants[0] else None
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if wants[1] else None
        grad_bias = torch.zeros_like(bias, dtype=torch.float32) if wants[2] else None
        if grad_logprobs is None:
            grad_logprobs = torch.zeros_like(labels, dtype=torch.float32)
        compared = [
            (comparison, each)
            for comparison, each in zip(ctx.comparisons, grad_divergences, strict=True)
            if each is not None
        ]
        for c in _chunks(len(rows)):
            states, divisor = hidden[rows[c].on_device], temperature[c, None]
            logits = _logits(states, weight, bias, ctx.transform)
            slope = ctx.transform.slope(logits)
            every = logits.div_(divisor).sub_(totals[c, None])
            slopes = [
                (
                    divergence_slopes(
                        every, comparison.other.logprobs(rows[c], temperature[c]), comparison.divergence
                    ),
                    each[c],
                )
                for comparison, each in compared
            ]
            through_entropy = None if grad_entropy is None else (grad_entropy[c], entropies[c])
            grad = _gradient(every, labels[c], grad_logprobs[c], through_entropy, slopes)
            grad = grad.div_(divisor).mul_(slope).to(weight.dtype)
            if grad_hidden is not None:
                grad_hidden[rows[c].on_device] = grad @ weight
            if grad_weight is not None:
                grad_weight += grad.T @ states
            if grad_bias is not None:
                grad_bias += grad.sum(0)
        return (
            grad_hidden,
            None if grad_weight is None else grad_weight.to(weight.dtype),
            None if grad_bias is None else grad_bias.to(bias.dtype),
            *(None,) * 6,
        )


def _through_module(
    head: nn.Module,
    hidden: Tensor,
    rows: Positions,
    labels: Tensor,
    temperature: Tensor,
    transform: LogitTransform,
    comparisons: Sequence[Comparison],
) -> tuple[Tensor, ...]:
    """`head_outputs` for any other head, such as one with an adapter, by checkpointed chunks."""

    def outputs(states: Tensor, rows: Positions, labels: Tensor, temperature: Tensor) -> tuple[Tensor, ...]:
        logits = transform.apply(head(states).float()) / temperature[:, None]
        logprobs = torch.log_softmax(logits, -1)
        divergences = (
            token_divergences(logprobs, compared.other.logprobs(rows, temperature), compared.divergence)
            for compared in comparisons
        )
        entropies = -(logprobs.exp() * logprobs).sum(-1)
        return logprobs.gather(-1, _columns(labels)).view_as(labels), entropies, *divergences

    parts = [
        checkpoint(
            outputs, hidden[rows[c].on_device], rows[c], labels[c], temperature[c], use_reentrant=False
        )
        for c in _chunks(len(labels))
    ]
    return tuple(torch.cat(each) for each in zip(*parts, strict=True))


def _chunks(count: int) -> Iterator[slice]:
    """Chunks of rows; a single empty one of no rows, through which gradients of zero flow."""
    return (slice(i, min(i + CHUNK_ROWS, count)) for i in range(0, max(count, 1), CHUNK_ROWS))


def _columns(values: Tensor) -> Tensor:
    """[n, K] Values [n, K], or [n] with K = 1."""
    return values if values.dim() == 2 else values[:, None]


def _logits(states: Tensor, weight: Tensor, bias: Tensor | None, transform: LogitTransform) -> Tensor:
    """[n, V] float32"""
    return transform.apply(nn.functional.linear(states, weight, bias).float())


def _statistics(logits: Tensor, labels: Tensor, entropy: bool) -> tuple[Tensor, Tensor | float, Tensor]:
    """Log-probs of the labels, entropies [n] and log-sum-exp [n]. `logits` become all log-probs [n, V]."""
    highest = logits.amax(-1, keepdim=True)
    logits.sub_(highest)
    weights = logits.exp()
    total = weights.sum(-1)
    logs = total.log()
    entropies = logs - torch.linalg.vecdot(weights, logits) / total if entropy else 0.0
    picked = logits.sub_(logs[:, None]).gather(-1, _columns(labels)).view_as(labels)
    return picked, entropies, logs + highest[:, 0]


def _gradient(
    every: Tensor,
    labels: Tensor,
    grad: Tensor,
    through_entropy: tuple[Tensor, Tensor] | None,
    slopes: Sequence[tuple[Slopes, Tensor]],
) -> Tensor:
    """[n, V] Gradient of the tempered logits, from all log-probs `every` [n, V], which are overwritten.

    `through_entropy` holds the gradient of the entropies and the entropies; `slopes` those of each divergence
    and the gradient of the divergence.
    """
    same_for_all = _columns(grad).sum(-1)
    for each, grad_divergence in slopes:
        same_for_all += grad_divergence * each.values.sum(-1)
    if through_entropy is None:
        result = every.exp_().mul_(-same_for_all[:, None])
    else:
        grad_entropy, entropies = through_entropy
        p = every.exp()
        same_for_all += grad_entropy * entropies
        result = every.mul_(-grad_entropy[:, None]).sub_(same_for_all[:, None]).mul_(p)
    for each, grad_divergence in slopes:
        each.add_to(result, grad_divergence)
    return result.scatter_add_(-1, _columns(labels), _columns(grad))


@dataclass(frozen=True, slots=True)
class Slopes:
    """Derivatives of n divergences by log-probs of the policy."""

    tokens: Tensor | None
    """[n, k] int64 Tokens that were summed over; None for the first tokens of the vocabulary."""
    values: Tensor
    """[n, k] float32"""

    def add_to(self, gradient: Tensor, scale: Tensor) -> None:
        """Add the slopes, times `scale` [n], to a gradient [n, V]."""
        scaled = self.values * scale[:, None]
        if self.tokens is None:
            gradient[:, : scaled.shape[1]] += scaled
        else:
            gradient.scatter_add_(-1, self.tokens, scaled)


def token_divergences(policy: Tensor, teacher: Tensor, section: DivergenceConfig) -> Tensor:
    """[n] Divergences of n positions, from log-probs [n, V] each; differentiable by the policy's.

    Models of one tokenizer may pad their vocabularies to different sizes; the sum is over the tokens of both.
    """
    _, p, q = _summed(policy, teacher, section)
    return _counted(_terms(p, q, section).sum(-1), section)


def divergence_slopes(policy: Tensor, teacher: Tensor, section: DivergenceConfig) -> Slopes:
    """Derivatives of `token_divergences` by the policy's log-probs."""
    tokens, p, q = _summed(policy, teacher, section)
    match section:
        case ReverseKlConfig():
            values = (p - q).add_(1).mul_(p.exp())
        case ForwardKlConfig():
            values = -q.exp()
        case JsdConfig():
            values = (p - _mixture(p, q, section.beta)).mul_(p.exp()).mul_(1 - section.beta)
        case _:
            assert_never(section)
    if section.min_logprob is not None:
        own = policy[:, : p.shape[1]] if tokens is None else policy.gather(-1, tokens)
        values.masked_fill_(own < section.min_logprob, 0.0)
    if section.top_k is not None:
        values.masked_fill_((_terms(p, q, section).sum(-1) < 0)[:, None], 0.0)
    return Slopes(tokens, values)


def _summed(
    policy: Tensor, teacher: Tensor, section: DivergenceConfig
) -> tuple[Tensor | None, Tensor, Tensor]:
    """The tokens that are summed over, and both models' bounded log-probs of them."""
    shared = min(policy.shape[1], teacher.shape[1])
    p, q, tokens = policy[:, :shared], teacher[:, :shared], None
    if section.top_k is not None:
        likely = q if section.top_k_of == "teacher" else p
        tokens = likely.detach().topk(min(section.top_k, shared), dim=-1).indices
        p, q = p.gather(-1, tokens), q.gather(-1, tokens)
    if section.min_logprob is not None:
        p, q = p.clamp_min(section.min_logprob), q.clamp_min(section.min_logprob)
    return tokens, p, q


def _terms(p: Tensor, q: Tensor, section: DivergenceConfig) -> Tensor:
    """The summands, from log-probs."""
    match section:
        case ReverseKlConfig():
            return p.exp() * (p - q)
        case ForwardKlConfig():
            return q.exp() * (q - p)
        case JsdConfig(beta=beta):
            mixture = _mixture(p, q, beta)
            return beta * q.exp() * (q - mixture) + (1 - beta) * p.exp() * (p - mixture)
        case _:
            assert_never(section)


def _mixture(p: Tensor, q: Tensor, beta: float) -> Tensor:
    """Log-probs of beta q + (1 - beta) p."""
    return torch.logaddexp(p + math.log1p(-beta), q + math.log(beta))


def _counted(divergences: Tensor, section: DivergenceConfig) -> Tensor:
    return divergences if section.top_k is None else divergences.clamp_min(0.0)
