"""Advantage estimators with one value per rollout, relative to the other rollouts of its group.

Every function takes rewards [N] and group [N], where equal integers belong to one group, and returns
[N] float64. Groups can have different sizes, in any order. A rollout that is alone in its group has the
advantage 0 (verl and Trinity-RFT use its reward). Where all rewards of a group are equal, all advantages
in it are exactly 0.
"""

from __future__ import annotations

import math
from typing import Literal

import torch

from strop.algorithms.groups import GroupIndex
from strop.reward_comparison import are_equal, reaches


def grpo(
    rewards: torch.Tensor,
    group: torch.Tensor,
    *,
    divide_by_std: bool = True,
    std_over: Literal["group", "step"] = "group",
    epsilon: float = 1e-6,
) -> torch.Tensor:
    """Group relative advantages (DeepSeekMath, arXiv 2402.03300, section 4.1.2).

        A_i = (r_i - mean(group)) / (std(group) + epsilon)

    with the unbiased standard deviation (divided by n - 1). `divide_by_std=False` omits the division
    (Dr. GRPO, arXiv 2503.20783); OPMD with its mean baseline is the same. `std_over="step"` takes the standard
    deviation of all rewards (arXiv 2508.08221).
    """
    groups, rewards = GroupIndex.of(group), rewards.double()
    centered = rewards - groups.mean(rewards)
    if not divide_by_std:
        return centered
    if std_over == "group":
        return centered / (groups.std(rewards) + epsilon)
    return centered / ((rewards.std() if len(rewards) > 1 else 1.0) + epsilon)


def grpo_passk(
    rewards: torch.Tensor,
    group: torch.Tensor,
    *,
    k: int,
    divide_by_std: bool = True,
    epsilon: float = 1e-6,
) -> torch.Tensor:
    """Expected gain of a rollout over the best of k - 1 others of its group (pass@k).

        A_i = E[max(r_i, b) - b],  b = max of k - 1 of the other rewards, sampled without replacement

    For k = n only the best rollout has an advantage above 0: the highest reward minus the second highest
    (Tang et al., arXiv 2503.19595). In general it is PKPO's leave-one-out-minus-one estimator (Walder and
    Karkhanis, arXiv 2505.15201) times n / k: the mean over a group's rollouts of A_i grad log pi is
    an unbiased estimate of 1 / k of the gradient of E[best of k]. In a group smaller than k, the group's
    size replaces k.

    With the other rewards in ascending order from j = 0, the j-th is the best of k - 1 sampled ones with
    probability C(j, k - 2) / C(n - 1, k - 1); only those below r_i contribute a gain.
    """
    groups, rewards = GroupIndex.of(group), rewards.double()
    advantages = torch.zeros_like(rewards)
    for number in range(int(groups.group_number.max()) + 1):
        mine = (groups.group_number == number).nonzero().squeeze(1)
        n, best_of = len(mine), min(k, len(mine))
        if n < 2:
            continue
        ordered, order = rewards[mine].sort()
        ways = [math.comb(j, best_of - 2) / math.comb(n - 1, best_of - 1) for j in range(n)]
        gains = (ordered[:, None] - ordered[None, :]).tril()
        advantages[mine[order]] = gains @ torch.tensor(ways, dtype=torch.float64, device=rewards.device)
    return advantages / (groups.std(rewards) + epsilon) if divide_by_std else advantages


