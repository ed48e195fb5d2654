"""Cases that compare the losses of reward models with those of TRL's RewardTrainer, and of its earlier PRMTrainer,
which are transformers' for token classification."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import torch
from batches import Batch
from cases import Case, Value, with_gradient
from transformers.loss.loss_utils import ForTokenClassification
from trl.trainer.reward_trainer import RewardTrainer

from strop.algorithms.losses.reward_modeling import RewardModelLoss
from strop.config.schema.preference import RewardModelingConfig
from strop.types import SegmentRole, TokenOutputs


def trl_pairs(coefficient: float | None, margin: bool) -> Value:
    """Value and gradient by `RewardTrainer.compute_loss`; the reward of a response is its last log-prob."""

    def run(batch: Batch) -> torch.Tensor:
        batch = batch.pairs()

        def loss(logprobs: torch.Tensor) -> torch.Tensor:
            rewards = logprobs[torch.arange(len(logprobs)), batch.lengths - 1]
            logits = torch.cat([rewards[::2], rewards[1::2]])[:, None]
            trainer = SimpleNamespace(
                model=SimpleNamespace(training=True),
                args=SimpleNamespace(center_rewards_coefficient=coefficient),
                accelerator=SimpleNamespace(gather_for_metrics=lambda x: x, gather=lambda x: x),
                _metrics=defaultdict(lambda: defaultdict(list)),
                _total_train_tokens=0,
                _tp_size=1,
            )
            inputs = {"attention_mask": batch.mask} | ({"margin": batch.advantages[::2, 0]} if margin else {})
            return RewardTrainer.compute_loss(trainer, lambda **_: SimpleNamespace(logits=logits), inputs)

        return with_gradient(batch, loss)

    return run


def strop_pairs(config: RewardModelingConfig, margin: bool) -> Value:
    """Value and gradient by Strop."""

    def run(batch: Batch) -> torch.Tensor:
        batch = batch.pairs()
        roles: tuple[SegmentRole, ...] = ("chosen", "rejected") * (len(batch.mask) // 2)
        wanted = batch.advantages[:, :1] * batch.mask if margin else torch.zeros_like(batch.logprobs)
        wanted[1::2] = 0
        return _with_gradient(batch, roles, config, wanted)

    return run


def trl_steps(batch: Batch) -> torch.Tensor:
    """Value and gradient of two labels, whose logits are 0 and the log-prob; each token is the end of a step."""
    labels = torch.where(batch.mask, (batch.advantages > 0).long(), -100)

    def loss(logprobs: torch.Tensor) -> torch.Tensor:
        logits = torch.stack([torch.zeros_like(logprobs), logprobs], dim=-1)
        return ForTokenClassification(logits, labels, SimpleNamespace(num_labels=2))

    return with_gradient(batch, loss)


def strop_steps(batch: Batch) -> torch.Tensor:
    """Value and gradient by Strop."""
    roles: tuple[SegmentRole, ...] = ("stepwise",) * len(batch.mask)
    wanted = (batch.advantages > 0).double() * batch.mask
    return _with_gradient(batch, roles, RewardModelingConfig(loss="cross_entropy"), wanted)


def _with_gradient(
    batch: Batch, roles: tuple[SegmentRole, ...], config: RewardModelingConfig, wanted: torch.Tensor
) -> torch.Tensor:
    """[1 + N L] The loss of rewards that are log-probs, and its gradient."""
    micro_batch = batch.micro_batch(roles)
    targets = micro_batch.loss_mask
    packed = replace(micro_batch, returns=_packed(wanted[batch.mask], targets))

    def loss(logprobs: torch.Tensor) -> torch.Tensor:
        scores = _packed(logprobs[batch.mask], targets)
        outputs = TokenOutputs(torch.zeros_like(scores), scores=scores)
        return RewardModelLoss(config)(packed, outputs, batch.counts()).loss

    return with_gradient(batch, loss)


def _packed(values: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return torch.zeros(len(targets), dtype=values.dtype).masked_scatter(targets, values)


def cases() -> Iterator[Case]:
    """Return the rows of the table."""
    for coefficient in (0.0, 0.01):
        for margin in (False, True):
            config = RewardModelingConfig(centering_coef=coefficient)
            parts = [f"centering_coef {coefficient}"] * bool(coefficient) + ["with margins"] * margin
            name = ", ".join(["loss: reward_model", *parts])
            yield Case(name, "TRL", trl_pairs(coefficient or None, margin), strop_pairs(config, margin))
    yield Case("loss: reward_model, loss cross_entropy", "TRL 1.13.0", trl_steps, strop_steps)
