"""Log-probs and entropies of the targets, in chunks: the logits of a whole batch never exist.

Only positions whose next token is a target go through the language-model head, `CHUNK_ROWS` of them
at a time. The backward pass computes the logits again and their gradient by formula, with z the
tempered logits, p their softmax, y the target and H the entropy:

    d log p_y / d z_j = [j = y] - p_j            d H / d z_j = -p_j (log p_j + H)

Statistics are float32 whatever the model's dtype.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from strop.errors import ModelError
from strop.models.attention import base_model, packed_forward
from strop.types import MicroBatch, TokenOutputs

CHUNK_ROWS = 256
"""Positions at once: enough for fast matrix products, little memory at any vocabulary."""
LOGITS_TOLERANCE = 0.02
"""How far, relative to their norm, our logits may be from the model's own: bfloat16 rounds."""


@dataclass(frozen=True, slots=True)
class LogitTransform:
    """What a model does to its head's output: logits * scale, then softcap * tanh(logits / softcap)."""

    scale: float = 1.0
    softcap: float | None = None

    def apply(self, logits: Tensor) -> Tensor:
        """What the model makes of its head's output; the very tensor where that is nothing."""
        if self.scale != 1.0:
            logits = logits * self.scale
        return logits if self.softcap is None else torch.tanh(logits / self.softcap) * self.softcap

    def slope(self, transformed: Tensor) -> Tensor | float:
        """The derivative of `apply`, from its result."""
        return (
            self.scale if self.softcap is None else self.scale * (1 - (transformed / self.softcap).square())
        )


def token_outputs(model: nn.Module, micro_batch: MicroBatch, *, entropy: bool) -> TokenOutputs:
    """Log-prob, and entropy if asked, of each target; the gradient flows through both.

    A target's logits are divided by its `temperature`: these are the log-probs of what was sampled.
    """
    hidden = packed_forward(model, micro_batch)
    base = base_model(model)
    head = _head(base)
    targets = micro_batch.loss_mask.nonzero()[:, 0]
    labels = micro_batch.token_ids[targets]
    temperature = micro_batch.temperature[targets]
    transform = logit_transform(base)
    if type(head) is nn.Linear:
        logprobs, entropies = _HeadOutputs.apply(  # type: ignore[no-untyped-call]
            hidden, head.weight, head.bias, targets - 1, labels, temperature, transform, entropy
        )
    else:
        logprobs, entropies = _through_module(head, hidden[targets - 1], labels, temperature, transform)

    def in_place(values: Tensor) -> Tensor:
        return values.new_zeros(len(hidden)).index_copy(0, targets, values)

    return TokenOutputs(in_place(logprobs), in_place(entropies) if entropy else None)


def logit_transform(base: PreTrainedModel) -> LogitTransform:
    """What this model's configuration says it does to its logits (Gemma 2, Cohere, Granite)."""
    config = base.config.get_text_config()
    scale = getattr(config, "logit_scale", None) or 1.0
    scale /= getattr(config, "logits_scaling", None) or 1.0
    return LogitTransform(scale, getattr(config, "final_logit_softcapping", None))


@torch.no_grad()
def check_logits(model: nn.Module) -> None:
    """Raise ModelError unless head and transform, as used here, give the model's own logits."""
    base = base_model(model)
    decoder: nn.Module = base.get_decoder()  # type: ignore[no-untyped-call]
    seen: list[Tensor] = []
    hook = decoder.register_forward_hook(lambda _m, _a, output: seen.append(output.last_hidden_state))
    try:
        expected = base(input_ids=torch.arange(4, device=base.device)[None], use_cache=False).logits.float()
    finally:
        hook.remove()
    ours = logit_transform(base).apply(_head(base)(seen[0]).float())
    distance = float((ours - expected).norm() / expected.norm())
    if distance > LOGITS_TOLERANCE:
        raise ModelError(
            f"Strop cannot compute the log-probs of {type(base).__name__}: its logits are not its head's "
            f"output (they differ by {distance:.2g} of their norm)."
        )


