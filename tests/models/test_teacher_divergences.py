"""Divergences from a teacher over the vocabulary: cases by hand, and torch on whole logits, with gradients."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter
from torch import Tensor, nn
from torch.nn.functional import kl_div

from strop.config.schema.distillation import DivergenceConfig, ForwardKlConfig, JsdConfig, ReverseKlConfig
from strop.models.chunked_head import Comparison, FrozenStates, divergence_slopes, token_divergences
from strop.models.logprobs import sampled_logprobs, token_outputs
from tests.models.test_logprobs import check_gradients, plain_logprobs, with_states

SECTIONS: tuple[dict[str, Any], ...] = (
    {"type": "reverse_kl"},
    {"type": "forward_kl"},
    {"type": "jsd", "beta": 0.3},
    {"type": "reverse_kl", "top_k": 5, "top_k_of": "policy"},
    {"type": "forward_kl", "top_k": 5},
    {"type": "jsd", "beta": 0.8, "top_k": 3},
    {"type": "reverse_kl", "min_logprob": -4.5},
    {"type": "forward_kl", "min_logprob": -4.5, "top_k": 20},
    {"type": "jsd", "min_logprob": -4.5},
)


def names(section: dict[str, Any]) -> str:
    return " ".join(map(str, section.values()))


def read(section: dict[str, Any]) -> DivergenceConfig:
    return TypeAdapter(DivergenceConfig).validate_python(section)


def expected_divergence(p: Tensor, q: Tensor, section: dict[str, Any]) -> Tensor:
    """[N] From log-probs [N, V] of policy and teacher, by torch's `kl_div(input, target)` = target (target - input)."""
    if (k := section.get("top_k")) is not None:
        chosen = (p if section.get("top_k_of") == "policy" else q).topk(k, -1).indices
        p, q = p.gather(-1, chosen), q.gather(-1, chosen)
    if (bound := section.get("min_logprob")) is not None:
        p, q = p.clamp(min=bound), q.clamp(min=bound)

    def kl(first: Tensor, second: Tensor) -> Tensor:
        return kl_div(second, first, reduction="none", log_target=True).sum(-1)

    match section["type"]:
        case "reverse_kl":
            found = kl(p, q)
        case "forward_kl":
            found = kl(q, p)
        case _:
            beta = section.get("beta", 0.5)
            mixture = (beta * q.exp() + (1 - beta) * p.exp()).log()
            found = beta * kl(q, mixture) + (1 - beta) * kl(p, mixture)
    return found.clamp(min=0) if k is not None else found


@pytest.mark.parametrize("chunk", [7, 256])
@pytest.mark.parametrize("family", ["qwen2", "gemma2", "loud"])
@pytest.mark.parametrize("section", SECTIONS, ids=names)
def test_values_and_gradients(
    section: dict[str, Any], family: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a teacher that has another width, another transform, a temperature of its own, and a larger vocabulary."""
    model, micro_batch, hidden = with_states(family, chunk, monkeypatch)
    head = nn.Linear(24, 70, bias=False)
    teacher = FrozenStates(2 * torch.randn(len(hidden), 24), head, temperature=0.8)
    outputs = token_outputs(model, micro_batch, entropy=False, teacher=Comparison(teacher, read(section)))

    targets = micro_batch.loss_mask.nonzero()[:, 0]
    policy = plain_logprobs(model, hidden[targets - 1], micro_batch.temperature[targets])
    with torch.no_grad():
        q = (head(teacher.hidden[targets - 1]) / 0.8).log_softmax(-1)
    expected = expected_divergence(policy, q[:, : policy.shape[1]], section)
    assert outputs.teacher_divergence is not None and outputs.divergence is None
    found = outputs.teacher_divergence[targets]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert not outputs.teacher_divergence[~micro_batch.loss_mask].any()
    assert expected.abs().max() > 0.03

    scale = torch.randn(len(targets))
    check_gradients(model, hidden, [(scale * each).sum() for each in (found, expected)])

    sampled = sampled_logprobs(teacher, micro_batch)[targets]
    torch.testing.assert_close(sampled, q.gather(-1, micro_batch.token_ids[targets, None])[:, 0])


def logs(*probabilities: float) -> Tensor:
    return torch.tensor([probabilities]).log()


@pytest.mark.parametrize(
    ("section", "value", "slopes"),
    [
        (ReverseKlConfig(), math.log(4 / 3) / 2, (0.5 * (1 + math.log(2)), 0.5 * (1 + math.log(2 / 3)))),
        (ForwardKlConfig(), 0.75 * math.log(3) - math.log(2), (-0.25, -0.75)),
        (
            JsdConfig(),  # the mixture is (3/8, 5/8)
            (math.log(2 / 3) / 4 + 3 / 4 * math.log(6 / 5)) / 2 + (math.log(4 / 3) + math.log(4 / 5)) / 4,
            (math.log(4 / 3) / 4, math.log(4 / 5) / 4),
        ),
        (ForwardKlConfig(top_k=1), 0.75 * math.log(3 / 2), (-0.75,)),
        (ReverseKlConfig(top_k=1), 0.0, (0.0,)),  # 1/2 log(2/3) is below 0
        (ForwardKlConfig(min_logprob=math.log(0.6)), 0.75 * math.log(0.75 / 0.6), (0.0, 0.0)),
    ],
)
def test_cases_by_hand(section: DivergenceConfig, value: float, slopes: tuple[float, ...]) -> None:
    """The policy is (1/2, 1/2), the teacher (1/4, 3/4)."""
    policy, teacher = logs(0.5, 0.5), logs(0.25, 0.75)
    assert token_divergences(policy, teacher, section).item() == pytest.approx(value)
    assert divergence_slopes(policy, teacher, section).values[0].tolist() == pytest.approx(slopes)


def test_jsd_tends_to_the_two_kl_divergences() -> None:
    """JSD(beta) / beta tends to KL(teacher || policy) at 0, and JSD(beta) / (1 - beta) to KL(policy || teacher) at 1,
    which is the remark under equation 1 of GKD."""
    policy, teacher = logs(0.2, 0.3, 0.5), logs(0.6, 0.3, 0.1)

    def value(section: DivergenceConfig) -> float:
        return token_divergences(policy.double(), teacher.double(), section).item()

    assert value(JsdConfig(beta=1e-4)) / 1e-4 == pytest.approx(value(ForwardKlConfig()), rel=1e-3)
    assert value(JsdConfig(beta=1 - 1e-4)) / 1e-4 == pytest.approx(value(ReverseKlConfig()), rel=1e-3)


@pytest.mark.parametrize("section", SECTIONS[:3], ids=names)
def test_divergence_from_an_equal_distribution_is_zero(section: dict[str, Any]) -> None:
    logits = torch.randn(4, 50).log_softmax(-1)
    assert token_divergences(logits, logits, read(section)).abs().max() < 1e-6
