"""Split of a step's groups into the minibatches of its updates, with demonstrations; selected tokens, denominators and
staleness of an update."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from strop.algorithms.losses.aggregation import TargetTokens, compute_importance_weights, kept_targets
from strop.algorithms.losses.policy_losses import excess_tokens, mean_implicit_rewards, select_tokens
from strop.config.schema.algorithm import RolloutAlgorithmConfig
from strop.config.schema.policy_loss import ClipCovLossConfig, GvpoLossConfig, KlCovLossConfig, M2poLossConfig
from strop.config.schema.run import Run
from strop.config.schema.trainer import TrainerConfig
from strop.data.offline_dataset import OfflineDataset
from strop.protocols import TrainingEngine
from strop.run.optimize.advantage_inputs import gather_targets, split_by_experience, zeros_for
from strop.seeds import derive_seed
from strop.types import BoolArray, Experience, FloatArray, IntArray


def plan_minibatches(
    groups: Sequence[Sequence[int]], *, per_update: int, epochs: int, shuffle_seed: tuple[int, int] | None
) -> list[list[int]]:
    """Indices of the experiences of each update, in order. A group is never split.

    Args:
        groups: indices of each group's experiences; an update without experiences is left out.
        per_update: number of groups in one update.
        epochs: number of epochs over the groups.
        shuffle_seed: a seed and the step, from which each epoch draws an order of the groups;
            None keeps their order.
    """
    updates = []
    for epoch in range(epochs):
        order = np.arange(len(groups))
        if shuffle_seed is not None:
            seed, step = shuffle_seed
            random = np.random.Generator(np.random.Philox(derive_seed(seed, "pass", step, epoch)))
            order = random.permutation(len(groups))
        for start in range(0, len(groups), per_update):
            update = [n for i in order[start : start + per_update] for n in groups[i]]
            if update:
                updates.append(update)
    return updates


def trained_experiences(
    algorithm: RolloutAlgorithmConfig, experiences: Sequence[Experience], kept: torch.Tensor | None
) -> list[Experience | None]:
    """The experiences with the targets that the policy's loss reads; None for those without any.

    Args:
        algorithm: the section `algorithm`; with `mask_truncated`, truncated experiences have no loss.
        experiences: those of the step.
        kept: [K] bool: targets of all experiences that a filter keeps; None for no filter.
    """
    masks: Sequence[BoolArray] = [experience.loss_mask for experience in experiences]
    if kept is not None:
        masks = [each > 0 for each in split_by_experience(kept, experiences)]
    return [
        replace(experience, loss_mask=mask)
        if mask.any() and not (algorithm.mask_truncated and experience.status == "truncated")
        else None
        for experience, mask in zip(experiences, masks, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Minibatch:
    """Indices of one update's experiences."""

    members: tuple[int, ...]
    """Members of the update; they count as sequences."""
    trained: tuple[int, ...]
    """Members with targets that the loss reads; their targets count as tokens."""
    computed: tuple[int, ...]
    """Members of `trained` that the update computes."""
    compared: tuple[int, ...]
    """Members of `computed` whose ratio to the old policy the loss reads."""


def make_minibatches(
    planned: Sequence[Sequence[int]],
    trained: Sequence[Experience | None],
    advantages: Sequence[FloatArray],
    *,
    skip_zero_advantages: bool,
    skip_zero_ratios: bool,
) -> list[Minibatch]:
    """The minibatches of the planned updates; an update without a target is left out.

    Args:
        planned: indices of each update's experiences.
        trained: the experiences as `trained_experiences` returns them.
        advantages: [L] of each experience.
        skip_zero_advantages: whether to compute only experiences with an advantage other than 0.
        skip_zero_ratios: whether to compare only these with the old policy.
    """
    found = []
    for members in planned:
        with_loss = {i: e for i in members if (e := trained[i]) is not None}
        if with_loss:
            some = _with_gradient(with_loss, advantages)
            trained_members = tuple(i for i in members if i in with_loss)
            of_some = tuple(i for i in trained_members if i in some)
            computed = of_some if skip_zero_advantages else trained_members
            compared = of_some if skip_zero_ratios else computed
            found.append(Minibatch(tuple(members), trained_members, computed, compared))
    return found


