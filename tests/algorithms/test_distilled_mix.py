"""GKD's mixture of rollouts and demonstrations: by hand, and the gradient of each part."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError

from strop.algorithms import registry
from strop.config.schema.algorithm import DistillationOnlyConfig
from strop.types import GlobalCounts, TokenOutputs
from tests.algorithms.batches import make_batch

TEACHERS = {"teachers": [{"path": "teacher"}], "loss": {"divergence": "jsd", "coef": 2.0}}


def config(**values: object) -> DistillationOnlyConfig:
    return DistillationOnlyConfig.model_validate({"distillation": TEACHERS, **values})


def test_the_mixture_by_hand() -> None:
    """Two rollouts with 3 targets, two demonstrations with 5; divergences 0.3 and 0.5 at each target, coefficient 2, f
    0.25: 0.75 x 2 x 0.3 + 0.25 x 2 x 0.5 = 0.7. A gradient of a demonstration's token is 0.25 x 2 / 5."""
    batch = make_batch([(1, 1), (1, 2), (1, 3), (1, 2)])
    batch = replace(batch, role=("rl", "rl", "sft", "sft"), weight=torch.ones(4))
    batch = replace(batch, advantages=torch.zeros_like(batch.advantages))
    segment = batch.segment_of_token()
    divergence = torch.where(segment < 2, 0.3, 0.5).requires_grad_()
    outputs = TokenOutputs(
        logprobs=batch.sampler_logprobs, entropy=torch.zeros(12), teacher_divergence=divergence
    )
    counts = GlobalCounts(tokens=3, sequences=2, expert_tokens=5)
    loss = registry.make_loss_fn(config(demonstration_fraction=0.25), max_response_tokens=4)
    found = loss(batch, outputs, counts)
    assert float(found.loss.detach()) == pytest.approx(0.7)
    assert float(found.metrics["demonstration_loss"]) == pytest.approx(1.0)
    assert float(found.metrics["distillation_loss"]) == pytest.approx(0.6)
    (gradient,) = torch.autograd.grad(found.loss, divergence)
    on_targets = torch.where(segment < 2, 0.75 * 2 / 3, 0.25 * 2 / 5) * batch.loss_mask
    torch.testing.assert_close(gradient, on_targets)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"demonstrations": "answers"}, "no effect with demonstration_fraction 0"),
        ({"demonstration_fraction": 0.5, "aggregation": "seq-mean-token-sum"}, "write token-mean"),
        (
            {
                "demonstration_fraction": 0.5,
                "distillation": TEACHERS | {"loss": {"divergence": "sampled_kl"}},
            },
            "vocabulary",
        ),
        (
            {
                "demonstration_fraction": 0.5,
                "distillation": TEACHERS | {"teachers": [{"path": "teacher", "sources": ["math"]}]},
            },
            "demonstrations have no data source",
        ),
    ],
)
def test_settings_without_a_meaning_are_refused(values: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        config(**values)
