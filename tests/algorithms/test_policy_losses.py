"""Policy losses: by hand, and value and gradient against the papers' objectives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strop.algorithms.losses.aggregation import PolicyLossTerms, TargetTokens, token_weights
from strop.algorithms.losses.policy_losses import log_ratio, mean_implicit_rewards, policy_loss_terms
from strop.algorithms.registry import compute_advantages
from strop.config.schema.algorithm import GrpoConfig, SelfPlayConfig
from strop.config.schema.policy_loss import GvpoLossConfig, PolicyLossConfig
from strop.run.optimize.minibatches import add_implicit_rewards
from tests.algorithms.batches import counts_of, make_batch, rollouts
from tests.algorithms.objectives import members, policy_loss
from tests.models.models import experience


def on_one_response(
    config: PolicyLossConfig,
    new: Sequence[float],
    old: Sequence[float],
    advantages: Sequence[float],
    selected: list[bool] | None = None,
) -> tuple[PolicyLossTerms, list[float]]:
    """Terms, and the gradient of their sum in each log-prob, from probabilities of the tokens of one response."""
    batch = make_batch([(1, len(new))])
    if selected is not None:
        batch.selected[1:] = torch.tensor(selected)
    logprobs = torch.tensor(new).log().requires_grad_()
    ratio = log_ratio(logprobs, torch.tensor(old).log())
    terms = policy_loss_terms(config, logprobs, ratio, torch.tensor(advantages), TargetTokens.of(batch))
    return terms, torch.autograd.grad(terms.loss.sum(), logprobs)[0].tolist()


def bounds_of(terms: PolicyLossTerms) -> list[str]:
    """The bounds in force at each token."""
    bounds = {"low": terms.clipped_low, "high": terms.clipped_high, "dual": terms.clipped_dual}
    count = len(terms.loss)
    return [" ".join(name for name, where in bounds.items() if where[token]) for token in range(count)]


LOG2, E, ROOT2 = math.log(2), math.exp(-1), math.sqrt(2)
GATE = 1 / (1 + math.exp(-1))


@pytest.mark.parametrize(
    ("config", "tokens"),
    [
        (
            policy_loss("clip", clip_low=0.2, clip_high=0.28, dual_clip=3.0),
            [
                # Inside the bounds: loss -A * ratio; its derivative in log ratio is the same.
                (1.1, 1, 2, -2.2, -2.2, ""),
                (1.1, 1, -2, 2.2, 2.2, ""),
                # A good answer, already likelier by more than 1.28: counts as 1.28, no more pull.
                (1.5, 1, 2, -2.56, 0, "high"),
                # A good answer that became unlikely is pulled back with its own ratio.
                (0.5, 1, 2, -1, -1, ""),
                # A bad answer, already unlikelier than 0.8: counts as 0.8, no more push.
                (0.5, 1, -2, 1.6, 0, "low"),
                # A bad answer that became likelier is pushed with its own ratio, up to the dual clip.
                (2, 1, -2, 4, 4, ""),
                (4, 1, -2, 6, 0, "dual"),
                (4, 1, 0, 0, 0, ""),
            ],
        ),
        (policy_loss("clip", dual_clip=None), [(4, 1, -2, 8, 8, "")]),
        # The geometric mean of 2 and 1/8 is 1/2. A good answer is pulled back with it, on each token. A bad one is
        # already unlikelier than 3/4: no gradient, although its first token is likelier.
        (policy_loss("gspo", clip_low=0.25), [(2, 1, 3, -1.5, -1.5, ""), (1 / 8, 1, 3, -1.5, -1.5, "")]),
        (policy_loss("gspo", clip_low=0.25), [(2, 1, -3, 2.25, 0, "low"), (1 / 8, 1, -3, 2.25, 0, "low")]),
        # Ratios 4 and 1/4. At A > 0 the first counts as 2: the mean is (2 / 4)^(1/2). At A < 0 the second counts as
        # 1/2, and the mean is (4 / 2)^(1/2).
        (
            policy_loss("gmpo", clip_low=LOG2, clip_high=LOG2),
            [(0.8, 0.2, 2, -ROOT2, 0, "high"), (0.1, 0.4, 2, -ROOT2, -ROOT2, "")],
        ),
        (
            policy_loss("gmpo", clip_low=LOG2, clip_high=LOG2),
            [(0.8, 0.2, -1, ROOT2, ROOT2, ""), (0.1, 0.4, -1, ROOT2, 0, "low")],
        ),
        # At ratio 1 the loss is -2 A / tau and the gradient REINFORCE's.
        (policy_loss("sapo", tau_neg=2), [(0.5, 0.5, 3, -6, -3, ""), (0.5, 0.5, -3, 3, 3, "")]),
        # Ratio 2: 4 sigmoid(1), with the derivative 4 sigmoid(1) (1 - sigmoid(1)) in the ratio.
        (policy_loss("sapo"), [(0.5, 0.25, 3, -12 * GATE, -12 * GATE * (1 - GATE) * 2, "")]),
        (policy_loss("sapo"), [(0.9, 0.01, 1, -4, 0, "")]),
        (policy_loss("dro", beta=0.5), [(0.5, 0.25, 3, 3 * LOG2 + 0.25 * LOG2**2, -3 + 0.5 * LOG2, "")]),
        (policy_loss("importance_sampling"), [(0.9, 0.1, -2, 18, 18, "")]),
        (
            policy_loss("sppo", clip=0.3),
            [
                (math.exp(0.1), 1, 1, -0.1, -1, ""),
                (math.exp(-0.1), 1, -1, -0.1, 1, ""),
                (math.exp(0.5), 1, 1, 0, 0, "high"),
                (math.exp(-0.5), 1, -1, 0, 0, "low"),
            ],
        ),
        # s = 0.5 + 0.25; eta A = 2 x 0.5 = 1: (0.75 - 1)^2 = 0.0625, divided among two tokens.
        (
            policy_loss("self_play", eta=2),
            [(math.exp(0.5), 1, 0.5, 0.03125, -0.5, ""), (math.exp(0.25), 1, 0.5, 0.03125, -0.5, "")],
        ),
        # beta s = 0.5 (ln 2 + ln 2); A + m = 1: (ln 2 - 1)^2 / 2, divided among two tokens.
        (policy_loss("gvpo", beta=0.5), [(2, 1, 1, (LOG2 - 1) ** 2 / 4, 0.5 * (LOG2 - 1), "")] * 2),
        (
            policy_loss("rec", regularizer="k2", regularizer_coef=0.5),
            [
                (E, E / 2, 1, 1 + 0.5 * LOG2**2, -1 + LOG2, ""),
                (E, 2 * E, -1, -1 + 0.5 * LOG2**2, 1 - LOG2, ""),
            ],
        ),
        (
            policy_loss("rec", regularizer="forward_kl", regularizer_coef=0.5),
            [(E, E / 2, 1, 1.5, -1.5, ""), (E, 2 * E, -1, -0.5, 0.5, "")],
        ),
    ],
    ids=lambda case: getattr(case, "type", ""),
)
def test_by_hand(config: PolicyLossConfig, tokens: list[tuple[Any, ...]]) -> None:
    """A token: its probability now and before, its advantage; loss, gradient, and the bound in force."""
    new, old, advantages, loss, gradient, bounds = zip(*tokens, strict=True)
    terms, found = on_one_response(config, new, old, advantages)
    assert terms.loss.tolist() == pytest.approx(loss, rel=1e-6, abs=1e-6)
    assert found == pytest.approx(gradient, rel=1e-6, abs=1e-6)
    assert bounds_of(terms) == list(bounds)


CISPO_TOKENS = [(1.1 * E, E), (3 * E, E), (0.1 * E, E)]
OFF_POLICY_TOKENS = [(E, E / 2), (E, 2 * E)]
TV = policy_loss("dppo_tv", divergence_low=0.15, divergence_high=0.15, ratio_cap=3.0)
REC = [
    ({}, [1, 1], [1, 1], ["", ""]),
    ({"clipping": "two_sides"}, [0, 0], [0, 0], ["high", "low"]),
    ({"clipping": "one_side"}, [0, 1], [1, 0], ["high good", "low bad"]),
    ({"clipping": "ring", "ring_low": 0.4, "ring_high": 0.5}, [0, 1], [1, 0], ["high good", "low bad"]),
    ({"clipping": "ring", "ring_low": 0.6, "ring_high": 2.0}, [0, 0], [0, 0], ["high", "low"]),
    ({"weight": "ratio"}, [2, 0.5], [2, 0.5], ["", ""]),
    ({"weight": "advantage", "temperature": 4.0}, [math.exp(0.5)] * 2, [math.exp(-0.5)] * 2, ["", ""]),
]
BINARY_KL = math.log(2 / math.sqrt(3))
"""From 1/2 to 3/4 and from 1/2 to 1/4: KL((1/2, 1/2) || (3/4, 1/4)) = 0.1438."""


def dppo_kl(bound: float) -> PolicyLossConfig:
    return policy_loss("dppo_kl", divergence_low=bound, divergence_high=bound)


@pytest.mark.parametrize(
    ("config", "tokens", "good", "bad", "bounds"),
    [
        (policy_loss("gpg"), [(0.5, 1)], [1], [1], [""]),
        (policy_loss("opmd", tau=3.0), [(0.5, 1)], [1 / 4], [1 / 4], [""]),
        (policy_loss("sapo", gate="weight", tau_neg=1), [(0.5, 0.25)], [4 * GATE], [4 * GATE], [""]),
        # The paper has no lower bound.
        (
            policy_loss("cispo", clip_high=0.28),
            CISPO_TOKENS,
            [1.1, 1.28, 0.1],
            [1.1, 1.28, 0.1],
            ["", "high", ""],
        ),
        (policy_loss("cispo", clip_low=0.2), CISPO_TOKENS, [1.1, 3, 0.8], [1.1, 3, 0.8], ["", "", "low"]),
        (
            policy_loss("cispo", clip_low=0.2, clip_high=0.28, mask_clipped=True),
            CISPO_TOKENS,
            [1.1, 0, 0.8],
            [1.1, 1.28, 0],
            ["", "high", "low"],
        ),
        # Up by 0.1, up by 0.2, and down by 0.2; then a ratio of 4, capped at 3, but few points of probability.
        (
            TV,
            [(0.5, 0.4), (0.6, 0.4), (0.2, 0.4), (0.04, 0.01)],
            [1.25, 0, 0.5, 3],
            [1.25, 1.5, 0, 3],
            ["", "high good", "low bad", ""],
        ),
        (dppo_kl(BINARY_KL + 0.001), [(0.75, 0.5), (0.25, 0.5)], [1.5, 0.5], [1.5, 0.5], ["", ""]),
        (
            dppo_kl(BINARY_KL - 0.001),
            [(0.75, 0.5), (0.25, 0.5)],
            [0, 0.5],
            [1.5, 0],
            ["high good", "low bad"],
        ),
        # Finite for a certain token.
        (policy_loss("dppo_kl"), [(1, 0.5), (1, 1)], [0, 1], [2, 1], ["high good", ""]),
        (policy_loss("topr", threshold=0.0), OFF_POLICY_TOKENS, [1, 1], [1, 0.5], ["high bad", ""]),
        (policy_loss("topr", threshold=2.0), OFF_POLICY_TOKENS, [1, 0.5], [1, 0.5], ["high", ""]),
        *((policy_loss("rec", **settings), OFF_POLICY_TOKENS, *weights) for settings, *weights in REC),
    ],
    ids=str,
)
def test_weights_of_the_log_probability_by_hand(config, tokens, good, bad, bounds):
    """The loss is -A w log pi, and its gradient -A w, with the weights of good and bad answers; A is 2 and -2. A bound
    is in force for both of them, or where it says so."""
    new, old = zip(*tokens, strict=True)
    for advantage, weights, other in ((2.0, good, " bad"), (-2.0, bad, " good")):
        terms, gradient = on_one_response(config, new, old, [advantage] * len(new))
        expected = [-advantage * weight for weight in weights]
        assert gradient == pytest.approx(expected, rel=1e-6, abs=1e-6)
        losses = [each * math.log(p) for each, p in zip(expected, new, strict=True)]
        assert terms.loss.tolist() == pytest.approx(losses, rel=1e-5, abs=1e-6)
        assert bounds_of(terms) == ["" if other in bound else bound.split(" ")[0] for bound in bounds]


@pytest.mark.parametrize(
    ("config", "loss", "gradient"),
    [
        (policy_loss("clip_cov"), [-1.2, 0, 0, -1], [0, 0, 0, -1]),
        (
            policy_loss("kl_cov", kl_coef=0.5),
            [-2, -0.5 + 0.5 * LOG2, -2 + 0.5 * LOG2, -1],
            [-2, -1, -1.5, -1],
        ),
        (policy_loss("m2po"), [-2, 0, 0, -1], [-2, 0, 0, -1]),
    ],
    ids=str,
)
def test_losses_of_selected_tokens_by_hand(config, loss, gradient):
    """Ratios 2, 1/2, 2 and 1, of which the second and the third are selected; A = 1."""
    selected = [False, True, True, False]
    terms, found = on_one_response(config, [2, 0.5, 2, 1], [1] * 4, [1] * 4, selected)
    assert terms.loss.tolist() == pytest.approx(loss)
    assert found == pytest.approx(gradient)


def test_a_missing_selection_is_reported() -> None:
    targets = TargetTokens.concatenated(torch.tensor([2]))
    with pytest.raises(ValueError, match="selected tokens"):
        policy_loss_terms(policy_loss("kl_cov"), torch.zeros(2), torch.zeros(2), torch.zeros(2), targets)


@given(st.floats(0.01, 20), st.floats(-5, 5), st.floats(0, 0.9), st.floats(0, 0.9), st.floats(1.01, 10))
def test_the_clipped_loss_is_the_papers_formula(ratio, advantage, low, high, dual):
    surrogate = min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)
    if advantage < 0:
        surrogate = max(surrogate, dual * advantage)
    config = policy_loss("clip", clip_low=low, clip_high=high, dual_clip=dual)
    terms, _ = on_one_response(config, [ratio], [1], [advantage])
    assert terms.loss.item() == pytest.approx(-surrogate, rel=1e-4, abs=1e-5)


OTHER_GRADIENT = ("opmd", "gvpo", "self_play")
"""Losses whose gradient in a step's first update is not that of REINFORCE."""


