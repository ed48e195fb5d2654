"""Losses on demonstrations and preferences, alone and mixed with rollouts: SFT, mix, GKD and DPO, by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import yaml

from strop.algorithms.losses.policy_objective import PolicyObjective
from strop.algorithms.losses.preference_losses import DpoLoss
from strop.algorithms.losses.sft import MixedLoss, SftLoss
from strop.algorithms.registry import make_loss_fn
from strop.config.schema.algorithm import GrpoConfig, MixConfig, SftConfig, TokenWeight
from strop.config.schema.preference import DpoConfig
from strop.types import GlobalCounts, MicroBatch, TokenOutputs
from tests.algorithms.batches import counts_of, make_batch, split
from tests.algorithms.objectives import config_of, distillation, model_outputs

MIXED = MixedLoss(0.25, PolicyObjective(MixConfig(), 8))


def test_sft_by_hand() -> None:
    # Two answers of 1 and 3 tokens, all of weight 1: -(-1 - 2 - 3 - 6) / 4 = 3, and not (1 + 11/3) / 2.
    batch = replace(make_batch([(1, 1), (2, 3)]), weight=torch.ones(2))
    logprobs = torch.tensor([0.0, -1, 0, 0, -2, -3, -6])
    found = SftLoss()(batch, TokenOutputs(logprobs), GlobalCounts(tokens=4, sequences=2))
    assert found.loss.item() == 3
    assert found.metrics["sft_loss"].item() == 3


@pytest.mark.parametrize(
    ("token_weight", "expected"),
    # Probabilities 1/2 and 1/4, of which the weights have no gradient.
    [("none", [1.0, 1.0]), ("p", [0.5, 0.25]), ("p_one_minus_p", [0.25, 3 / 16])],
)
def test_weights_of_tokens_by_hand(token_weight: TokenWeight, expected: list[float]) -> None:
    batch = replace(make_batch([(1, 2)]), weight=torch.ones(1))
    logprobs = torch.tensor([0.0, 0.5, 0.25]).clamp(min=1e-3).log().requires_grad_()
    found = SftLoss(token_weight)(batch, TokenOutputs(logprobs), GlobalCounts(tokens=2, sequences=1)).loss
    assert found.item() == pytest.approx((expected[0] * math.log(2) + expected[1] * math.log(4)) / 2)
    (gradient,) = torch.autograd.grad(found, logprobs)
    assert gradient[1:].tolist() == pytest.approx([-each / 2 for each in expected])


def test_sft_is_torchs_cross_entropy() -> None:
    batch = replace(make_batch([(2, 3), (1, 4)]), weight=torch.ones(2))
    logits = torch.randn(10, 11, generator=torch.Generator().manual_seed(2))
    tokens = torch.arange(10)
    logprobs = logits.log_softmax(-1)[torch.arange(10), tokens]
    expected = torch.nn.functional.cross_entropy(logits[batch.loss_mask], tokens[batch.loss_mask])
    torch.testing.assert_close(SftLoss()(batch, TokenOutputs(logprobs), counts_of(batch)).loss, expected)


def test_mix_by_hand() -> None:
    """One rollout with log-prob -1, advantage 2 and ratio 1: a loss of -2. An expert's two tokens, -1 and
    -3: a cross entropy of 2. With mu 0.25: 0.75 * -2 + 0.25 * 2 = -1."""
    batch = replace(
        make_batch([(1, 1), (1, 2)], on_policy=True),
        weight=torch.ones(2),
        role=("rl", "sft"),
        advantages=torch.tensor([0.0, 2, 0, 9, 9]),
    )
    outputs = TokenOutputs(torch.tensor([0.0, -1, 0, -1, -3]))
    found = MIXED(batch, outputs, GlobalCounts(tokens=1, sequences=1, expert_tokens=2))
    assert found.loss.item() == pytest.approx(-1)
    assert found.metrics["policy_loss"].item() == pytest.approx(-2)
    assert found.metrics["sft_loss"].item() == pytest.approx(2)


def test_without_demonstrations_mix_is_a_fraction_of_grpo() -> None:
    batch = make_batch([(2, 3), (1, 1), (0, 4), (3, 2)])
    outputs = TokenOutputs(model_outputs(batch)[1].logprobs)
    alone = PolicyObjective(GrpoConfig(), 8)(batch, outputs, counts_of(batch))
    assert MIXED(batch, outputs, counts_of(batch)).loss.item() == pytest.approx(0.75 * alone.loss.item())


def test_the_registry_passes_the_options_of_sft_and_mix() -> None:
    assert make_loss_fn(SftConfig(), max_response_tokens=4) == SftLoss()
    assert make_loss_fn(SftConfig(token_weight="p"), max_response_tokens=4) == SftLoss("p")
    mixed = make_loss_fn(MixConfig(mu=0.3, expert_weight="p"), max_response_tokens=4)
    assert isinstance(mixed, MixedLoss) and (mixed.mu, mixed.token_weight) == (0.3, "p")


def test_gkd_by_hand() -> None:
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
    teachers = {"teachers": [{"path": "teacher"}], "loss": {"divergence": "jsd", "coef": 2.0}}
    section = {"type": "distillation", "distillation": teachers, "demonstration_fraction": 0.25}
    loss = make_loss_fn(config_of(section), max_response_tokens=4)
    found = loss(batch, outputs, GlobalCounts(tokens=3, sequences=2, expert_tokens=5))
    assert float(found.loss.detach()) == pytest.approx(0.7)
    assert float(found.metrics["demonstration_loss"]) == pytest.approx(1.0)
    assert float(found.metrics["distillation_loss"]) == pytest.approx(0.6)
    (gradient,) = torch.autograd.grad(found.loss, divergence)
    on_targets = torch.where(segment < 2, 0.75 * 2 / 3, 0.25 * 2 / 5) * batch.loss_mask
    torch.testing.assert_close(gradient, on_targets)
    with pytest.raises(ValueError, match="needs the teacher's divergence, which is missing"):
        loss(batch, replace(outputs, teacher_divergence=None), counts_of(batch))


def test_a_single_demonstrated_token_counts_whole() -> None:
    batch = replace(make_batch([(1, 1), (1, 1)]), role=("rl", "sft"), weight=torch.ones(2))
    outputs = replace(model_outputs(batch)[1], logprobs=torch.tensor([0.0, -1, 0, -3]))
    found = MIXED(batch, outputs, counts_of(batch))
    assert found.metrics["sft_loss"].item() == pytest.approx(3)
    assert outputs.teacher_divergence is not None
    section = {"type": "distillation", "distillation": distillation("jsd"), "demonstration_fraction": 0.25}
    gkd = make_loss_fn(config_of(section), max_response_tokens=4)(batch, outputs, counts_of(batch))
    expected = outputs.teacher_divergence[3].item()
    assert gkd.metrics["demonstration_loss"].item() == pytest.approx(expected)


@pytest.mark.parametrize(("smoothing", "more"), [(0.0, 0.0), (0.1, 0.1)])
def test_dpo_by_hand(smoothing: float, more: float) -> None:
    """One pair: the chosen answer gained 3 nats on the reference and the rejected one 1; beta 0.5. Implied rewards 1.5
    and 0.5, a margin of 1: -log sigmoid(1) = log(1 + e^-1); the other way round it is 1 more."""
    batch = replace(
        make_batch([(1, 2), (1, 1)]),
        role=("chosen", "rejected"),
        weight=torch.ones(2),
        ref_logprobs=torch.tensor([0.0, -2, -2, 0, -4]),
    )
    loss = DpoLoss(DpoConfig(beta=0.5, label_smoothing=smoothing))
    found = loss(batch, TokenOutputs(torch.tensor([0.0, -1, 0, 0, -3])), GlobalCounts(3, 2, pairs=1))
    assert found.loss.item() == pytest.approx(math.log(1 + math.exp(-1)) + more)
    expected = {"chosen_reward": 1.5, "rejected_reward": 0.5, "margin": 1.0, "accuracy": 1.0}
    for name, value in expected.items():
        assert found.metrics[f"pairs/{name}"].item() == pytest.approx(value)


def _sigma(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def _nll(x: float) -> float:
    """-log sigmoid(x)."""
    return math.log1p(math.exp(-x))


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        # Log-ratios to the reference of 1 and 2 at the chosen response's tokens and 1 at the rejected one's, beta 1/4:
        # rewards of 3/4 and 1/4, a margin of 1/2.
        ("type: dpo", _nll(0.5)),
        ("type: dpo, loss: sigmoid_norm", _nll((1.5 - 1) / 4)),
        ("type: dpo, loss: hinge", 0.5),
        ("type: dpo, loss: ipo", (1.5 - 1 - 2) ** 2),
        ("type: dpo, loss: robust, label_smoothing: 0.1", (0.9 * _nll(0.5) - 0.1 * _nll(-0.5)) / 0.8),
        (
            "type: dpo, loss: exo_pair, label_smoothing: 0.1",
            _sigma(0.5) * math.log(_sigma(0.5) / 0.9) + _sigma(-0.5) * math.log(_sigma(-0.5) / 0.1),
        ),
        ("type: dpo, loss: nca_pair", _nll(0.75) + _nll(-0.75) / 2 + _nll(-0.25) / 2),
        ("type: dpo, loss: bco_pair", _nll(0.75) + _nll(-0.25)),
        ("type: dpo, loss: sppo_hard", (3 - 2) ** 2 + (1 + 2) ** 2),
        ("type: dpo, loss: apo_zero", 1 - _sigma(0.75) + _sigma(0.25)),
        ("type: dpo, loss: apo_down", _sigma(0.75) + 1 - _sigma(0.5)),
        (
            "type: dpo, loss: discopop, discopop_temperature: 0.5",
            (1 - _sigma(1)) * _nll(0.5) + _sigma(1) * math.exp(-0.5),
        ),
        # The chosen response's log-probs are -1 and 0: a cross entropy of 1/2.
        ("type: dpo, loss: {sigmoid: 0.8, hinge: 0.2, sft: 2}", 0.8 * _nll(0.5) + 0.2 * 0.5 + 2 * 0.5),
        ("type: dpo, divergence: forward_kl", _nll((math.exp(-1) - math.exp(-3)) / 4)),
        ("type: dpo, divergence: jsd", _nll((_nll(1) - _nll(3)) / 4)),
        ("type: dpo, divergence: alpha, divergence_alpha: 2", _nll((math.exp(3) - math.exp(1)) / 4)),
        ("type: dpo, divergence: alpha, divergence_alpha: 1", _nll(0.5)),
        ("type: dpo, excess_token_weight: 0.5", _nll((1 + 1 - 1) / 4)),
        # Log-probs of -1, or -1/2 per token, and of -3.
        ("type: cpo", _nll(0.5) + 0.5),
        ("type: cpo, loss: hinge, sft_weight: 0", 0.5),
        ("type: cpo, loss: ipo, sft_weight: 0", (2.5 - 2) ** 2),
        ("type: cpo, loss: simpo, margin: 1, sft_weight: 0", _nll(2.5 / 4 - 1)),
        ("type: cpo, label_smoothing: 0.1, sft_weight: 0", 0.9 * _nll(0.5) + 0.1 * _nll(-0.5)),
        ("type: cpo, reward_shape: 1, sft_weight: 0", _nll((math.exp(3) - math.exp(1)) / 4)),
        (
            "type: orpo",
            0.5
            + _nll(math.log(math.exp(-0.5) / (1 - math.exp(-0.5)) / math.exp(-3) * (1 - math.exp(-3)))) / 4,
        ),
    ],
)
def test_losses_on_a_pair_by_hand(section: str, expected: float) -> None:
    batch = replace(
        make_batch([(1, 2), (1, 1)]),
        role=("chosen", "rejected"),
        weight=torch.ones(2),
        ref_logprobs=torch.tensor([0.0, -2, -2, 0, -4]),
    )
    loss = make_loss_fn(config_of(yaml.safe_load(f"{{{section}, beta: 0.25}}")), max_response_tokens=4)
    counts = GlobalCounts(3, 2, pairs=1, chosen_tokens=2)
    found = loss(batch, TokenOutputs(torch.tensor([0.0, -1, 0, 0, -3])), counts)
    assert found.loss.item() == pytest.approx(expected)
    assert found.metrics["pairs/accuracy"].item() == 1


def three_pairs() -> tuple[MicroBatch, torch.Tensor]:
    """A micro-batch, and log-probs of its tokens."""
    batch = make_batch([(2, 3), (2, 1), (1, 4), (1, 2), (3, 1), (3, 2)])
    batch = replace(batch, role=("chosen", "rejected") * 3, weight=torch.ones(6))
    return batch, model_outputs(batch)[1].logprobs.detach().requires_grad_()


def test_at_the_reference_dpos_loss_is_log_2_and_pulls_each_token_by_half_of_beta() -> None:
    batch, logprobs = three_pairs()
    at = replace(batch, ref_logprobs=logprobs.detach())
    found = DpoLoss(DpoConfig(beta=0.2))(at, TokenOutputs(logprobs), counts_of(batch))
    assert found.loss.item() == pytest.approx(math.log(2))
    assert found.metrics["pairs/accuracy"].item() == 0
    found.loss.backward()
    sign = torch.tensor([-1.0, 1] * 3)[batch.segment_of_token()]
    torch.testing.assert_close(logprobs.grad, torch.where(batch.loss_mask, sign * 0.2 * 0.5 / 3, 0.0))


def test_dpo_refuses_a_split_pair_and_a_missing_reference() -> None:
    batch, logprobs = three_pairs()
    first, _ = split(batch, 3)
    for faulty, message in (
        (first, "directly before its rejected"),
        (replace(batch, ref_logprobs=None), "reference"),
    ):
        with pytest.raises(ValueError, match=message):
            outputs = TokenOutputs(logprobs[: len(faulty.token_ids)])
            DpoLoss(DpoConfig())(faulty, outputs, counts_of(batch))
