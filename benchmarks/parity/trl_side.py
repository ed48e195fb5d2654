"""Cases that compare TRL's losses of GRPO, DPO, CPO, ORPO, KTO and BCO, run with log-probs instead of a model, and its
overlong penalty."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import strop_side
import torch
from batches import MAX_RESPONSE_TOKENS, Batch
from cases import Case, Value, with_gradient
from torch.nn.functional import pad
from trl.experimental.cpo import CPOTrainer
from trl.experimental.orpo import ORPOTrainer
from trl.rewards import get_soft_overlong_punishment
from trl.trainer.callbacks import SyncRefModelCallback
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.kto_trainer import KTOTrainer
from verl_side import DUAL, HIGH, LOW, TAU_NEG

from strop.algorithms.algorithm import overlong_penalty
from strop.algorithms.losses.preference_losses import sync_reference
from strop.algorithms.reference_point import RunningMean, kl_estimate
from strop.config.schema.preference import (
    BcoConfig,
    CpoConfig,
    DpoConfig,
    KtoConfig,
    OrpoConfig,
    PreferenceConfig,
)


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


def trl_dpo(config: DpoConfig) -> Value:
    """Value and gradient by `DPOTrainer._compute_loss`, whose batches have all chosen responses before the rejected."""
    divergences = {"jsd": "js_divergence", "alpha": "alpha_divergence"}

    def run(batch: Batch) -> torch.Tensor:
        def in_order(values: torch.Tensor) -> torch.Tensor:
            shifted = pad(torch.cat([values[::2], values[1::2]]), (1, 0))  # by the token before, as TRL does
            # Of the alpha divergence TRL knows no bound in float64.
            return shifted.float() if config.divergence == "alpha" and values.is_floating_point() else shifted

        def loss(logprobs: torch.Tensor) -> torch.Tensor:
            mask, model = in_order(batch.mask.long()), torch.nn.Identity()
            model.is_gradient_checkpointing = False
            trainer = SimpleNamespace(
                model=model,
                accelerator=SimpleNamespace(device="cpu", gather=lambda x: x, gather_for_metrics=lambda x: x),
                args=SimpleNamespace(
                    gradient_checkpointing_kwargs=None, discopop_tau=config.discopop_temperature
                ),
                aux_loss_enabled=False,
                ld_alpha=None if config.excess_token_weight == 1 else config.excess_token_weight,
                precompute_ref_logps=False,
                ref_model=lambda **_: SimpleNamespace(log_probs=in_order(batch.ref_logprobs)[:, 1:]),
                f_divergence_type=divergences.get(config.divergence, config.divergence),
                f_alpha_divergence_coef=config.divergence_alpha,
                beta=config.beta,
                label_smoothing=config.label_smoothing,
                loss_types=list(config.losses),
                loss_weights=list(config.losses.values()),
                use_weighting=False,
                _metrics=defaultdict(lambda: defaultdict(list)),
                _total_train_tokens=0,
                _tp_size=1,
            )
            zeros = torch.zeros(mask[:, 1:].shape)
            outputs = SimpleNamespace(
                log_probs=in_order(logprobs * batch.mask)[:, 1:],
                entropy=zeros,
                mean_logits=zeros,
                is_top1=zeros.bool(),
            )
            inputs = {"completion_mask": mask, "input_ids": mask, "attention_mask": mask}
            return DPOTrainer._compute_loss(trainer, lambda **_: outputs, inputs, return_outputs=False)

        return with_gradient(batch, loss)

    return lambda batch: run(batch.pairs())


def trl_without_reference(config: CpoConfig | OrpoConfig) -> Value:
    """Value and gradient by TRL's function of log-probs, with the cross entropy of the chosen responses."""

    def loss(batch: Batch, logprobs: torch.Tensor) -> torch.Tensor:
        mean = isinstance(config, OrpoConfig) or config.loss in ("ipo", "simpo")
        of_responses = (logprobs * batch.mask).sum(1) / (batch.lengths if mean else 1)
        imitated = -logprobs[::2][batch.mask[::2]].mean()
        trainer = SimpleNamespace(accelerator=SimpleNamespace(device="cpu"), beta=config.beta)
        if isinstance(config, OrpoConfig):
            return (
                imitated
                - ORPOTrainer.odds_ratio_loss(trainer, of_responses[::2], of_responses[1::2])[0].mean()
            )
        trainer.alpha, trainer.loss_type = config.reward_shape, config.loss
        trainer.simpo_gamma, trainer.label_smoothing = config.margin, config.label_smoothing
        losses = CPOTrainer.cpo_loss(trainer, of_responses[::2], of_responses[1::2])[0]
        return losses.mean() + config.sft_weight * imitated

    def run(batch: Batch) -> torch.Tensor:
        return with_gradient(batch, lambda logprobs: loss(batch, logprobs))

    return lambda batch: run(batch.below_one().pairs())


