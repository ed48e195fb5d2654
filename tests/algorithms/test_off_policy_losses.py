"""Cases by hand of the policy losses for off-policy rollouts, and of the algorithms that come with them."""

from __future__ import annotations

import math

import pytest
import torch

from strop.algorithms.advantages import asymre, grpo, raft
from strop.algorithms.losses.off_policy_losses import rec, sppo, topr
from strop.algorithms.schedules import imitation_weight
from strop.config.schema.group_baselines import ImitationScheduleConfig
from strop.config.schema.policy_loss import RecLossConfig

LOGPROBS = torch.tensor([-1.0, -1.0, -1.0, -1.0], requires_grad=True)
LOG_RATIO = torch.tensor([2.0, 2.0, 0.5, 0.5]).log()
ADVANTAGES = torch.tensor([1.0, -1.0, 1.0, -1.0])


def test_topr_tapers_the_ratio_of_bad_responses_only() -> None:
    terms = topr(LOGPROBS, LOG_RATIO, ADVANTAGES, threshold=0.0)
    torch.testing.assert_close(terms.loss.detach(), torch.tensor([1.0, -1.0, 1.0, -0.5]))
    assert terms.clipped_high.tolist() == [False, True, False, False]


def test_sppo_is_the_log_ratio_within_its_bounds() -> None:
    terms = sppo(torch.tensor([0.1, -0.1, 0.5, -0.5]), ADVANTAGES, clip=0.3)
    torch.testing.assert_close(terms.loss, torch.tensor([-0.1, -0.1, 0.0, 0.0]))
    assert (terms.clipped_high.tolist(), terms.clipped_low.tolist()) == (
        [False, False, True, False],
        [False, False, False, True],
    )


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (RecLossConfig(), [1.0, -1.0, 1.0, -1.0]),
        (RecLossConfig(clipping="two_sides"), [0.0, 0.0, 0.0, 0.0]),
        (RecLossConfig(clipping="one_side"), [0.0, -1.0, 1.0, 0.0]),
        (RecLossConfig(clipping="ring", ring_low=0.4, ring_high=0.5), [0.0, -1.0, 1.0, 0.0]),
        (RecLossConfig(clipping="ring", ring_low=0.6, ring_high=2.0), [0.0, 0.0, 0.0, 0.0]),
        (RecLossConfig(weight="ratio"), [2.0, -2.0, 0.5, -0.5]),
        (RecLossConfig(weight="advantage", temperature=2.0), [math.exp(0.5), -math.exp(-0.5)] * 2),
        (
            RecLossConfig(regularizer="k2", regularizer_coef=0.5),
            [each + 0.5 * math.log(2) ** 2 for each in (1.0, -1.0, 1.0, -1.0)],
        ),
        (RecLossConfig(regularizer="forward_kl", regularizer_coef=0.5), [1.5, -0.5, 1.5, -0.5]),
    ],
)
def test_rec(config: RecLossConfig, expected: list[float]) -> None:
    terms = rec(config, LOGPROBS, LOG_RATIO, ADVANTAGES)
    torch.testing.assert_close(terms.loss.detach(), torch.tensor(expected))


def test_asymre_shifts_the_baseline() -> None:
    found = asymre(torch.tensor([1.0, 0.0, 0.5]), torch.tensor([0, 0, 1]), baseline_shift=-0.1)
    torch.testing.assert_close(found, torch.tensor([0.6, -0.4, 0.1], dtype=torch.float64), atol=1e-7, rtol=0)


def test_raft_imitates_all_or_the_successes() -> None:
    rewards = torch.tensor([1.0, 0.0])
    assert raft(rewards, min_reward=None).tolist() == [1.0, 1.0]
    assert raft(rewards, min_reward=0.5).tolist() == [1.0, 0.0]


def test_the_standard_deviation_of_the_step() -> None:
    rewards, group = torch.tensor([0.0, 2.0, 4.0, 6.0]), torch.tensor([0, 0, 1, 1])
    found = grpo(rewards, group, std_over="step", epsilon=1e-9)
    std = math.sqrt(20 / 3)
    torch.testing.assert_close(found, torch.tensor([-1, 1, -1, 1], dtype=torch.float64) / std)


def test_the_weight_of_demonstrations_rises_and_decays() -> None:
    schedule = ImitationScheduleConfig(warmup_steps=2, decay_steps=4, final=0.1)
    found = [imitation_weight(step, peak=0.5, schedule=schedule) for step in (1, 2, 4, 6, 9)]
    assert found == pytest.approx([0.25, 0.5, 0.3, 0.1, 0.1])
