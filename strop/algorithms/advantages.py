"""Advantages of whole answers: how much better one was than the others of its group.

Every function takes rewards [N] and group [N], where equal integers belong to one group, and gives
[N] float64. Groups may be of different sizes, in any order. A rollout alone in its group has
nothing to be compared with: its advantage is 0. (verl and Trinity-RFT give it its whole reward.)
Where all rewards of a group are equal, all advantages in it are exactly 0.
"""

from __future__ import annotations

import math

import torch

from strop.algorithms.groups import Groups


def grpo(
    rewards: torch.Tensor, group: torch.Tensor, *, divide_by_std: bool = True, epsilon: float = 1e-6
) -> torch.Tensor:
    """Group relative advantages (DeepSeekMath, arXiv 2402.03300, section 4.1.2).

        A_i = (r_i - mean(group)) / (std(group) + epsilon)

    with the unbiased standard deviation (divided by n - 1); without the division for
    `divide_by_std=False` (Dr. GRPO, arXiv 2503.20783), which is OPMD with its mean baseline, too.
    """
    groups, rewards = Groups.of(group), rewards.double()
    centred = rewards - groups.mean(rewards)
    return centred / (groups.std(rewards) + epsilon) if divide_by_std else centred


def grpo_passk(
    rewards: torch.Tensor,
    group: torch.Tensor,
    *,
    k: int,
    divide_by_std: bool = True,
    epsilon: float = 1e-6,
) -> torch.Tensor:
    """What an answer is expected to add to the best of k - 1 others of its group.

        A_i = E[max(r_i, b) - b],  b = max of k - 1 of the other rewards, drawn without replacement

    For k = n only the best answer has one: the highest reward less the second highest (Tang et
    al., arXiv 2503.19595). In general it is PKPO's leave-one-out-minus-one estimator (Walder and
    Karkhanis, arXiv 2505.15201) times n / k: the mean over a group's answers of A_i grad log pi is
    an unbiased estimate of 1 / k of the gradient of E[best of k]. In a group smaller than k, k is
    its size.

    With the others sorted upwards from j = 0, the j-th is the best of k - 1 drawn ones with
    probability C(j, k - 2) / C(n - 1, k - 1); only those below r_i leave anything to be added.
    """
    groups, rewards = Groups.of(group), rewards.double()
    advantages = torch.zeros_like(rewards)
    for number in range(int(groups.member.max()) + 1):
        mine = (groups.member == number).nonzero().squeeze(1)
        n, best_of = len(mine), min(k, len(mine))
        if n < 2:
            continue
        ordered, order = rewards[mine].sort()
        ways = [math.comb(j, best_of - 2) / math.comb(n - 1, best_of - 1) for j in range(n)]
        gains = (ordered[:, None] - ordered[None, :]).tril()
        advantages[mine[order]] = gains @ torch.tensor(ways, dtype=torch.float64, device=rewards.device)
    return advantages / (groups.std(rewards) + epsilon) if divide_by_std else advantages


def rloo(rewards: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
    """Leave one out: the baseline is the mean of the other rewards (Ahmadian et al., arXiv 2402.14740).

    A_i = r_i - (sum of the others) / (n - 1) = (r_i - mean(group)) n / (n - 1)
    """
    groups, rewards = Groups.of(group), rewards.double()
    return (rewards - groups.mean(rewards)) * groups.size / (groups.size - 1).clamp(min=1)


def opo(rewards: torch.Tensor, group: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """The baseline is the mean weighted by length (Hao et al., arXiv 2505.23585).

        A_i = r_i - (sum of l r) / (sum of l)

    It is that of least variance, if gradients of tokens are orthogonal and of one norm. `tokens`
    [N] are the answers' lengths.
    """
    groups, rewards, lengths = Groups.of(group), rewards.double(), tokens.double()
    return rewards - groups.total(lengths * rewards) / groups.total(lengths)


def gpg(rewards: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
    """Group policy gradient (Chu et al., arXiv 2504.02546, equation 7), with its F_norm of 1.

        A_i = alpha (r_i - mean(group)),  alpha = N / (N - M)

    where M of the batch's N answers are in groups in which all rewards are equal: they have no
    gradient, and without alpha would only make that of the others smaller. (verl counts answers
    with a reward of 0 for M, whatever their group: another number, and not the paper's.)
    """
    groups, rewards = Groups.of(group), rewards.double()
    spread = groups.highest(rewards) + groups.highest(-rewards)
    teaching = int(spread.count_nonzero())
    return (rewards - groups.mean(rewards)) * (len(rewards) / max(teaching, 1))


def opmd_log_avg_exp(rewards: torch.Tensor, group: torch.Tensor, *, tau: float) -> torch.Tensor:
    """OPMD with the baseline that mirror descent asks for (arXiv 2505.17826; 2501.12599, section 2.3.2).

    A_i = r_i - tau log mean exp(r / tau)
    """
    groups, rewards = Groups.of(group), rewards.double()
    highest = groups.highest(rewards)
    return rewards - highest - tau * groups.mean(((rewards - highest) / tau).exp()).log()