def _with_gradient(experiences: Mapping[int, Experience], advantages: Sequence[FloatArray]) -> set[int]:
    """The indices of experiences with an advantage other than 0 at a target.

    Where there are none, among all or among those with images, the shortest one is added: a parameter whose gradient
    is 0 still moves by momentum and weight decay, and one without a gradient does not.
    """
    found = {i for i, e in experiences.items() if advantages[i][e.loss_mask].any()}
    for kind in (experiences, {i: e for i, e in experiences.items() if e.media}):
        if kind and not found & kind.keys():
            found.add(min(kind, key=lambda i: len(experiences[i].token_ids)))
    return found


def shuffle_seed(trainer: TrainerConfig, seed: int) -> int:
    """Seed of the epochs' orders: `trainer.shuffle_seed`, or the run's `seed` where that is left out."""
    return seed if trainer.shuffle_seed is None else trainer.shuffle_seed


class ExpertData:
    """Gives each update its demonstrations, a fraction of the update, epoch after epoch."""

    def __init__(self, demonstrations: OfflineDataset, run: Run) -> None:
        added, trainer = run.algorithm.added_demonstrations, run.trainer
        assert added is not None
        rollouts = (trainer.tasks_per_update or trainer.tasks_per_step) * run.algorithm.rollouts_per_task
        self._temperature = run.rollout.sampling.temperature if added.like_rollouts else 1.0
        self._demonstrations = demonstrations
        self.per_update = expert_answers_per_update(rollouts, added.fraction)

    @property
    def position(self) -> int:
        """Position in the dataset's order; the only state."""
        return self._demonstrations.position

    @position.setter
    def position(self, position: int) -> None:
        self._demonstrations.position = position

    def take(self) -> list[Experience]:
        """The demonstrations of the next update. A teacher judges them at the temperature of rollouts."""
        groups = self._demonstrations.take(self.per_update)
        return [
            replace(experience, temperature=self._temperature)
            for group in groups
            for experience in group.experiences
        ]


def expert_answers_per_update(rollouts: int, fraction: float) -> int:
    """Number of demonstrations that are `fraction` of an update with `rollouts` rollouts; at least one."""
    return max(1, round(rollouts * fraction / (1 - fraction)))


def add_implicit_rewards(
    algorithm: RolloutAlgorithmConfig,
    rollouts: Sequence[Experience],
    advantages: Sequence[FloatArray],
    old_logprobs: Sequence[FloatArray] | None,
    current_logprobs: Callable[[], Sequence[FloatArray]],
) -> Sequence[FloatArray]:
    """[L] of each rollout of an update: its advantages, under GVPO plus the mean implicit reward of its group.

    Args:
        algorithm: the section `algorithm`.
        rollouts: the experiences of the update.
        advantages: [L] of each.
        old_logprobs: [L] of each, under the old policy; None where it is the current one, so that the means are 0.
        current_logprobs: computes [L] of each, under the current weights.
    """
    loss = algorithm.policy_loss
    if not isinstance(loss, GvpoLossConfig) or old_logprobs is None or not rollouts:
        return advantages
    numbers: dict[str, int] = {}
    means = mean_implicit_rewards(
        gather_targets(current_logprobs(), rollouts) - gather_targets(old_logprobs, rollouts),
        torch.tensor([each.response_tokens for each in rollouts]),
        torch.tensor([numbers.setdefault(each.group, len(numbers)) for each in rollouts]),
        beta=loss.beta,
    )
    return [old + mean for old, mean in zip(advantages, split_by_experience(means, rollouts), strict=True)]


