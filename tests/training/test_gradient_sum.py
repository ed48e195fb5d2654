"""The gradients of an update's parts, each of which has some of its micro-batches, add up to the whole one, for every
loss: so ranks that have a part each learn what one process learns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter
from torch import Tensor

from strop.algorithms import registry
from strop.algorithms.losses.value_losses import ValueLoss
from strop.config.schema.algorithm import AlgorithmConfig, PpoConfig
from strop.config.schema.policy_gradient import Aggregation, KlEstimator
from strop.config.units import Amount
from strop.data.packing import pack
from strop.training.optimized_model import OptimizedModel
from strop.training.parallel.parallelize import single_device
from strop.training.specs import CriticSpec
from strop.training.trained_models import CriticModel, PolicyModel
from strop.types import Experience, FloatArray, GlobalCounts, MicroBatch, TrainingBatch
from tests.models.models import experience
from tests.training.test_local_engine import make_policy, make_run

LONGEST = 12
POLICY_LOSSES: Sequence[Mapping[str, Any]] = (
    {"type": "clip", "clip_low": 0.1, "clip_high": 0.2},
    {"type": "gspo", "clip_low": 0.05, "clip_high": 0.05},
    {"type": "cispo", "clip_low": 0.1, "clip_high": 0.1},
    {"type": "gpg"},
    {"type": "opmd", "tau": 0.5},
)
OTHER_LOSSES: Sequence[Mapping[str, Any]] = (
    {"type": "gmpo", "clip_low": 0.1, "clip_high": 0.2},
    {"type": "sapo"},
    {"type": "dppo_tv", "divergence_low": 1e-4, "divergence_high": 1e-4},
    {"type": "dppo_kl", "divergence_low": 1e-4, "divergence_high": 1e-4},
    {"type": "topr"},
    {"type": "sppo", "clip": 0.2},
    {"type": "rec", "clipping": "ring", "weight": "ratio", "regularizer": "k2", "regularizer_coef": 0.1},
    {"type": "dro"},
    {"type": "clip_cov"},
    {"type": "kl_cov"},
    {"type": "m2po"},
    {"type": "self_play"},
)
"""Losses that are tried with the default aggregation only."""
PARTS: Mapping[str, Mapping[str, Any]] = {
    **{f"kl {name}": {"kl_loss": {"estimator": name, "coef": 0.5}} for name in get_args(KlEstimator)},
    # k1+, abs+ and k3+ have the gradient of k2.
    "kl k3+": {"kl_loss": {"estimator": "k3+", "coef": 0.4}},
    "kl weighted by the ratio": {"kl_loss": {"estimator": "k3", "coef": 0.5, "weight_by_ratio": True}},
    "entropy": {"entropy_coef": 0.1},
    "token correction": {"importance_correction": {"level": "token", "cap": 1.1}},
    "rejection": {
        "rejection": ({"over": "mean", "low": 0.9, "high": 1.1}, {"estimator": "k3", "high": 0.05})
    },
    "sequence correction": {"importance_correction": {"level": "sequence", "cap": 1.5}},
}


@cache
def cases() -> dict[str, AlgorithmConfig]:
    """Algorithm sections, by name of the case."""
    sections = {
        f"{loss['type']}, {aggregation}": {"type": "grpo", "policy_loss": loss, "aggregation": aggregation}
        for loss in POLICY_LOSSES
        for aggregation in get_args(Aggregation)
    }
    sections |= {loss["type"]: {"type": "grpo", "policy_loss": loss} for loss in OTHER_LOSSES}
    sections |= {part: {"type": "grpo", **section} for part, section in PARTS.items()}
    sections |= {"sft": {"type": "sft"}, "dpo": {"type": "dpo"}, "mix": {"type": "mix", "mu": 0.3}}
    read = TypeAdapter(AlgorithmConfig)
    return {name: read.validate_python(section) for name, section in sections.items()}


def experiences(kind: str) -> list[Experience]:
    """Rollouts; pairs for dpo, demonstrations for sft, and both rollouts and demonstrations for mix."""
    random = np.random.default_rng(0)
    found: list[Experience] = []
    for group in range(5):
        prompt = random.integers(5, 250, 6)
        for index in range(2 if kind == "dpo" else 3):
            answer = random.integers(5, 250, random.integers(2, LONGEST))
            fields: dict[str, Any] = {"group": str(group), "index": index, "temperature": 0.9}
            if kind == "dpo":
                fields |= {"role": ("chosen", "rejected")[index], "pair": str(group)}
            if kind == "sft" or (kind == "mix" and group > 2):
                fields["role"] = "sft"
            found.append(experience(prompt.tolist(), answer.tolist(), **fields))
    return found


def near(logprobs: Sequence[FloatArray], seed: int) -> list[FloatArray]:
    """Log-probs of a slightly different policy."""
    random = np.random.default_rng(seed)
    return [each + random.normal(scale=0.2, size=len(each)).astype(np.float32) for each in logprobs]


def micro_batches(
    engine: PolicyModel | CriticModel, kind: str, logprobs: list[FloatArray]
) -> list[MicroBatch]:
    """Many small micro-batches, with all inputs that any loss reads."""
    batch = [
        replace(e, sampler_logprobs=sampler, policy_logprobs=sampler)
        for e, sampler in zip(experiences(kind), near(logprobs, 1), strict=True)
    ]
    return pack(
        TrainingBatch(
            batch,
            advantages=near([np.zeros_like(each) for each in logprobs], 2),
            old_logprobs=near(logprobs, 3),
            ref_logprobs=near(logprobs, 4),
            values=near(logprobs, 5),
            returns=near(logprobs, 6),
            selected=[np.arange(len(each)) % 3 == 0 for each in logprobs],
        ),
        Amount(40, "tokens"),
        share_prompts=engine.supports_shared_prompts,
        device=engine.device,
    )


def take_gradient(model: OptimizedModel) -> Tensor:
    """The gradient, which is cleared."""
    parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.master.parameters()]
    model.master.zero_grad()
    return torch.cat([part.flatten() for part in parts])


Part = tuple[Tensor, Tensor]
"""A gradient, and the values of the metrics."""


@pytest.fixture(scope="module")
def parts(folder: Path) -> Callable[[str], tuple[Part, Part]]:
    """A function that computes a case whole, and as the sum over two parts of its micro-batches."""
    policy = make_policy(make_run(folder, algorithm={"type": "grpo", "kl_loss": {}}))
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in policy.master.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=noise), alpha=0.05)
    critic = CriticModel(CriticSpec.of(make_run(folder), PpoConfig().critic), single_device("cpu"))

    def learn(name: str, number: int, count: int) -> Part:
        section = cases().get(name)
        kind = "grpo" if section is None else section.type
        model: PolicyModel | CriticModel = critic if section is None else policy
        # As unlikely as the tokens of a random model are.
        guess = [np.full(len(e.token_ids), -5.6, dtype=np.float32) for e in experiences(kind)]
        mine = micro_batches(model, kind, guess)[number::count]
        assert mine, "fewer micro-batches than parts"
        counts = GlobalCounts.of(experiences(kind))
        if section is None:
            metrics = critic.forward_backward(mine, ValueLoss(0.1), counts)
        else:
            metrics = policy.forward_backward(
                mine,
                registry.make_loss_fn(section, max_response_tokens=LONGEST),
                counts,
                entropy=section.needs_entropy,
                divergence=section.needs_divergence,
            )
        return take_gradient(model), torch.tensor(list(metrics.values()), dtype=torch.float64)

    @cache
    def compute(name: str) -> tuple[Part, Part]:
        (one, first), (other, second) = (learn(name, number, 2) for number in range(2))
        return learn(name, 0, 1), (one + other, first + second)

    return compute


NAMES = [*cases(), "value"]


@pytest.mark.parametrize("name", NAMES)
def test_the_gradients_of_two_halves_add_up_to_that_of_the_whole(
    parts: Callable[[str], tuple[Part, Part]], name: str
) -> None:
    (expected, metrics), (found, summed) = parts(name)
    assert expected.norm() > 1e-4
    assert (found - expected).norm() < 1e-5 * expected.norm()
    torch.testing.assert_close(summed, metrics, rtol=1e-4, atol=1e-6)


def test_all_cases_have_different_gradients(parts: Callable[[str], tuple[Part, Part]]) -> None:
    """Every option has an effect."""
    norms = sorted(float(parts(name)[0][0].norm()) for name in NAMES)
    assert all(high > low * (1 + 1e-6) for low, high in pairwise(norms))