def preference_cases() -> Iterator[Case]:
    """Return the losses on pairs, with every option."""
    options: list[dict[str, Any]] = [
        *(
            {"loss": name}
            for name in ("sigmoid", "sigmoid_norm", "hinge", "ipo", "robust", "nca_pair", "bco_pair")
        ),
        *({"loss": name} for name in ("sppo_hard", "apo_zero", "apo_down", "discopop")),
        {"loss": "robust", "label_smoothing": 0.2},
        {"loss": "exo_pair", "label_smoothing": 0.01},
        {"loss": {"sigmoid": 0.8, "bco_pair": 0.2, "sft": 1.0}},
        *({"divergence": name} for name in ("forward_kl", "jsd", "alpha")),
        {"divergence": "alpha", "divergence_alpha": 0.8},
        {"excess_token_weight": 0.3},
    ]
    for each in options:
        config = DpoConfig.model_validate(each)
        yield _pairs_case(config, trl_dpo(config), each, lambda batch: batch.pairs())
    for each in (
        *({"loss": name} for name in ("sigmoid", "hinge", "ipo", "simpo")),
        {"loss": "simpo", "sft_weight": 0.0, "label_smoothing": 0.1, "margin": 1.0},
        {"reward_shape": 0.25},
    ):
        alone = CpoConfig.model_validate(each)
        yield _pairs_case(alone, trl_without_reference(alone), each, lambda batch: batch.below_one().pairs())
    odds = OrpoConfig(beta=0.2)
    yield _pairs_case(odds, trl_without_reference(odds), {}, lambda batch: batch.below_one().pairs())


def _pairs_case(
    config: PreferenceConfig, peer: Value, options: dict[str, Any], of: Callable[[Batch], Batch]
) -> Case:
    label = ", ".join(f"{name} {value}" for name, value in options.items())
    name = f"loss: {config.type}{', ' if label else ''}{label}"
    return Case(name, "TRL", peer, lambda batch: strop_side.pairs(of(batch), config))


def trl_kto(config: KtoConfig) -> Value:
    """Value and gradient by `KTOTrainer._compute_loss`. Mismatched pairs have the log-probs of the old policy and of
    the sampler."""

    def run(batch: Batch) -> torch.Tensor:
        mask = pad(batch.mask.long(), (1, 0))  # a token before each response
        of_pairs = mask + 1
        zeros = torch.zeros(batch.mask.shape)

        def model(matched: torch.Tensor, mismatched: torch.Tensor) -> Callable[..., SimpleNamespace]:
            def call(input_ids: torch.Tensor, **_: object) -> SimpleNamespace:
                found = mismatched if input_ids is of_pairs else matched
                return SimpleNamespace(log_probs=found, entropy=zeros, mean_logits=zeros)

            return call

        def loss(logprobs: torch.Tensor) -> torch.Tensor:
            switch = torch.nn.Identity()
            switch.is_gradient_checkpointing = False
            trainer = SimpleNamespace(
                model=switch,
                ref_model=model(batch.ref_logprobs, batch.sampler_logprobs),
                accelerator=SimpleNamespace(device="cpu", gather_for_metrics=lambda x: x),
                args=SimpleNamespace(gradient_checkpointing_kwargs=None),
                aux_loss_enabled=False,
                precompute_ref_logps=False,
                calculate_KL=config.estimates_kl,
                loss_type=config.loss,
                beta=config.beta,
                desirable_weight=config.desirable_weight,
                undesirable_weight=config.undesirable_weight,
                _metrics=defaultdict(lambda: defaultdict(list)),
                _total_train_tokens=0,
                _tp_size=1,
            )
            trainer._compute_kl_logps = lambda *given: KTOTrainer._compute_kl_logps(trainer, *given)
            inputs = {
                "input_ids": mask,
                "attention_mask": mask,
                "completion_mask": mask,
                "label": batch.labels,
            }
            if config.estimates_kl:
                inputs |= {
                    f"KL_{name}": of_pairs for name in ("input_ids", "attention_mask", "completion_mask")
                }
            policy = model(logprobs * batch.mask, batch.old_logprobs)
            return KTOTrainer._compute_loss(trainer, policy, inputs, return_outputs=False)

        return with_gradient(batch, loss)

    return run