@pytest.mark.parametrize(
    "config",
    [
        *(kind() for kind in members(PolicyLossConfig) if kind().type not in OTHER_GRADIENT),
        policy_loss("clip", clip_low=0, clip_high=0),
        policy_loss("sapo", tau_pos=0.5, tau_neg=3.0),
        policy_loss("dro", beta=2.0),
    ],
    ids=str,
)
def test_in_the_first_update_the_gradient_is_reinforce(config: PolicyLossConfig) -> None:
    """Without old log-probs the ratio is 1 and the loss's gradient -A grad log pi, however tight the clip."""
    batch = make_batch([(1, 3)])
    batch.selected.zero_()
    logprobs, advantages = (
        torch.tensor([0.3, 0.6, 0.9]).log().requires_grad_(),
        torch.tensor([2.0, -1.5, 0.5]),
    )
    ratio = log_ratio(logprobs, None)
    assert ratio.tolist() == [0, 0, 0]
    terms = policy_loss_terms(config, logprobs, ratio, advantages, TargetTokens.of(batch))
    (gradient,) = torch.autograd.grad(terms.loss.sum(), logprobs)
    torch.testing.assert_close(gradient, -advantages)


@pytest.mark.parametrize("kind", ["gspo", "gmpo"])
@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=5),
    st.floats(0, 0.3),
    st.floats(0, 0.3),
    st.integers(0, 99),
)
def test_under_the_mean_over_sequences_it_is_the_papers_objective(kind, lengths, low, high, seed):
    """Value and gradient of the mean over responses of min(s A, clip(s) A) or, GMPO, A s with bounded ratios; s is the
    geometric mean of the response's ratios."""
    batch = make_batch([(1, n) for n in lengths], seed=seed)
    batch.weight.fill_(1)
    targets = TargetTokens.of(batch)
    generator = torch.Generator().manual_seed(seed)
    ratio = (torch.randn(sum(lengths), generator=generator) * 0.3).requires_grad_()
    per_response = torch.randn(len(lengths), generator=generator)
    parts = ratio.split(lengths)
    if kind == "gmpo":
        signed = zip(parts, per_response, strict=True)
        parts = tuple(part.clamp(max=high) if a > 0 else part.clamp(min=-low) for part, a in signed)
    surrogates = torch.stack([part.mean() for part in parts]).exp() * per_response
    if kind == "gspo":
        means = torch.stack([part.mean() for part in parts]).exp()
        surrogates = torch.minimum(surrogates, means.clamp(1 - low, 1 + high) * per_response)
    expected = -surrogates.mean()

    weights = token_weights(targets, "seq-mean-token-mean", counts_of(batch), max_response_tokens=9)
    advantages = per_response.repeat_interleave(torch.tensor(lengths))
    terms = policy_loss_terms(
        policy_loss(kind, clip_low=low, clip_high=high), ratio, ratio, advantages, targets
    )
    found = (weights * terms.loss).sum()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found, ratio), torch.autograd.grad(expected, ratio))


