"""Advantage estimators: one value per rollout, relative to the rollouts of its group, per token, or per turn.

Every function takes rewards [N] and group [N], where equal integers belong to one group, and returns
[N] float64. Groups can have different sizes, in any order. A rollout that is alone in its group has the
advantage 0 (verl and Trinity-RFT use its reward). Where all rewards of a group are equal, all advantages
in it are exactly 0.

Those with one value per token (REINFORCE++, GDPO, ReMax, GAE) take the K targets of N rollouts concatenated;
`tokens` [N] is the number of targets of each rollout.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from strop.algorithms.algorithm import (
    AdvantageEstimate,
    RolloutAlgorithm,
    RolloutBatch,
    group_indices,
    repeat_groups,
    resample_groups,
    varied_groups,
)
from strop.config.schema import algorithm as sections
from strop.reward_comparison import are_equal, reaches
from strop.seeds import derive_seed
from strop.types import ExperienceGroup


@dataclass(frozen=True, slots=True)
class GroupIndex:
    """Group membership of N rollouts, with sums, means and deviations over groups.

    Statistics are float64, in which the sum of equal float32 numbers is exact, and so is their mean: equal
    rewards give advantages of exactly 0, where float32 would leave rounding errors.
    """

    group_number: torch.Tensor
    """[N] int64: group number of each rollout, from 0."""
    size: torch.Tensor
    """[N] float64: number of rollouts in each rollout's group."""

    @classmethod
    def of(cls, group: torch.Tensor) -> GroupIndex:
        """The index of `group` [N], where equal integers belong to one group."""
        _, member, size = group.unique(return_inverse=True, return_counts=True)  # type: ignore[no-untyped-call]
        return cls(member, size.double()[member])

    def total(self, values: torch.Tensor) -> torch.Tensor:
        """[N] of [N] float64: for each rollout, the sum over its group."""
        return torch.zeros_like(values).index_add(0, self.group_number, values)[self.group_number]

    def mean(self, values: torch.Tensor) -> torch.Tensor:
        """[N] of [N] float64: for each rollout, the mean over its group."""
        return self.total(values) / self.size

    def highest(self, values: torch.Tensor) -> torch.Tensor:
        """[N] of [N] float64: for each rollout, the highest in its group."""
        return values.scatter_reduce(0, self.group_number, values, "amax", include_self=False)[
            self.group_number
        ]

    def std(self, values: torch.Tensor) -> torch.Tensor:
        """[N] of [N] float64: the unbiased standard deviation (divided by n - 1); 0 in a group of one."""
        squares = self.total((values - self.mean(values)).square())
        return (squares / (self.size - 1).clamp(min=1)).sqrt()


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


class Grpo(RolloutAlgorithm[sections.GrpoConfig]):
    """GRPO, without the groups of a small standard deviation where the section says so."""

    def chosen_groups(self, groups: Sequence[ExperienceGroup], *, seed: int, step: int) -> list[list[int]]:
        if self.section.min_reward_std is None:
            return group_indices(groups)
        varied = varied_groups(groups, self.section.min_reward_std)
        if not self.section.repeat_groups:
            return varied
        return repeat_groups(varied, len(groups), derive_seed(seed, "repeat_groups", step))

    def advantages(self, scored: RolloutBatch) -> torch.Tensor:
        section = self.section
        advantages = grpo(
            scored.penalized_rewards(),
            scored.group,
            divide_by_std=section.divide_by_std,
            std_over=section.std_over,
            epsilon=section.std_epsilon,
        )
        if not section.divide_by_sequences:
            return advantages
        if scored.sequences is None:
            raise ValueError("algorithm.divide_by_sequences needs RolloutBatch.sequences, which is missing")
        return advantages / scored.sequences


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


class GrpoPassk(RolloutAlgorithm[sections.GrpoPasskConfig]):
    def advantages(self, scored: RolloutBatch) -> torch.Tensor:
        section = self.section
        return grpo_passk(
            scored.penalized_rewards(),
            scored.group,
            k=section.k or section.rollouts_per_task,
            divide_by_std=section.divide_by_std,
            epsilon=section.std_epsilon,
        )