def select_update_tokens(
    algorithm: RolloutAlgorithmConfig,
    rollouts: Sequence[Experience],
    advantages: Sequence[FloatArray],
    old_logprobs: Sequence[FloatArray] | None,
    engine: TrainingEngine,
    *,
    seed: int,
) -> list[BoolArray] | None:
    """[L] of each rollout of an update: the tokens of `clip_cov`, `kl_cov` and `m2po`; None for other losses.

    Args:
        algorithm: the section `algorithm`.
        rollouts: the experiences of the update.
        advantages: [L] of each.
        old_logprobs: [L] of each, under the old policy; None where it is the current one.
        engine: computes the log-probs under the current weights.
        seed: seed of the random choice among the tokens of high covariance.
    """
    loss = algorithm.policy_loss
    match loss:
        case ClipCovLossConfig() | KlCovLossConfig():
            assert old_logprobs is not None
            old = gather_targets(old_logprobs, rollouts)
            selected = select_tokens(loss, old, gather_targets(advantages, rollouts), seed=seed)
        case M2poLossConfig():
            flat = gather_targets(advantages, rollouts)
            ratio = torch.zeros_like(flat)
            if old_logprobs is not None:
                # A token whose advantage is 0 is not selected, whatever its ratio.
                moving = [i for i, e in enumerate(rollouts) if advantages[i][e.loss_mask].any()]
                differences = [zeros_for(each) for each in rollouts]
                current = engine.token_values([rollouts[i] for i in moving], "logprobs") if moving else []
                for i, now in zip(moving, current, strict=True):
                    differences[i] = now - old_logprobs[i]
                ratio = gather_targets(differences, rollouts)
            selected = excess_tokens(ratio, flat, max_second_moment=loss.max_second_moment)
        case _:
            return None
    return [each > 0 for each in split_by_experience(selected, rollouts)]


def count_kept(
    algorithm: RolloutAlgorithmConfig,
    experiences: Sequence[Experience],
    old_logprobs: Sequence[FloatArray] | None,
) -> int | None:
    """Number of an update's targets that `algorithm.rejection` keeps.

    None without a rejection, and where it compares the current policy with the sampler, so that it is unknown
    before the update.

    Args:
        experiences: those of the update.
        old_logprobs: [L] of each, under the weights at the start of the step.
    """
    if not algorithm.rejection or algorithm.old_policy == "sampler":
        return None
    assert old_logprobs is not None
    trainer, sampler, targets = _compared(experiences, old_logprobs)
    return int(kept_targets(trainer, sampler, targets, algorithm.rejection).sum())


def mean_importance_weight(
    algorithm: RolloutAlgorithmConfig,
    experiences: Sequence[Experience],
    trainer_logprobs: Callable[[], Sequence[FloatArray] | None],
) -> float:
    """Mean importance weight of experiences, by which the weights are normalized; 1 where they are not.

    `trainer_logprobs` returns [L] of each, under the policy whose weights these are.
    """
    correction = algorithm.importance_correction
    if correction is None or not correction.normalize:
        return 1.0
    logprobs = trainer_logprobs()
    assert logprobs is not None
    trainer, sampler, targets = _compared(experiences, logprobs)
    return compute_importance_weights(trainer, sampler, targets, correction).mean(targets, correction)


def importance_weights(
    algorithm: RolloutAlgorithmConfig, experiences: Sequence[Experience], old_logprobs: Sequence[FloatArray]
) -> torch.Tensor | None:
    """[K] importance weights of a step's targets under the old policy, not normalized; None where there are none."""
    correction = algorithm.importance_correction
    if correction is None:
        return None
    trainer, sampler, targets = _compared(experiences, old_logprobs)
    return compute_importance_weights(trainer, sampler, targets, correction).weights


def _compared(
    experiences: Sequence[Experience], trainer: Sequence[FloatArray]
) -> tuple[torch.Tensor, torch.Tensor, TargetTokens]:
    """[K] log-probs of the trainer and of the sampler, and their targets, of all experiences end to end."""
    tokens = torch.tensor([experience.response_tokens for experience in experiences])
    sampler = gather_targets([experience.sampler_logprobs for experience in experiences], experiences)
    return gather_targets(trainer, experiences), sampler, TargetTokens.concatenated(tokens)


def staleness_metrics(experiences: Sequence[Experience], step: int) -> dict[str, float]:
    """Age, in steps, of the weights that sampled each experience, relative to the weights being trained."""
    ages = [step - 1 - min(experience.versions) for experience in experiences]
    tokens = np.concatenate([_target_versions(experience) for experience in experiences])
    mixed = [experience.token_versions is not None for experience in experiences]
    return {
        "staleness/mean": float(np.mean(ages)),
        "staleness/max": float(max(ages)),
        "staleness/token_mean": float(np.mean(step - 1 - tokens)),
        "staleness/mixed_fraction": float(np.mean(mixed)),
    }


def _target_versions(experience: Experience) -> IntArray:
    """[K] Version of the weights that sampled each target."""
    if experience.token_versions is None:
        return np.full(experience.response_tokens, experience.versions[0], dtype=np.int32)
    return experience.token_versions[experience.loss_mask]