@pytest.mark.parametrize("over", ["group", "step"])
def test_the_minimum_of_self_play_is_the_policy_of_the_paper(over: Literal["group", "step"]) -> None:
    """pi = pi_old exp(eta R) / Z (arXiv 2405.00675, equation 3.1): its log-ratios make every loss 0, and
    Z is the mean of exp(eta R), so that the mean of exp(log-ratio) is 1."""
    scored = rollouts([1, 0, 1, 1], [1] * 4, [0, 0, 1, 1])
    config = SelfPlayConfig(eta=2.0, baseline_over=over, policy_loss=policy_loss("self_play", eta=2.0))
    advantages = compute_advantages(config, scored, max_response_tokens=4).advantages
    ratio, targets = 2 * advantages, TargetTokens.concatenated(scored.tokens)
    terms = policy_loss_terms(config.policy_loss, ratio, ratio, advantages, targets)
    assert terms.loss.tolist() == pytest.approx([0.0] * 4)
    mean = ratio.exp().mean() if over == "step" else ratio[:2].exp().mean()
    assert float(mean) == pytest.approx(1.0, abs=1e-6)


TOKENS = torch.tensor([2, 1, 3, 1])
GROUP = torch.tensor([0, 0, 1, 1])


def test_the_means_by_hand() -> None:
    """s: 3, 5 | 6, -2; beta 0.1: means 0.4 and 0.2."""
    ratio = torch.tensor([1.0, 2.0, 5.0, 1.0, 2.0, 3.0, -2.0])
    found = mean_implicit_rewards(ratio, TOKENS, GROUP, beta=0.1)
    assert found.tolist() == pytest.approx([0.4] * 3 + [0.2] * 4)