def rloo(rewards: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
    """RLOO: the baseline is the mean of the group's other rewards (leave one out; Ahmadian et al., arXiv 2402.14740).

    A_i = r_i - (sum of the others) / (n - 1) = (r_i - mean(group)) n / (n - 1)
    """
    groups, rewards = GroupIndex.of(group), rewards.double()
    return (rewards - groups.mean(rewards)) * groups.size / (groups.size - 1).clamp(min=1)


class Rloo(RolloutAlgorithm[sections.RlooConfig]):
    def advantages(self, scored: RolloutBatch) -> torch.Tensor:
        return rloo(scored.penalized_rewards(), scored.group)


def opo(rewards: torch.Tensor, group: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """OPO: the baseline is the mean reward weighted by response length (Hao et al., arXiv 2505.23585).

        A_i = r_i - (sum of l r) / (sum of l)

    This baseline has the least variance if the gradients of tokens are orthogonal and of equal norm.
    `tokens` [N] are the response lengths.
    """
    groups, rewards, lengths = GroupIndex.of(group), rewards.double(), tokens.double()
    return rewards - groups.total(lengths * rewards) / groups.total(lengths)


class Opo(RolloutAlgorithm[sections.OpoConfig]):
    def advantages(self, scored: RolloutBatch) -> torch.Tensor:
        return opo(scored.penalized_rewards(), scored.group, scored.tokens)


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


class Gpg(RolloutAlgorithm[sections.GpgConfig]):
    def advantages(self, scored: RolloutBatch) -> torch.Tensor:
        return gpg(scored.penalized_rewards(), scored.group, scale=self.section.scale)


def opmd_log_avg_exp(rewards: torch.Tensor, group: torch.Tensor, *, tau: float) -> torch.Tensor:
    """OPMD with the baseline of mirror descent (arXiv 2505.17826; 2501.12599, section 2.3.2).

    A_i = r_i - tau log mean exp(r / tau)
    """
    groups, rewards = GroupIndex.of(group), rewards.double()
    highest = groups.highest(rewards)
    return rewards - highest - tau * groups.mean(((rewards - highest) / tau).exp()).log()


class Opmd(RolloutAlgorithm[sections.OpmdConfig]):
    def advantages(self, scored: RolloutBatch) -> torch.Tensor:
        scores, baseline = scored.penalized_rewards(), self.section.baseline
        if isinstance(baseline, sections.MeanBaselineConfig):
            return grpo(scores, scored.group, divide_by_std=False)
        return opmd_log_avg_exp(scores, scored.group, tau=baseline.tau)


class SelfPlay(RolloutAlgorithm[sections.SelfPlayConfig]):
    """SPPO's advantages are OPMD's, over the group or the step, with tau = 1 / eta."""

    def advantages(self, scored: RolloutBatch) -> torch.Tensor:
        compared = torch.zeros_like(scored.group) if self.section.baseline_over == "step" else scored.group
        return opmd_log_avg_exp(scored.penalized_rewards(), compared, tau=1 / self.section.eta)


def asymre(rewards: torch.Tensor, group: torch.Tensor, *, baseline_shift: float) -> torch.Tensor:
    """AsymRE (Arnal et al., arXiv 2506.20520): the baseline is the group's mean reward plus a shift.

    A rollout that is alone in its group has the advantage -baseline_shift.
    """
    rewards = rewards.double()
    return rewards - (GroupIndex.of(group).mean(rewards) + baseline_shift)


class AsymRe(RolloutAlgorithm[sections.AsymReConfig]):
    def advantages(self, scored: RolloutBatch) -> torch.Tensor:
        return asymre(scored.penalized_rewards(), scored.group, baseline_shift=self.section.baseline_shift)


def raft(rewards: torch.Tensor, *, min_reward: float | None) -> torch.Tensor:
    """RAFT (Dong et al., arXiv 2304.06767): 1 for a rollout that is imitated, 0 for one below `min_reward`."""
    if min_reward is None:
        return torch.ones_like(rewards, dtype=torch.float64)
    return reaches(rewards.double(), min_reward).double()


class Raft(RolloutAlgorithm[sections.RaftConfig]):
    def advantages(self, scored: RolloutBatch) -> torch.Tensor:
        return raft(scored.rewards, min_reward=self.section.min_reward)


class Reinforce(RolloutAlgorithm[sections.ReinforceConfig]):
    """The advantage is the reward (Williams, 1992)."""

    def advantages(self, scored: RolloutBatch) -> torch.Tensor:
        return scored.penalized_rewards()


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


class OnlineDpo(RolloutAlgorithm[sections.OnlineDpoConfig]):
    def advantages(self, scored: RolloutBatch) -> torch.Tensor:
        section = self.section
        return preferred(
            scored.penalized_rewards(), scored.group, beta=section.beta, train_ties=section.train_ties
        )


def rewards_to_go(rewards: torch.Tensor, tokens: torch.Tensor, *, gamma: float) -> torch.Tensor:
    """[K] from [K]: sum of each target's reward and later ones of its rollout, discounted by `gamma`."""
    padded, real = _pad(rewards, tokens)
    return _discounted(padded, gamma)[real]


def whiten(values: torch.Tensor, epsilon: float = 1e-8) -> torch.Tensor:
    """[K] from [K] float64: values with mean 0 and standard deviation 1.

        (x - mean) / sqrt(variance + epsilon)

    with the unbiased variance (divided by K - 1), as in OpenAI's lm-human-preferences, TRL, verl and
    Trinity-RFT. A single value becomes 0.
    """
    centered = values - values.mean()
    variance = centered.square().sum() / max(len(values) - 1, 1)
    return centered * torch.rsqrt(variance + epsilon)


def reinforce_plus_plus(scored: RolloutBatch, *, gamma: float) -> torch.Tensor:
    """[K] REINFORCE++ (Hu et al., arXiv 2501.03262): whitened returns.

    A target's return is the reward at the rollout's end minus the KL penalties of this and later targets.
    Mean and standard deviation are taken over all targets of the step.
    """
    return whiten(rewards_to_go(scored.token_rewards(), scored.tokens, gamma=gamma))


class ReinforcePlusPlus(RolloutAlgorithm[sections.ReinforcePlusPlusConfig]):
    def advantages(self, scored: RolloutBatch) -> torch.Tensor:
        return reinforce_plus_plus(scored, gamma=self.section.gamma)


def reinforce_plus_plus_baseline(scored: RolloutBatch) -> torch.Tensor:
    """[K] REINFORCE++ with a baseline (arXiv 2501.03262): whitened (r_i - mean(group)).

    Mean and standard deviation are taken over all targets of the step, so that long responses count more. A
    rollout that is alone in its group has the value 0 before whitening.
    """
    scores = scored.penalized_rewards()
    return whiten(scored.expand_to_tokens(scores - GroupIndex.of(scored.group).mean(scores)))


class ReinforcePlusPlusBaseline(RolloutAlgorithm[sections.ReinforcePlusPlusBaselineConfig]):
    def advantages(self, scored: RolloutBatch) -> torch.Tensor:
        return reinforce_plus_plus_baseline(scored)


def gdpo(
    scored: RolloutBatch,
    *,
    weights: Sequence[float] | None,
    divide_by_std: bool = True,
    epsilon: float = 1e-6,
) -> torch.Tensor:
    """[K] GDPO (Liu et al., arXiv 2601.05242): whitened sum of each part's group-relative advantage.

        A_i = whiten(sum over k of w_k (r_ik - mean(group)) / (std(group) + epsilon))

    Each part of the reward is compared within the group on its own, so that a part of a large range does not hide
    the others; a rollout without a part (NaN) does not count in its statistics, and has the advantage 0 for it. Mean
    and standard deviation of the whitening are taken over all targets of the step, as in verl.
    `weights` [P] are those of the parts; None is 1. Raises ValueError where `RolloutBatch.reward_parts` is missing.
    """
    if scored.reward_parts is None:
        raise ValueError("gdpo needs the parts of the reward (RolloutBatch.reward_parts); they are missing")
    parts = scored.reward_parts.unbind(1)
    advantages = torch.zeros(len(scored.rewards), dtype=torch.float64)
    for weight, part in zip(weights or [1.0] * len(parts), parts, strict=True):
        has_part = ~part.isnan()
        if has_part.any():
            compared = grpo(
                part[has_part], scored.group[has_part], divide_by_std=divide_by_std, epsilon=epsilon
            )
            advantages[has_part] += weight * compared
    return whiten(scored.expand_to_tokens(advantages))


class Gdpo(RolloutAlgorithm[sections.GdpoConfig]):
    def advantages(self, scored: RolloutBatch) -> torch.Tensor:
        section = self.section
        return gdpo(
            scored,
            weights=section.part_weights,
            divide_by_std=section.divide_by_std,
            epsilon=section.std_epsilon,
        )


def logit_gradient_norms(
    logprobs: torch.Tensor, squared_probabilities: torch.Tensor, weights: torch.Tensor | None
) -> torch.Tensor:
    """[K] squared norm of the gradient of a target's log-prob with respect to its logits, times the squared importance
    weight where there are weights: 1 - 2 p + (sum over the vocabulary of p^2)."""
    norms = 1 - 2 * logprobs.exp() + squared_probabilities
    return norms if weights is None else norms * weights.square()


def optimal_token_baseline(scored: RolloutBatch) -> torch.Tensor:
    """[K] Returns minus the optimal token baseline (arXiv 2602.07078), as in verl.

        B_t = (sum over the group of G_t W_t) / (sum of W_t),   W_t = sum of the gradient norms up to target t

    over the rollouts of the group that have a target t, where targets are counted within a rollout. G_t is the sum of
    the rewards from target t on. Where a rollout is the only one that is long enough, its baseline is 0. Raises
    ValueError where `RolloutBatch.gradient_norms` is missing.
    """
    if scored.gradient_norms is None:
        raise ValueError(
            "optimal_token_baseline needs RolloutBatch.gradient_norms, the norm of each target's gradient; "
            "they are missing"
        )
    groups = GroupIndex.of(scored.group)
    returns, real = _pad(rewards_to_go(scored.token_rewards(), scored.tokens, gamma=1.0), scored.tokens)
    energy = _pad(scored.gradient_norms.double(), scored.tokens)[0].cumsum(1) * real
    baseline = groups.total(returns * energy) / (groups.total(energy) + 1e-8)
    compared = groups.total(real.double()) > 1
    return (returns - baseline * compared)[real]


class OptimalTokenBaseline(RolloutAlgorithm[sections.OptimalTokenBaselineConfig]):
    def advantages(self, scored: RolloutBatch) -> torch.Tensor:
        return optimal_token_baseline(scored)


def remax(scored: RolloutBatch) -> torch.Tensor:
    """[K] ReMax (Li et al., arXiv 2310.10505): returns minus the reward of the task's greedy response.

    Raises ValueError where the rewards of greedy responses are missing.
    """
    if scored.baselines is None:
        raise ValueError(
            "remax needs the rewards of greedy responses (RolloutBatch.baselines); they are missing"
        )
    returns = rewards_to_go(scored.token_rewards(), scored.tokens, gamma=1.0)
    return returns - scored.expand_to_tokens(scored.baselines.double())


class Remax(RolloutAlgorithm[sections.RemaxConfig]):
    def advantages(self, scored: RolloutBatch) -> torch.Tensor:
        return remax(scored)


def gae(scored: RolloutBatch, values: torch.Tensor, *, gamma: float, lam: float) -> AdvantageEstimate:
    """Generalized advantage estimation (Schulman et al., arXiv 1506.02438, equation 16).

        A_t = delta_t + gamma lam A_(t+1),  delta_t = r_t + gamma V_(t+1) - V_t

    with V and A 0 after the last target; returns are A + V. Advantages are not whitened: PPO applies
    `whiten` to them afterwards, and returns are computed before it.

    Args:
        values: [K] the critic's estimates of the return from each target's state.
    """
    rewards, real = _pad(scored.token_rewards(), scored.tokens)
    expected, _ = _pad(values.double(), scored.tokens)
    after = torch.nn.functional.pad(expected[:, 1:], (0, 1))
    advantages = _discounted(rewards + gamma * after - expected, gamma * lam)[real]
    return AdvantageEstimate(advantages, advantages + values.double())


class Ppo(RolloutAlgorithm[sections.PpoConfig]):
    """PPO: whitened advantages and returns, and rollouts drawn by their rewards where the section says so."""

    def chosen_groups(self, groups: Sequence[ExperienceGroup], *, seed: int, step: int) -> list[list[int]]:
        if self.section.resampling is None:
            return group_indices(groups)
        return resample_groups(groups, self.section.resampling, derive_seed(seed, "resample", step))

    def advantages(self, scored: RolloutBatch) -> torch.Tensor:
        return self.estimate(scored).advantages

    def estimate(self, scored: RolloutBatch) -> AdvantageEstimate:
        if scored.values is None:
            raise ValueError("ppo needs RolloutBatch.values, which are missing")
        found = gae(scored, scored.values, gamma=self.section.gamma, lam=self.section.lam)
        advantages = whiten(found.advantages) if self.section.whiten else found.advantages
        assert found.returns is not None
        return AdvantageEstimate(advantages.float(), found.returns.float())


def _pad(values: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[N, longest] from [K], padded with zeros; and a mask of real values."""
    real = torch.arange(int(tokens.max()), device=tokens.device) < tokens[:, None]
    padded = values.new_zeros(real.shape)
    padded[real] = values
    return padded, real


def _discounted(values: torch.Tensor, factor: float) -> torch.Tensor:
    """[N, L] from [N, L]: y_t = x_t + factor y_(t+1)."""
    sums = torch.empty_like(values)
    following = values.new_zeros(len(values))
    for t in range(values.shape[1] - 1, -1, -1):
        following = values[:, t] + factor * following
        sums[:, t] = following
    return sums


def gigpo(
    scored: RolloutBatch,
    *,
    turn_weight: float,
    gamma: float,
    divide_by_std: bool,
    epsilon: float = 1e-6,
    states_over: Literal["group", "step"] = "group",
) -> torch.Tensor:
    """[K] Group-in-group advantages (Feng et al., arXiv 2505.10978).

        A_t = A(rollout) + turn_weight A(turn)

    A(rollout) is GRPO's. A(turn) compares a turn's return, the sum of its reward and later ones of the rollout,
    discounted by `gamma` per turn, with the returns of all turns of the group (`states_over="step"`: of the step)
    that begin in the same state, in the same way; it is 0 for a turn that is alone in its state.

    Raises ValueError without states.
    """
    if scored.turns is None or scored.turn_states is None:
        raise ValueError("gigpo needs RolloutBatch.turns and turn_states, which are missing")
    count, device = len(scored.turn_states), scored.rewards.device
    rewards = torch.zeros(count, dtype=torch.float64, device=device)
    rewards.index_add_(0, scored.turns, scored.token_rewards())
    group = torch.zeros(count, dtype=torch.int64, device=device)
    rollout = torch.zeros(count, dtype=torch.int64, device=device)
    group[scored.turns] = scored.expand_to_tokens(scored.group)
    rollout[scored.turns] = scored.expand_to_tokens(torch.arange(len(scored.tokens), device=device))
    returns = _returns(rewards.tolist(), rollout.tolist(), gamma)
    compared = torch.zeros_like(group) if states_over == "step" else group
    _, same = torch.stack([compared, scored.turn_states]).unique(dim=1, return_inverse=True)  # type: ignore[no-untyped-call]
    of_rollouts = grpo(scored.penalized_rewards(), scored.group, divide_by_std=divide_by_std, epsilon=epsilon)
    of_turns = grpo(torch.tensor(returns, device=device), same, divide_by_std=divide_by_std, epsilon=epsilon)
    return scored.expand_to_tokens(of_rollouts) + turn_weight * of_turns[scored.turns]


def _returns(rewards: list[float], rollout: list[int], gamma: float) -> list[float]:
    """Sum of each turn's reward and later ones of its rollout, discounted by `gamma`."""
    returns = list(rewards)
    for turn in reversed(range(len(rewards) - 1)):
        if rollout[turn] == rollout[turn + 1]:
            returns[turn] += gamma * returns[turn + 1]
    return returns


class Gigpo(RolloutAlgorithm[sections.GigpoConfig]):
    def advantages(self, scored: RolloutBatch) -> torch.Tensor:
        section = self.section
        return gigpo(
            scored,
            turn_weight=section.turn_weight,
            gamma=section.gamma,
            divide_by_std=section.divide_by_std,
            epsilon=section.std_epsilon,
            states_over=section.states_over,
        )
