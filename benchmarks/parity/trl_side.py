"""Cases that compare TRL's GRPO loss, run with log-probs instead of a model, and its overlong penalty."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import strop_side
import torch
from batches import MAX_RESPONSE_TOKENS, Batch
from cases import Case, Value, with_gradient
from trl.rewards import get_soft_overlong_punishment
from trl.trainer.grpo_trainer import GRPOTrainer
from verl_side import DUAL, HIGH, LOW, TAU_NEG

from strop.algorithms.reward_shaping import overlong_penalty


def trl_loss(
    loss_type: str,
    *,
    level: str = "token",
    beta: float = 0.0,
    high: float = HIGH,
    delta: float | None = None,
    correct_kl: bool = True,
) -> Value:
    """Value and gradient by `GRPOTrainer._compute_loss`, on a stub with the attributes that the method reads."""

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
                args=SimpleNamespace(
                    delta=delta,
                    use_bias_correction_kl=correct_kl,
                    steps_per_generation=1,
                    sapo_temperature_pos=1.0,
                    sapo_temperature_neg=TAU_NEG,
                ),
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
                "old_per_token_logps": batch.old_logprobs,
                "ref_per_token_logps": batch.ref_logprobs,
                "num_items_in_batch": batch.mask.sum().double(),
            }
            return GRPOTrainer._compute_loss(trainer, None, inputs)

        return with_gradient(batch, loss)

    return run


def strop_loss(section: dict[str, Any], aggregation: str, **options: Any) -> Value:
    """Value and gradient by Strop's policy loss."""
    return lambda batch: strop_side.loss(batch, policy_loss=section, aggregation=aggregation, **options)


def cases() -> list[Case]:
    """Return all cases with TRL, which names an aggregation after the loss that introduced it."""
    clip = {"type": "clip", "clip_low": LOW, "clip_high": HIGH, "dual_clip": None}
    gspo = {"type": "gspo", "clip_low": LOW, "clip_high": HIGH}
    cispo = {"type": "cispo", "clip_high": 0.28}
    sapo = {"type": "sapo", "tau_neg": TAU_NEG}
    k3 = {"estimator": "k3", "coef": 0.1}
    rows = [
        Case(f"loss: {label}", "TRL", peer_value, strop_value)
        for label, peer_value, strop_value in (
            ("clip, seq-mean-token-mean", trl_loss("grpo"), strop_loss(clip, "seq-mean-token-mean")),
            ("clip, token-mean", trl_loss("dapo"), strop_loss(clip, "token-mean")),
            (
                "clip with dual clip, token-mean",
                trl_loss("dapo", delta=DUAL),
                strop_loss(clip | {"dual_clip": DUAL}, "token-mean"),
            ),
            (
                "clip, seq-mean-token-sum-norm",
                trl_loss("dr_grpo"),
                strop_loss(clip, "seq-mean-token-sum-norm"),
            ),
            (
                "clip with k3 (use_bias_correction_kl=False), seq-mean-token-mean",
                trl_loss("grpo", beta=0.1, correct_kl=False),
                strop_loss(clip, "seq-mean-token-mean", kl_loss=k3),
            ),
            (
                "clip with k3 weighted by the ratio, seq-mean-token-mean",
                trl_loss("grpo", beta=0.1),
                strop_loss(clip, "seq-mean-token-mean", kl_loss=k3 | {"weight_by_ratio": True}),
            ),
            ("sapo, seq-mean-token-mean", trl_loss("sapo"), strop_loss(sapo, "seq-mean-token-mean")),
            ("cispo, token-mean", trl_loss("cispo", high=1.28), strop_loss(cispo, "token-mean")),
        )
    ]
    rows.append(
        Case(
            "loss: gspo, seq-mean-token-mean",
            "TRL",
            lambda b: trl_loss("grpo", level="sequence")(b.with_one_advantage()),
            lambda b: strop_loss(gspo, "seq-mean-token-mean")(b.with_one_advantage()),
        )
    )
    rows.append(Case("overlong penalty", "TRL", trl_overlong_penalty, strop_overlong_penalty))
    return rows


def trl_overlong_penalty(batch: Batch) -> torch.Tensor:
    """[N] Penalty by TRL."""
    function = get_soft_overlong_punishment(max_completion_len=MAX_RESPONSE_TOKENS, soft_punish_cache=5)
    return torch.tensor(function([[1] * n for n in batch.lengths.tolist()]), dtype=torch.float64)


def strop_overlong_penalty(batch: Batch) -> torch.Tensor:
    """[N] Penalty by Strop, with DAPO's factor."""
    return overlong_penalty(
        batch.lengths, max_response_tokens=MAX_RESPONSE_TOKENS, buffer_tokens=5, factor=1.0
    )