class _HeadOutputs(torch.autograd.Function):
    """Log-probs [N] and, if asked, entropies [N] of N targets, from hidden [T, H] and a linear head."""

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
    ) -> tuple[Tensor, Tensor | None]:
        logprobs, entropies, totals = (torch.empty_like(temperature) for _ in range(3))
        for c in _chunks(len(rows)):
            logits = _logits(hidden[rows[c]], weight, bias, transform).div_(temperature[c, None])
            logprobs[c], entropies[c], totals[c] = _statistics(logits, labels[c], entropy)
        ctx.save_for_backward(hidden, weight, bias, rows, labels, temperature, entropies, totals)
        ctx.transform = transform
        ctx.set_materialize_grads(False)
        return logprobs, entropies if entropy else None

    @staticmethod
    def backward(
        ctx: Any, grad_logprobs: Tensor | None, grad_entropy: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, rows, labels, temperature, entropies, totals = ctx.saved_tensors
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
            through_entropy = None if grad_entropy is None else (grad_entropy[c], entropies[c])
            grad = _gradient(every, labels[c], grad_logprobs[c], through_entropy)
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
            *(None,) * 5,
        )


def _head(base: PreTrainedModel) -> nn.Module:
    head: nn.Module | None = base.get_output_embeddings()  # type: ignore[no-untyped-call]
    if head is None:
        raise ModelError(f"{type(base).__name__} has no language-model head, and so no log-probs.")
    return head


def _through_module(
    head: nn.Module, states: Tensor, labels: Tensor, temperature: Tensor, transform: LogitTransform
) -> tuple[Tensor, Tensor]:
    """The same for a head that is more than a matrix (one with an adapter, say), by checkpointed chunks."""

    def outputs(states: Tensor, labels: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
        logits = transform.apply(head(states).float()) / temperature[:, None]
        logprobs = torch.log_softmax(logits, -1)
        entropy = -(logprobs.exp() * logprobs).sum(-1)
        return logprobs.gather(-1, labels[:, None])[:, 0], entropy

    parts = [
        checkpoint(outputs, states[c], labels[c], temperature[c], use_reentrant=False)
        for c in _chunks(len(labels))
    ]
    logprobs, entropies = zip(*parts, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)


def _chunks(count: int) -> Iterator[slice]:
    return (slice(i, min(i + CHUNK_ROWS, count)) for i in range(0, count, CHUNK_ROWS))


def _logits(states: Tensor, weight: Tensor, bias: Tensor | None, transform: LogitTransform) -> Tensor:
    """[n, V] float32"""
    return transform.apply(nn.functional.linear(states, weight, bias).float())


def _statistics(logits: Tensor, labels: Tensor, entropy: bool) -> tuple[Tensor, Tensor | float, Tensor]:
    """[n] each: log-probs, entropies, and the log of the exponentials' sum; `logits` are used up."""
    highest = logits.amax(-1, keepdim=True)
    logits.sub_(highest)
    picked = logits.gather(-1, labels[:, None])[:, 0]
    weights = logits.exp()
    total = weights.sum(-1)
    logs = total.log()
    entropies = logs - torch.linalg.vecdot(weights, logits) / total if entropy else 0.0
    return picked - logs, entropies, logs + highest[:, 0]


def _gradient(
    every: Tensor, labels: Tensor, grad: Tensor, through_entropy: tuple[Tensor, Tensor] | None
) -> Tensor:
    """[n, V] of the tempered logits, from all log-probs [n, V], which are used up. `through_entropy` is
    the gradient of the entropies, and these."""
    if through_entropy is None:
        result = every.exp_().mul_(-grad[:, None])
    else:
        grad_entropy, entropies = through_entropy
        p = every.exp()
        result = every.add_(entropies[:, None]).mul_(grad_entropy[:, None]).add_(grad[:, None]).mul_(p.neg_())
    return result.scatter_add_(-1, labels[:, None], grad[:, None])
