"""Every loss that an `algorithm` section can select, and outputs of a model as random numbers."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, get_args

import torch
from pydantic import TypeAdapter

from strop.algorithms.losses.value_losses import ValueLoss
from strop.algorithms.process_rewards import ProcessRewardLoss
from strop.algorithms.registry import make_loss_fn
from strop.config.schema.algorithm import AlgorithmConfig, CustomConfig, GrpoConfig
from strop.config.schema.policy_gradient import Aggregation, KlLossConfig, KlLossEstimator
from strop.config.schema.policy_loss import ImportanceCorrectionConfig, PolicyLossConfig, RejectionRuleConfig
from strop.config.schema.preference import Divergence, DpoLossName
from strop.protocols import LossFn
from strop.types import LossOutput, MicroBatch, SegmentRole, TokenOutputs
from tests.algorithms.batches import counts_of


def policy_loss(kind: str, **settings: Any) -> Any:
    """A section `policy_loss`."""
    return TypeAdapter(PolicyLossConfig).validate_python({"type": kind} | settings)


LIMIT = 8
"""`data.max_response_tokens` of the losses."""
FULL = GrpoConfig(
    kl_loss=KlLossConfig(estimator="k3", coef=0.1),
    entropy_coef=0.05,
    policy_loss=policy_loss("clip", clip_high=0.3),
)
LOSSES: list[PolicyLossConfig] = [
    FULL.policy_loss,
    policy_loss("gspo", clip_low=0.05, clip_high=0.05),
    policy_loss("cispo", clip_low=0.2, clip_high=0.3),
    policy_loss("cispo", clip_low=0.1, clip_high=0.1, mask_clipped=True),
    policy_loss("gpg"),
    policy_loss("opmd", tau=0.5),
    policy_loss("topr", threshold=0.2),
    policy_loss("sppo", clip=0.3),
    policy_loss("rec", clipping="ring", weight="ratio", regularizer="k2", regularizer_coef=0.1),
    policy_loss("rec", clipping="one_side", weight="advantage", temperature=2.0),
    policy_loss("sapo", tau_pos=0.5, tau_neg=2.0),
    policy_loss("sapo", gate="weight"),
    policy_loss("gmpo", clip_low=0.1, clip_high=0.2),
    policy_loss("dppo_tv", divergence_low=0.05, divergence_high=0.1),
    policy_loss("dppo_kl", divergence_low=0.01, divergence_high=0.02, ratio_cap=1.1),
    policy_loss("importance_sampling"),
    policy_loss("dro", beta=0.5),
    policy_loss("clip_cov", clip_low=0.1, clip_high=0.2),
    policy_loss("kl_cov", kl_coef=0.5),
    policy_loss("m2po"),
    policy_loss("gvpo", beta=0.3),
    policy_loss("self_play", eta=0.5),
]
CORRECTIONS = [
    None,
    ImportanceCorrectionConfig(level="token", cap=1.1),
    ImportanceCorrectionConfig(level="sequence"),
    ImportanceCorrectionConfig(level="geometric", floor=0.9, cap=1.3),
]
REJECTIONS = [
    (RejectionRuleConfig(low=0.8, high=1.2),),
    (RejectionRuleConfig(over="mean", low=0.9, high=1.1), RejectionRuleConfig(estimator="k3", high=0.05)),
]


def with_parts(**parts: Any) -> GrpoConfig:
    """GRPO with a divergence and an entropy bonus, and other parts."""
    return FULL.model_copy(update=parts)


def members(union: Any) -> list[Any]:
    """Classes of a union of sections, which may be annotated with its discriminator."""
    return list(get_args(get_args(union)[0] if hasattr(union, "__metadata__") else union))


def config_of(section: dict[str, Any]) -> Any:
    """An `algorithm` section."""
    return TypeAdapter(AlgorithmConfig).validate_python(section)


def distillation(divergence: str, coef: float = 1.0) -> dict[str, Any]:
    """Section `distillation` with one teacher, whose divergence is a loss."""
    loss = {"divergence": divergence, "coef": coef, "max_divergence": 1.0}
    return {"teachers": [{"path": "teacher"}], "loss": loss}


def _written(policy_loss: PolicyLossConfig) -> dict[str, Any]:
    return {"type": policy_loss.type} | policy_loss.model_dump(exclude_defaults=True)


def _sections() -> list[dict[str, Any]]:
    """Every algorithm; then GRPO with every policy loss, and with every form of its other parts."""
    vocabulary = distillation("reverse_kl")
    names = [each.model_fields["type"].default for each in members(AlgorithmConfig) if each != CustomConfig]
    parts: list[dict[str, Any]] = [
        *(
            {"policy_loss": _written(each)}
            for each in (*(kind() for kind in members(PolicyLossConfig)), *LOSSES)
        ),
        {"policy_loss": {"type": "clip", "dual_clip": None}},
        *({"kl_loss": {"estimator": each, "coef": 0.1}} for each in get_args(KlLossEstimator)),
        {"kl_loss": {"estimator": "k3", "weight_by_ratio": True, "max_ratio": 1.1}},
        {"entropy_coef": 0.1},
        *({"importance_correction": each.model_dump()} for each in CORRECTIONS if each is not None),
        *({"rejection": [rule.model_dump() for rule in rules]} for rules in REJECTIONS),
        *({"aggregation": each} for each in get_args(Aggregation)),
        *({"distillation": distillation(each)} for each in ("reverse_kl", "sampled_kl")),
    ]
    return [
        *(
            {"type": name} | ({"distillation": vocabulary} if name == "distillation" else {})
            for name in names
        ),
        {"type": "distillation", "distillation": vocabulary, "demonstration_fraction": 0.25},
        {"type": "mix", "expert_weight": "p_one_minus_p"},
        {"type": "dpo", "label_smoothing": 0.2},
        *(
            {"type": "dpo", "loss": each, "label_smoothing": 0.1 if each in ("exo_pair", "robust") else 0}
            for each in get_args(DpoLossName)
            if each not in ("sigmoid", "sft")
        ),
        {"type": "dpo", "loss": {"sigmoid": 0.8, "bco_pair": 0.2, "sft": 1}},
        *({"type": "dpo", "divergence": each} for each in get_args(Divergence)),
        {"type": "dpo", "excess_token_weight": 0.3},
        *({"type": "cpo", "loss": each} for each in ("hinge", "ipo", "simpo")),
        {"type": "cpo", "reward_shape": 0.25},
        {"type": "kto", "loss": "apo_zero_unpaired"},
        {"type": "kto", "beta": 0.5, "desirable_weight": 0.7, "undesirable_weight": 1.3},
        {"type": "reward_model", "centering_coef": 0.1},
        {"type": "reward_model", "loss": "squared_error"},
        {"type": "reward_model", "loss": "cross_entropy"},
        {"type": "custom", "advantages": "file.py:advantages"},
        *({"type": "grpo"} | each for each in parts),
    ]


@dataclass(frozen=True)
class LossCase:
    """A loss, and the roles of the sequences that it is for."""

    loss: LossFn
    roles: tuple[SegmentRole, SegmentRole]

    def on(self, batch: MicroBatch, outputs: TokenOutputs) -> LossOutput:
        """The loss of an update that is one micro-batch."""
        return self.loss(batch, outputs, counts_of(batch))


def _case(section: dict[str, Any]) -> LossCase:
    roles: dict[str, tuple[SegmentRole, SegmentRole]] = {
        **dict.fromkeys(("dpo", "cpo", "orpo", "reward_model"), ("chosen", "rejected")),
        **dict.fromkeys(("kto", "bco"), ("desirable", "undesirable")),
        "squared_error": ("scored", "scored"),
        "cross_entropy": ("stepwise", "stepwise"),
        "mix": ("rl", "sft"),
        "sft": ("sft", "sft"),
    }
    kind = "mix" if section.get("demonstration_fraction") else section["type"]
    kind = section["loss"] if section.get("loss") in ("squared_error", "cross_entropy") else kind
    return LossCase(
        make_loss_fn(config_of(section), max_response_tokens=LIMIT), roles.get(kind, ("rl", "rl"))
    )


def _combination(draw: random.Random) -> LossCase:
    """GRPO with a policy loss and all other parts at once."""
    config = with_parts(
        policy_loss=draw.choice(LOSSES),
        importance_correction=draw.choice(CORRECTIONS),
        rejection=draw.choice([(), *REJECTIONS]),
        aggregation=draw.choice(get_args(Aggregation)),
        kl_loss=KlLossConfig(estimator=draw.choice(get_args(KlLossEstimator))),
    )
    return LossCase(make_loss_fn(config, max_response_tokens=LIMIT), ("rl", "rl"))


REGISTERED = {str(section): _case(section) for section in _sections()}
"""The losses of the registry."""
REGISTERED |= {f"combination {seed}": _combination(random.Random(seed)) for seed in range(30)}
VALUE_LOSS = ValueLoss(0.5)
EVERY_LOSS = REGISTERED | {
    "value": LossCase(lambda batch, out, counts: VALUE_LOSS(batch, out.logprobs, counts), ("rl", "rl")),
    "process reward": LossCase(ProcessRewardLoss(0.5), ("rl", "rl")),
}


def model_outputs(batch: MicroBatch, seed: int = 5) -> tuple[torch.Tensor, TokenOutputs]:
    """Parameters, and log-probs, entropies and divergences that depend on them."""
    tokens = len(batch.loss_mask)
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.randn(rows, tokens, generator=generator) for rows in (3, 1)]
    parameters = torch.cat(drawn) * 0.3
    parameters.requires_grad_()
    entropy, divergence, from_teacher = parameters[1].square() + 1, *parameters[2:].square()
    return parameters, TokenOutputs(
        parameters[0] - 1, entropy, divergence, from_teacher, scores=parameters[1] * 3
    )


def map_outputs(outputs: TokenOutputs, change: Callable[[torch.Tensor], torch.Tensor]) -> TokenOutputs:
    """The same change to each."""
    names = ("logprobs", "entropy", "divergence", "teacher_divergence", "scores")
    changed: dict[str, Any] = {name: change(getattr(outputs, name)) for name in names}
    return replace(outputs, **changed)