def test_the_gradient_is_that_of_the_variance_of_each_group() -> None:
    """arXiv 2504.19599, equation 8: half the sum of ((beta s - mean beta s) - (R - mean R))^2, whose gradient does not
    change when the mean is held fixed, because the differences of a group add up to 0."""
    random = torch.Generator().manual_seed(0)
    ratio = torch.randn(7, generator=random, dtype=torch.float64, requires_grad=True)
    rewards, beta = torch.randn(4, generator=random, dtype=torch.float64), 0.3
    response = torch.arange(4).repeat_interleave(TOKENS)
    implicit = torch.zeros(4, dtype=torch.float64).index_add(0, response, ratio) * beta
    loss = torch.zeros((), dtype=torch.float64)
    for group in (0, 1):
        own = implicit[group == GROUP] - implicit[group == GROUP].mean()
        loss = loss + (own - rewards[group == GROUP] + rewards[group == GROUP].mean()).square().sum() / 2
    (expected,) = torch.autograd.grad(loss, ratio)

    centered = rewards - torch.stack([rewards[group == GROUP].mean() for group in GROUP])
    shifted = centered[response] + mean_implicit_rewards(ratio.detach(), TOKENS, GROUP, beta=beta)
    targets = TargetTokens.concatenated(TOKENS)
    terms = policy_loss_terms(GvpoLossConfig(beta=beta), ratio, ratio, shifted, targets)
    (gradient,) = torch.autograd.grad(terms.loss.sum(), ratio)
    torch.testing.assert_close(gradient, expected)


