"""The trainer: a step's experiences become new weights."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from strop.algorithms import table
from strop.algorithms.kl import divergence, mean_over_rollouts
from strop.algorithms.scored import Scored
from strop.config.schema import Run
from strop.config.schema.algorithm import KlEstimator, Ppo, RolloutAlgorithm
from strop.protocols import TrainingEngine
from strop.run.critic import Critic
from strop.run.expert import ExpertRows
from strop.run.length import Length
from strop.run.policy_updates import PolicyUpdates, means
from strop.run.rates import Rates
from strop.run.scoring import by_experience, score, targets_of, zeros_of
from strop.run.updates import plan_updates, shuffle_seed
from strop.types import Experience, ExperienceGroup, Floats


@dataclass(frozen=True, slots=True)
class Trained:
    """What one step of training gave."""

    updates: int
    """Optimizer updates of this step."""
    metrics: dict[str, float]


class Trainer:
    """Computes advantages, and drives the training engine through a step's updates."""

    def __init__(
        self,
        engine: TrainingEngine,
        run: Run,
        algorithm: RolloutAlgorithm,
        length: Length,
        kl_coef: float | None = None,
        critic: Critic | None = None,
        expert: ExpertRows | None = None,
    ) -> None:
        """`kl_coef` is what the KL penalty in the reward had come to, where a run is resumed; `critic` and
        `expert` are there where the algorithm wants them."""
        self._run = run
        self._algorithm = algorithm
        self._length = length
        self._critic = critic
        self._expert = expert
        self._kl = table.kl_controller(algorithm, kl_coef)
        self._policy = PolicyUpdates(engine, run, Rates(run, length))

    @property
    def rates(self) -> Rates:
        """Of the policy's updates."""
        return self._policy.rates

    @property
    def kl_coef(self) -> float | None:
        """The coefficient of the KL penalty in the reward, for the checkpoint; None where there is none."""
        return None if self._kl is None else self._kl.coef

    def step(
        self,
        groups: Sequence[ExperienceGroup],
        *,
        step: int,
        updates_done: int,
    ) -> Trained:
        """Train on all groups of one step. Without any experience it does no update at all."""
        experiences = [experience for group in groups for experience in group.experiences]
        if not experiences:
            return Trained(0, {})
        batches = self._updates(groups, step, updates_done)
        started = time.perf_counter()
        reference = self._reference(experiences)
        old = self._old(experiences, batches)
        prepared = time.perf_counter()
        baselines = {group.id: group.baseline for group in groups if group.baseline is not None}
        scored, metrics = self._score(experiences, old, reference, baselines or None)
        advantages, measured = self._advantages(groups, experiences, scored, step)
        metrics |= measured
        estimated = time.perf_counter()
        rows = [
            self._update(
                experiences,
                advantages,
                batch,
                old if number else None,
                reference,
                step,
                updates_done + number,
            )
            for number, batch in enumerate(batches)
        ]
        if rows:
            metrics |= means(rows)
        metrics |= {
            **_staleness(experiences, step),
            "updates": float(len(rows)),
            "time/logprobs_seconds": prepared - started,
            "time/update_seconds": time.perf_counter() - estimated,
        }
        return Trained(len(rows), metrics)

    def _score(
        self,
        experiences: Sequence[Experience],
        old: Sequence[Floats] | None,
        reference: Sequence[Floats] | None,
        baselines: Mapping[str, float] | None,
    ) -> tuple[Scored, dict[str, float]]:
        """Rewards, less the penalty for leaving the reference where there is one, and what that was."""
        algorithm = self._algorithm
        metrics: dict[str, float] = {}
        scored = score(experiences, baselines=baselines)
        if self._kl is not None and algorithm.kl_reward is not None:
            kl = self._divergence(experiences, old, reference, algorithm.kl_reward.estimator)
            scored = replace(scored, penalties=self._kl.coef * kl)
            metrics["kl_reward/kl"] = mean_over_rollouts(kl, scored.tokens)
            metrics["kl_reward/coef"] = self._kl.coef
            self._kl = self._kl.update(metrics["kl_reward/kl"], len(scored.rewards))
        return scored, metrics

    def _divergence(
        self,
        experiences: Sequence[Experience],
        old: Sequence[Floats] | None,
        reference: Sequence[Floats] | None,
        estimator: KlEstimator,
    ) -> torch.Tensor:
        """[K] from the reference, at the start of the step."""
        if estimator == "full":
            return targets_of(self._policy.divergences(experiences), experiences)
        assert old is not None and reference is not None
        drawn, wanted = targets_of(old, experiences), targets_of(reference, experiences)
        return divergence(drawn, wanted, estimator)

    def _advantages(
        self, groups: Sequence[ExperienceGroup], experiences: Sequence[Experience], scored: Scored, step: int
    ) -> tuple[list[Floats], dict[str, float]]:
        """[L] of each experience. A critic gives its values for them, and learns from the returns."""
        algorithm, limit = self._algorithm, self._run.data.max_response_tokens
        started = time.perf_counter()
        metrics: dict[str, float] = {}
        if isinstance(algorithm, Ppo):
            assert self._critic is not None
            said = self._critic.values(experiences)
            values = targets_of(said, experiences)
            estimate = table.estimate(algorithm, scored, values, max_response_tokens=limit)
            advantages, returns = estimate.advantages, by_experience(estimate.returns, experiences)
            metrics = self._critic.learn(groups, said, returns, step=step)
            metrics["time/critic_seconds"] = time.perf_counter() - started
        else:
            advantages = table.advantages(algorithm, scored, max_response_tokens=limit)
        metrics["advantages/mean"] = float(advantages.mean())
        metrics["advantages/std"] = float(advantages.std(correction=0))
        return by_experience(advantages, experiences), metrics

    def _updates(self, groups: Sequence[ExperienceGroup], step: int, updates_done: int) -> list[list[int]]:
        """Which experiences, by number, each update trains on; none while the critic alone learns."""
        if step <= self._length.critic_steps:
            return []
        trainer = self._run.trainer
        updates = plan_updates(
            groups,
            per_update=trainer.tasks_per_update or trainer.tasks_per_step,
            passes=trainer.passes,
            shuffle_seed=(shuffle_seed(self._run), step) if trainer.shuffle_passes else None,
        )
        return updates[: self._length.updates - updates_done]

    def _reference(self, experiences: Sequence[Experience]) -> list[Floats] | None:
        if not table.needs_reference_logprobs(self._algorithm):
            return None
        return self._logprobs(experiences, range(len(experiences)), reference=True)

    def _old(
        self, experiences: Sequence[Experience], updates: Sequence[Sequence[int]]
    ) -> list[Floats] | None:
        """The log-probs at the start of the step, for what is trained on after the first update;
        in the first one they are the current ones, and no pass is spent on them, unless a KL
        penalty in the reward is estimated from them all."""
        chosen = sorted({number for update in updates[1:] for number in update})
        penalty = self._algorithm.kl_reward
        if penalty is not None and penalty.estimator != "full":
            chosen = list(range(len(experiences)))
        return self._logprobs(experiences, chosen, reference=False) if chosen else None

    def _logprobs(
        self, experiences: Sequence[Experience], chosen: Sequence[int], *, reference: bool
    ) -> list[Floats]:
        """[L] for each chosen experience, and zeros for the others."""
        picked = [experiences[i] for i in chosen]
        found = dict(zip(chosen, self._policy.logprobs(picked, reference=reference), strict=True))
        return [found[i] if i in found else zeros_of(e) for i, e in enumerate(experiences)]

    def _update(
        self,
        experiences: Sequence[Experience],
        advantages: Sequence[Floats],
        batch: Sequence[int],
        old: Sequence[Floats] | None,
        reference: Sequence[Floats] | None,
        step: int,
        update: int,
    ) -> dict[str, float]:
        given = [] if self._expert is None else self._expert.take()
        nothing = [zeros_of(experience) for experience in given]
        return self._policy.update(
            [*(experiences[i] for i in batch), *given],
            [*(advantages[i] for i in batch), *nothing],
            [*(old[i] for i in batch), *nothing] if old else None,
            [*(reference[i] for i in batch), *nothing] if reference else None,
            step=step,
            update=update,
        )


def _staleness(experiences: Sequence[Experience], step: int) -> dict[str, float]:
    """How many steps older than the weights that learn from it the weights were that drew an experience."""
    ages = [step - 1 - min(experience.versions) for experience in experiences]
    return {"staleness/mean": float(np.mean(ages)), "staleness/max": float(max(ages))}
