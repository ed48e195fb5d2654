"""Strop's advantages and losses, padded like those of the peers."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import torch
from batches import MAX_RESPONSE_TOKENS, Batch
from pydantic import Field, TypeAdapter

from strop.algorithms import registry
from strop.algorithms.losses.preference_losses import PreferenceLoss, UnpairedLoss
from strop.algorithms.losses.value_losses import value_loss_terms
from strop.config.schema.algorithm import CriticFreeConfig, GrpoConfig
from strop.config.schema.preference import PreferenceConfig, UnpairedConfig
from strop.protocols import LossFn
from strop.types import GlobalCounts, MicroBatch, SegmentRole, TokenOutputs

_SECTION: TypeAdapter[CriticFreeConfig] = TypeAdapter(
    Annotated[CriticFreeConfig, Field(discriminator="type")]
)


def advantages(batch: Batch, *, penalized: bool = False, **section: Any) -> torch.Tensor:
    """[N, L] Advantages by the estimator of a run file's `algorithm` section."""
    rollouts = batch.rollout_batch(penalized=penalized)
    config = _SECTION.validate_python(section)
    return padded(
        batch,
        registry.compute_advantages(config, rollouts, max_response_tokens=MAX_RESPONSE_TOKENS).advantages,
    )


def padded(batch: Batch, values: torch.Tensor) -> torch.Tensor:
    """[N, L] Values of the K targets, at their places in the padded batch."""
    return torch.zeros(batch.mask.shape, dtype=torch.float64).masked_scatter(batch.mask, values.double())


def loss(batch: Batch, **section: Any) -> torch.Tensor:
    """[1 + N L] Loss of an `algorithm` section, and its gradient with respect to each log-prob."""
    loss_fn = registry.make_loss_fn(
        GrpoConfig.model_validate(section), max_response_tokens=MAX_RESPONSE_TOKENS
    )
    return with_gradient(batch, batch.micro_batch(), loss_fn, batch.counts())


def pairs(batch: Batch, config: PreferenceConfig) -> torch.Tensor:
    """[1 + N L] A loss on pairs of a chosen and a rejected response, and its gradient."""
    roles: tuple[SegmentRole, ...] = ("chosen", "rejected") * (len(batch.mask) // 2)
    return with_gradient(batch, batch.micro_batch(roles), PreferenceLoss(config), batch.counts())


def labels(batch: Batch, config: UnpairedConfig, reference_point: float) -> torch.Tensor:
    """[1 + N L] A loss on labeled responses, and its gradient."""
    roles: tuple[SegmentRole, ...] = tuple(
        "desirable" if each else "undesirable" for each in batch.labels.tolist()
    )
    counts = replace(
        batch.counts(),
        desirable=roles.count("desirable"),
        undesirable=roles.count("undesirable"),
        reference_point=reference_point,
    )
    return with_gradient(batch, batch.micro_batch(roles), UnpairedLoss(config), counts)


def with_gradient(
    batch: Batch, micro_batch: MicroBatch, loss_fn: LossFn, counts: GlobalCounts
) -> torch.Tensor:
    """[1 + N L] Loss of a packed batch, and its gradient with respect to each log-prob."""
    logprobs = torch.zeros(len(micro_batch.loss_mask), dtype=torch.float64)
    logprobs[micro_batch.loss_mask] = batch.logprobs[batch.mask]
    logprobs.requires_grad_()
    value = loss_fn(micro_batch, TokenOutputs(logprobs), counts).loss
    (gradient,) = torch.autograd.grad(value, logprobs)
    at_targets = padded(batch, gradient[micro_batch.loss_mask])
    return torch.cat([value.detach().view(1), at_targets.flatten()])


def value_loss(batch: Batch, clip: float) -> torch.Tensor:
    """[] PPO's value loss, with the batch's log-probs as values and its advantages as returns."""
    mask = batch.mask
    terms = value_loss_terms(
        batch.logprobs[mask], batch.old_logprobs[mask], batch.advantages[mask], clip=clip
    )
    return terms.loss.mean()