def strop_kto(config: KtoConfig) -> Value:
    """Value and gradient by Strop, with the estimate over the same mismatched pairs."""

    def run(batch: Batch) -> torch.Tensor:
        ratios = (batch.old_logprobs - batch.sampler_logprobs).sum(1).tolist()
        return strop_side.labels(batch, config, kl_estimate(ratios) if config.estimates_kl else 0.0)

    return run


BCO_VERSION = "1.13.0"
"""A version of TRL that has BCO, which 1.16 has not."""


def _bco_module() -> Any:
    """The module of BCO's trainer in the folder of the other version, imported apart from the installed TRL."""
    own = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "trl"}
    sys.path.insert(0, os.environ["TRL_WITH_BCO"])
    try:
        from trl.experimental.bco import bco_trainer
    finally:
        sys.path.pop(0)
        for name in [name for name in sys.modules if name.split(".")[0] == "trl"]:
            del sys.modules[name]
        sys.modules.update(own)
    return bco_trainer


def bco_cases() -> Iterator[Case]:
    """BCO's loss in its second update: the running mean is over both."""
    theirs, config = _bco_module(), BcoConfig(beta=0.2)

    def earlier(batch: Batch) -> torch.Tensor:
        return (batch.old_logprobs - batch.sampler_logprobs).sum(1)

    def trl(batch: Batch) -> torch.Tensor:
        moments = theirs.RunningMoments(SimpleNamespace(use_distributed=False))
        moments.update(config.beta * earlier(batch))

        def loss(logprobs: torch.Tensor) -> torch.Tensor:
            policy, reference = (logprobs * batch.mask).sum(1), batch.ref_logprobs.sum(1)
            sides = [each[side] for each in (policy, reference) for side in (batch.labels, ~batch.labels)]
            running = theirs.RunningMoments(moments.accelerator, moments.mean, count=moments.count)
            trainer = SimpleNamespace(beta=config.beta, running=running, match_underlying_distribution=False)
            return theirs.BCOTrainer.bco_loss(trainer, *sides, None, None)[0].nanmean()

        return with_gradient(batch, loss)

    def strop(batch: Batch) -> torch.Tensor:
        ratios = ((batch.logprobs - batch.ref_logprobs) * batch.mask).sum(1)
        mean = RunningMean().updated(earlier(batch).tolist()).updated(ratios.tolist()).mean
        return strop_side.labels(batch, config, mean)

    yield Case("loss: bco, second update", f"TRL {BCO_VERSION}", trl, strop)


def unpaired_cases() -> Iterator[Case]:
    """Return the losses on labeled responses."""
    for each in (
        {"loss": "kto"},
        {"loss": "apo_zero_unpaired"},
        {"desirable_weight": 1.4, "undesirable_weight": 0.6},
    ):
        config = KtoConfig.model_validate(each)
        label = ", ".join(f"{name} {value}" for name, value in each.items())
        yield Case(f"loss: kto, {label}", "TRL", trl_kto(config), strop_kto(config))
    yield from bco_cases()


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
    rows += preference_cases()
    rows += unpaired_cases()
    rows.append(
        Case(
            "reference_sync of dpo, three times",
            "TRL",
            lambda b: synced(b, lambda new, old: SyncRefModelCallback._sync_target_model(new, old, 0.6)),
            lambda b: synced(b, lambda new, old: sync_reference(old, new, 0.6)),
        )
    )
    rows.append(Case("overlong penalty", "TRL", trl_overlong_penalty, strop_overlong_penalty))
    return rows


def synced(batch: Batch, sync: Callable[[torch.nn.Module, torch.nn.Module], None]) -> torch.Tensor:
    """Weights of a reference after `sync`, in float32, with three policies."""
    reference = torch.nn.ParameterList([torch.nn.Parameter(batch.ref_logprobs.float())])
    for each in (batch.logprobs, batch.old_logprobs, batch.sampler_logprobs):
        sync(torch.nn.ParameterList([torch.nn.Parameter(each.float())]), reference)
    return reference[0].detach().double()


def trl_overlong_penalty(batch: Batch) -> torch.Tensor:
    """[N] Penalty by TRL."""
    function = get_soft_overlong_punishment(max_completion_len=MAX_RESPONSE_TOKENS, soft_punish_cache=5)
    return torch.tensor(function([[1] * n for n in batch.lengths.tolist()]), dtype=torch.float64)


def strop_overlong_penalty(batch: Batch) -> torch.Tensor:
    """[N] Penalty by Strop, with DAPO's factor."""
    return overlong_penalty(
        batch.lengths, max_response_tokens=MAX_RESPONSE_TOKENS, buffer_tokens=5, factor=1.0
    )
