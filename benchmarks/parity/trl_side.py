"""TRL's GRPO loss, run with log-probs in place of a model, and its overlong punishment, beside Strop's."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import ours
import torch
from batches import MAX_RESPONSE_TOKENS, Batch
from cases import Case, Value, with_gradient
from trl.rewards import get_soft_overlong_punishment
from trl.trainer.grpo_trainer import GRPOTrainer
from verl_side import DUAL, HIGH, LOW

from strop.algorithms.shaping import overlong_penalty


def trl_loss(
    loss_type: str,
    *,
    level: str = "token",
    beta: float = 0.0,
    high: float = HIGH,
    delta: float | None = None,
) -> Value:
    """`GRPOTrainer._compute_loss`, with a trainer that has only what that method reads."""

    def run(batch: Batch) -> torch.Tensor:
        def loss(logprobs: torch.Tensor) -> torch.Tensor:
            accelerator = SimpleNamespace(
                num_processes=1, gather=lambda x: x, reduce=lambda x, **_: x, sync_gradients=True
            )
            trainer = SimpleNamespace(
                _get_per_token_logps_and_entropies=lambda *_, **__: (logprobs, logprobs.detach(), None),
                _metrics=defaultdict(lambda: defaultdict(list)),
                model=SimpleNamespace(training=True),
                accelerator=accelerator,
                args=SimpleNamespace(delta=delta, use_bias_correction_kl=False, steps_per_generation=1),
                aux_loss_enabled=False,
                beta=beta,
                current_gradient_accumulation_steps=1,
                epsilon_high=high,
                epsilon_low=LOW,
                importance_sampling_level=level,
                loss_type=loss_type,
                max_completion_length=MAX_RESPONSE_TOKENS,
                off_policy_mask_threshold=None,
                top_entropy_quantile=1.0,
                use_vllm=False,
                _entropy_bonus_enabled=False,
            )
            inputs = {
                "prompt_ids": torch.zeros(len(batch.mask), 1),
                "prompt_mask": torch.ones(len(batch.mask), 1),
                "completion_ids": torch.zeros(batch.mask.shape),
                "completion_mask": batch.mask.double(),
                "advantages": batch.advantages,
                "old_per_token_logps": batch.old,
                "ref_per_token_logps": batch.reference,
                "num_items_in_batch": batch.mask.sum().double(),
            }
            return GRPOTrainer._compute_loss(trainer, None, inputs)

        return with_gradient(batch, loss)

    return run


def our_loss(section: dict[str, Any], aggregation: str, **rest: Any) -> Value:
    """Strop's."""
    return lambda batch: ours.loss(batch, policy_loss=section, aggregation=aggregation, **rest)


def cases() -> list[Case]:
    """Every row with TRL. Its names of aggregations are those of the losses that they came with."""
    clip = {"type": "clip", "clip_low": LOW, "clip_high": HIGH, "dual_clip": None}
    gspo = {"type": "gspo", "clip_low": LOW, "clip_high": HIGH}
    cispo = {"type": "cispo", "clip_high": 0.28}
    k3 = {"estimator": "k3", "coef": 0.1}
    rows = [
        Case(f"loss: {label}", "TRL", theirs, mine)
        for label, theirs, mine in (
            ("clip, seq-mean-token-mean", trl_loss("grpo"), our_loss(clip, "seq-mean-token-mean")),
            ("clip, token-mean", trl_loss("dapo"), our_loss(clip, "token-mean")),
            (
                "clip with dual clip, token-mean",
                trl_loss("dapo", delta=DUAL),
                our_loss(clip | {"dual_clip": DUAL}, "token-mean"),
            ),
            ("clip, seq-mean-token-sum-norm", trl_loss("dr_grpo"), our_loss(clip, "seq-mean-token-sum-norm")),
            (
                "clip with k3, seq-mean-token-mean",
                trl_loss("grpo", beta=0.1),
                our_loss(clip, "seq-mean-token-mean", kl_loss=k3),
            ),
            ("cispo, token-mean", trl_loss("cispo", high=1.28), our_loss(cispo, "token-mean")),
        )
    ]
    rows.append(
        Case(
            "loss: gspo, seq-mean-token-mean",
            "TRL",
            lambda b: trl_loss("grpo", level="sequence")(one_advantage_each(b)),
            lambda b: our_loss(gspo, "seq-mean-token-mean")(one_advantage_each(b)),
        )
    )
    rows.append(Case("overlong penalty", "TRL", punishment, our_punishment))
    return rows


def one_advantage_each(batch: Batch) -> Batch:
    """TRL's answers have one advantage for all tokens; for GSPO that is the same objective."""
    return replace(batch, advantages=batch.advantages[:, :1] * batch.mask)


def punishment(batch: Batch) -> torch.Tensor:
    """TRL's."""
    function = get_soft_overlong_punishment(max_completion_len=MAX_RESPONSE_TOKENS, soft_punish_cache=5)
    return torch.tensor(function([[1] * n for n in batch.lengths.tolist()]), dtype=torch.float64)


def our_punishment(batch: Batch) -> torch.Tensor:
    """Strop's, with DAPO's factor."""
    return overlong_penalty(
        batch.lengths, max_response_tokens=MAX_RESPONSE_TOKENS, buffer_tokens=5, factor=1.0
    )
