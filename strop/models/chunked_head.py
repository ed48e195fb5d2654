"""Log-probs, entropies and divergences from a language-model head, computed in chunks of the sequence.

The logits of a whole batch are never allocated.

Only positions whose next token is a target go through the head, `CHUNK_ROWS` at a time. The backward pass
recomputes the logits, and their gradient by formula, with z the tempered logits, p their softmax, q that of
the reference, y the target, H the entropy and D the divergence:

    d log p_y / d z_j = [j = y] - p_j            H = -sum_v p_v log p_v
    d H / d z_j = -p_j (log p_j + H)             D = sum_v p_v (log p_v - log q_v)
    d D / d z_j = p_j (log p_j - log q_j - D)

Statistics are float32 for any dtype of the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

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


@dataclass(frozen=True, slots=True)
class ReferenceStates:
    """Hidden states of a reference model for a micro-batch, and its head; logits are computed in chunks."""

    hidden: Tensor
    """[T, H]"""
    head: nn.Module

    @torch.no_grad()
    def logprobs(self, rows: Tensor, temperature: Tensor, transform: LogitTransform) -> Tensor:
        """[n, V] float32 Log-probs of the next token at each of these n positions."""
        logits = transform.apply(self.head(self.hidden[rows]).float())
        return logits.div_(temperature[:, None]).log_softmax(-1)


@torch.no_grad()
def squared_probability_sums(
    states: ReferenceStates, rows: Tensor, temperature: Tensor, transform: LogitTransform
) -> Tensor:
    """[N] Sum over the vocabulary of the squared probabilities of the next token at N positions `rows`."""
    sums = torch.empty_like(temperature)
    for c in _chunks(len(rows)):
        sums[c] = states.logprobs(rows[c], temperature[c], transform).mul_(2).exp_().sum(-1)
    return sums


def head_outputs(
    head: nn.Module,
    hidden: Tensor,
    rows: Tensor,
    labels: Tensor,
    temperature: Tensor,
    transform: LogitTransform,
    *,
    entropy: bool,
    reference: ReferenceStates | None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """[N] each: log-probs of N labels, entropies if requested, and divergences from a reference if given.

    Args:
        hidden: [T, H] hidden states of the decoder; gradients flow to them and to the head.
        rows: [N] positions whose states predict the labels [N].
    """
    if type(head) is nn.Linear:
        found: tuple[Tensor, Tensor | None, Tensor | None] = _Linear.apply(  # type: ignore[no-untyped-call]
            hidden, head.weight, head.bias, rows, labels, temperature, transform, entropy, reference
        )
        return found
    logprobs, entropies, divergences = _through_module(
        head, hidden, rows, labels, temperature, transform, reference
    )
    return logprobs, entropies if entropy else None, None if reference is None else divergences


class _Linear(torch.autograd.Function):
    """`head_outputs` for a head that is a linear layer."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        rows: Tensor,
        labels: Tensor,
        temperature: Tensor,
        transform: LogitTransform,
        entropy: bool,
        reference: ReferenceStates | None,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        logprobs, entropies, divergences, totals = (torch.empty_like(temperature) for _ in range(4))
        for c in _chunks(len(rows)):
            logits = _logits(hidden[rows[c]], weight, bias, transform).div_(temperature[c, None])
            ref = None if reference is None else reference.logprobs(rows[c], temperature[c], transform)
            logprobs[c], entropies[c], divergences[c], totals[c] = _statistics(
                logits, labels[c], entropy, ref
            )
        ctx.save_for_backward(hidden, weight, bias, rows, labels, temperature, entropies, divergences, totals)
        ctx.transform, ctx.reference = transform, reference
        ctx.set_materialize_grads(False)
        return logprobs, entropies if entropy else None, None if reference is None else divergences

    @staticmethod
    def backward(
        ctx: Any, grad_logprobs: Tensor | None, grad_entropy: Tensor | None, grad_divergence: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, rows, labels, temperature, entropies, divergences, totals = ctx.saved_tensors
        wants = ctx.needs_input_grad
        grad_hidden = torch.zeros_like(hidden) if wants[0] else None
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if wants[1] else None
        grad_bias = torch.zeros_like(bias, dtype=torch.float32) if wants[2] else None
        if grad_logprobs is None:
            grad_logprobs = torch.zeros_like(temperature)
        for c in _chunks(len(rows)):
            states, divisor = hidden[rows[c]], temperature[c, None]
            logits = _logits(states, weight, bias, ctx.transform)
            slope = ctx.transform.slope(logits)
            every = logits.div_(divisor).sub_(totals[c, None])
            grad = _gradient(
                every,
                labels[c],
                grad_logprobs[c],
                None if grad_entropy is None else (grad_entropy[c], entropies[c]),
                None
                if grad_divergence is None
                else (
                    grad_divergence[c],
                    divergences[c],
                    ctx.reference.logprobs(rows[c], temperature[c], ctx.transform),
                ),
            )
            grad = grad.div_(divisor).mul_(slope).to(weight.dtype)
            if grad_hidden is not None:
                grad_hidden[rows[c]] = grad @ weight
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
    rows: Tensor,
    labels: Tensor,
    temperature: Tensor,
    transform: LogitTransform,
    reference: ReferenceStates | None,
) -> tuple[Tensor, ...]:
    """`head_outputs` for any other head, such as one with an adapter, by checkpointed chunks."""

    def outputs(
        states: Tensor, rows: Tensor, labels: Tensor, temperature: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        logits = transform.apply(head(states).float()) / temperature[:, None]
        logprobs = torch.log_softmax(logits, -1)
        p = logprobs.exp()
        divergence = torch.zeros_like(temperature)
        if reference is not None:
            divergence = (p * (logprobs - reference.logprobs(rows, temperature, transform))).sum(-1)
        return logprobs.gather(-1, labels[:, None])[:, 0], -(p * logprobs).sum(-1), divergence

    parts = [
        checkpoint(outputs, hidden[rows[c]], rows[c], labels[c], temperature[c], use_reentrant=False)
        for c in _chunks(len(labels))
    ]
    return tuple(torch.cat(each) for each in zip(*parts, strict=True))


def _chunks(count: int) -> Iterator[slice]:
    return (slice(i, min(i + CHUNK_ROWS, count)) for i in range(0, count, CHUNK_ROWS))


def _logits(states: Tensor, weight: Tensor, bias: Tensor | None, transform: LogitTransform) -> Tensor:
    """[n, V] float32"""
    return transform.apply(nn.functional.linear(states, weight, bias).float())


def _statistics(
    logits: Tensor, labels: Tensor, entropy: bool, reference: Tensor | None
) -> tuple[Tensor, Tensor | float, Tensor | float, Tensor]:
    """[n] each: log-probs, entropies, divergences from the reference's log-probs [n, V], and log-sum-exp.

    `logits` is overwritten.
    """
    highest = logits.amax(-1, keepdim=True)
    logits.sub_(highest)
    picked = logits.gather(-1, labels[:, None])[:, 0]
    weights = logits.exp()
    total = weights.sum(-1)
    logs = total.log()
    entropies = logs - torch.linalg.vecdot(weights, logits) / total if entropy else 0.0
    divergences: Tensor | float = 0.0
    if reference is not None:
        divergences = torch.linalg.vecdot(weights, logits.sub_(reference)) / total - logs
    return picked - logs, entropies, divergences, logs + highest[:, 0]


def _gradient(
    every: Tensor,
    labels: Tensor,
    grad: Tensor,
    through_entropy: tuple[Tensor, Tensor] | None,
    through_divergence: tuple[Tensor, Tensor, Tensor] | None,
) -> Tensor:
    """[n, V] Gradient of the tempered logits, from all log-probs `every` [n, V].

    `through_entropy` holds the gradient of the entropies and the entropies; `through_divergence` the same of
    the divergences, and the reference's log-probs [n, V]. Arguments of shape [n, V] are overwritten.
    """
    if through_entropy is None and through_divergence is None:
        result = every.exp_().mul_(-grad[:, None])
    else:
        nothing, p = torch.zeros_like(grad), every.exp()
        grad_entropy, entropies = through_entropy or (nothing, nothing)
        grad_divergence, divergences, reference = through_divergence or (nothing, nothing, None)
        same_for_all = grad + grad_entropy * entropies + grad_divergence * divergences
        result = every.mul_((grad_divergence - grad_entropy)[:, None]).sub_(same_for_all[:, None])
        if reference is not None:
            result.sub_(reference.mul_(grad_divergence[:, None]))
        result.mul_(p)
    return result.scatter_add_(-1, labels[:, None], grad[:, None])