def test_an_update_adds_the_means_of_its_groups() -> None:
    """Groups a (two responses of 2 tokens) and b: log-ratios 1 and 3 per token in a, so s is 2 and 6; 2 in b."""
    rollouts = [
        experience([1, 2], [3, 4], group=group, index=index)
        for group, index in (("a", 0), ("a", 1), ("b", 0))
    ]
    masks = [each.loss_mask.astype(np.float32) for each in rollouts]
    size = float(masks[0].sum())
    current = [mask * ratio for mask, ratio in zip(masks, (1.0, 3.0, 2.0), strict=True)]
    advantages = [mask * 0.5 for mask in masks]
    gvpo = GrpoConfig(policy_loss=GvpoLossConfig(beta=0.1), aggregation="seq-mean-token-sum")
    zeros = [np.zeros_like(mask) for mask in masks]
    found = add_implicit_rewards(gvpo, rollouts, advantages, zeros, lambda: current)
    for each, mask in zip(found, masks, strict=True):
        np.testing.assert_allclose(each, mask * (0.5 + 0.1 * 2 * size), rtol=1e-6)
    assert add_implicit_rewards(GrpoConfig(), rollouts, advantages, zeros, lambda: current) is advantages
    assert add_implicit_rewards(gvpo, rollouts, advantages, None, lambda: current) is advantages
