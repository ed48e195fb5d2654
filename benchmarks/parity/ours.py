"""Strop's answers, padded as the peers' are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from batches import MAX_RESPONSE_TOKENS, Batch
from pydantic import TypeAdapter

from strop.algorithms import table
from strop.algorithms.preference_losses import DpoLoss
from strop.algorithms.value_losses import value_terms
from strop.config.schema.algorithm import Algorithm, Dpo, Grpo
from strop.protocols import LossFn
from strop.types import GlobalCounts, MicroBatch, TokenOutputs

_SECTION: TypeAdapter[Algorithm] = TypeAdapter(Algorithm)


def advantages(batch: Batch, *, penalised: bool = False, **section: Any) -> torch.Tensor:
    """[N, L] by the estimator that a run file's `algorithm` section names."""
    scored = batch.scored(penalised=penalised)
    config = _SECTION.validate_python(section)
    return padded(batch, table.advantages(config, scored, max_response_tokens=MAX_RESPONSE_TOKENS))


def padded(batch: Batch, values: torch.Tensor) -> torch.Tensor:
    """[N, L] of the K targets' values."""
    return torch.zeros(batch.mask.shape, dtype=torch.float64).masked_scatter(batch.mask, values.double())


def loss(batch: Batch, **section: Any) -> torch.Tensor:
    """[1 + N L] the whole objective, and its gradient with respect to each log-prob."""
    loss_fn = table.loss_fn(Grpo.model_validate(section), max_response_tokens=MAX_RESPONSE_TOKENS)
    return with_gradient(batch, batch.micro_batch(), loss_fn, batch.counts())


def dpo(batch: Batch, beta: float) -> torch.Tensor:
    """[1 + N L] the same for DPO, on pairs of one chosen and one rejected answer."""
    pairs = len(batch.mask) // 2
    counts = replace(batch.counts(), pairs=pairs)
    return with_gradient(
        batch, batch.micro_batch(("chosen", "rejected") * pairs), DpoLoss(Dpo(beta=beta)), counts
    )


def with_gradient(
    batch: Batch, micro_batch: MicroBatch, loss_fn: LossFn, counts: GlobalCounts
) -> torch.Tensor:
    """[1 + N L] a loss, and its gradient with respect to each log-prob."""
    logprobs = torch.zeros(len(micro_batch.loss_mask), dtype=torch.float64)
    logprobs[micro_batch.loss_mask] = batch.logprobs[batch.mask]
    logprobs.requires_grad_()
    value = loss_fn(micro_batch, TokenOutputs(logprobs), counts).loss
    (gradient,) = torch.autograd.grad(value, logprobs)
    at_targets = padded(batch, gradient[micro_batch.loss_mask])
    return torch.cat([value.detach().view(1), at_targets.flatten()])


def value_loss(batch: Batch, clip: float) -> torch.Tensor:
    """[] PPO's; the batch's log-probs serve as a critic's values, its advantages as returns."""
    mask = batch.mask
    terms = value_terms(batch.logprobs[mask], batch.old[mask], batch.advantages[mask], clip=clip)
    return terms.loss.mean()