def rloo(rewards: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
    """RLOO: the baseline is the mean of the group's other rewards (leave one out; Ahmadian et al., arXiv 2402.14740).

    A_i = r_i - (sum of the others) / (n - 1) = (r_i - mean(group)) n / (n - 1)
    """
    groups, rewards = GroupIndex.of(group), rewards.double()
    return (rewards - groups.mean(rewards)) * groups.size / (groups.size - 1).clamp(min=1)


def opo(rewards: torch.Tensor, group: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """OPO: the baseline is the mean reward weighted by response length (Hao et al., arXiv 2505.23585).

        A_i = r_i - (sum of l r) / (sum of l)

    This baseline has the least variance if the gradients of tokens are orthogonal and of equal norm.
    `tokens` [N] are the response lengths.
    """
    groups, rewards, lengths = GroupIndex.of(group), rewards.double(), tokens.double()
    return rewards - groups.total(lengths * rewards) / groups.total(lengths)


def gpg(
    rewards: torch.Tensor,
    group: torch.Tensor,
    *,
    scale: Literal["signal", "nonzero", "none"] = "signal",
) -> torch.Tensor:
    """Group policy gradient (Chu et al., arXiv 2504.02546, equation 7), with its F_norm of 1.

        A_i = alpha (r_i - mean(group)),  alpha = N / (N - M)

    where M of the batch's N rollouts are in groups in which all rewards are equal. These have no gradient,
    and without alpha they would only scale down the gradient of the others. `scale="nonzero"` counts the rollouts
    with a reward of 0 as M, whatever their group, as verl does; `scale="none"` has an alpha of 1.
    """
    groups, rewards = GroupIndex.of(group), rewards.double()
    centered = rewards - groups.mean(rewards)
    if scale == "none":
        return centered
    counted = rewards if scale == "nonzero" else groups.highest(rewards) + groups.highest(-rewards)
    return centered * (len(rewards) / max(int(counted.count_nonzero()), 1))


def opmd_log_avg_exp(rewards: torch.Tensor, group: torch.Tensor, *, tau: float) -> torch.Tensor:
    """OPMD with the baseline of mirror descent (arXiv 2505.17826; 2501.12599, section 2.3.2).

    A_i = r_i - tau log mean exp(r / tau)
    """
    groups, rewards = GroupIndex.of(group), rewards.double()
    highest = groups.highest(rewards)
    return rewards - highest - tau * groups.mean(((rewards - highest) / tau).exp()).log()


def asymre(rewards: torch.Tensor, group: torch.Tensor, *, baseline_shift: float) -> torch.Tensor:
    """AsymRE (Arnal et al., arXiv 2506.20520): the baseline is the group's mean reward plus a shift.

    A rollout that is alone in its group has the advantage -baseline_shift.
    """
    rewards = rewards.double()
    return rewards - (GroupIndex.of(group).mean(rewards) + baseline_shift)


def raft(rewards: torch.Tensor, *, min_reward: float | None) -> torch.Tensor:
    """RAFT (Dong et al., arXiv 2304.06767): 1 for a rollout that is imitated, 0 for one below `min_reward`."""
    if min_reward is None:
        return torch.ones_like(rewards, dtype=torch.float64)
    return reaches(rewards.double(), min_reward).double()


def preferred(
    rewards: torch.Tensor, group: torch.Tensor, *, beta: float, train_ties: bool = False
) -> torch.Tensor:
    """DPO on the best and the worst rollout of each group, at the reference (arXiv 2305.18290, equation 7).

        A = beta n / 2 for the first of the highest reward, -beta n / 2 for the first other of the lowest, else 0

    where n is the size of the group. The gradient of -log sigmoid(margin) is sigmoid(-margin) times that of the
    margin, beta (log pi(chosen) - log pi(rejected)) plus a constant, and sigmoid(0) is 1 / 2; n turns the mean over
    rollouts into one over pairs. A group of equal rewards has no pair, or with `train_ties` its first two rollouts,
    as in verl's recipe SPIN.
    """
    groups, rewards = GroupIndex.of(group), rewards.double()
    advantages = torch.zeros_like(rewards)
    for number in range(int(groups.group_number.max()) + 1):
        mine = (groups.group_number == number).nonzero().squeeze(1)
        scores = rewards[mine]
        if len(mine) < 2 or (not train_ties and are_equal(scores.tolist())):
            continue
        chosen = int(scores.argmax())
        rejected = int(scores.index_fill(0, torch.tensor([chosen], device=scores.device), math.inf).argmin())
        advantages[mine[chosen]] = beta * len(mine) / 2
        advantages[mine[rejected]] = -beta * len(mine) / 2
    return advantages
