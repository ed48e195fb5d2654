"""Optimizer updates on rollouts: log-probs, advantages, the critic, and the policy's updates of one step."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from strop.algorithms.advantages import logit_gradient_norms
from strop.algorithms.algorithm import RolloutBatch
from strop.algorithms.kl import (
    distillation_advantages,
    estimate_kl,
    make_kl_controller,
    mean_rollout_kl,
    sampled_divergence,
)
from strop.algorithms.losses.policy_losses import clip_b, clip_v
from strop.algorithms.losses.policy_objective import weighs_current_policy
from strop.algorithms.registry import compute_advantages, make_rollout_algorithm
from strop.config.schema.algorithm import RolloutAlgorithmConfig
from strop.config.schema.policy_gradient import KlEstimator
from strop.config.schema.trainer import TrainerConfig
from strop.errors import ConfigError
from strop.run.check.refusals import turn_states_fault
from strop.run.optimize.advantage_inputs import (
    gather_targets,
    make_rollout_batch,
    split_by_experience,
)
from strop.run.optimize.logprobs import (
    StepLogprobs,
    add_update_logprobs,
    compute_step_logprobs,
    make_update_batch,
    require_teachers,
)
from strop.run.optimize.minibatches import (
    ExpertData,
    Minibatch,
    add_implicit_rewards,
    count_kept,
    importance_weights,
    make_minibatches,
    mean_importance_weight,
    plan_minibatches,
    select_update_tokens,
    shuffle_seed,
    staleness_metrics,
    trained_experiences,
)
from strop.run.optimize.policy_optimizer import PolicyOptimizer, StepBatch, UpdateResult, mean_metrics
from strop.run.optimize.second_models import SecondModels, StepExperiences
from strop.run.state.horizon import Horizon
from strop.run.state.run_state import RunState
from strop.seeds import derive_seed
from strop.types import Experience, FloatArray, GlobalCounts


class RolloutUpdater:
    """Computes advantages and drives the policy and the second models through a step's updates."""

    def __init__(
        self,
        policy: PolicyOptimizer,
        algorithm: RolloutAlgorithmConfig,
        trainer: TrainerConfig,
        horizon: Horizon,
        *,
        max_response_tokens: int,
        seed: int,
        second_models: SecondModels = (),
        expert: ExpertData | None = None,
    ) -> None:
        """
        Args:
            policy: runs the policy's updates with the algorithm's loss.
            algorithm: the section `algorithm`.
            trainer: the section `trainer`.
            horizon: length of the run.
            max_response_tokens: `data.max_response_tokens`, for the overlong penalty.
            seed: the run's seed.
            second_models: models that are trained in addition to the policy.
            expert: demonstrations that each update adds to its rollouts.
        """
        self._policy = policy
        self._algorithm = algorithm
        self._trainer = trainer
        self._horizon = horizon
        self._max_response_tokens = max_response_tokens
        self._seed = seed
        self._shuffle_seed = shuffle_seed(trainer, seed) if trainer.shuffle_each_epoch else None
        self._second_models = second_models
        self._expert = expert
        self._kl = make_kl_controller(algorithm)
        self._skip_zero_advantages = (
            trainer.skip_zero_advantages
            and trainer.router_loss is None
            and algorithm.vanishes_at_zero_advantage
        )
        self._skip_zero_ratios = trainer.skip_zero_advantages and algorithm.ratio_vanishes_at_zero_advantage

    def load_state(self, state: RunState) -> None:
        """Continue with the saved KL coefficient and expert position."""
        self._kl = make_kl_controller(self._algorithm, state.kl_coef)
        if self._expert is not None:
            self._expert.position = state.expert_position

    def save_state(self, state: RunState) -> RunState:
        """The state with the KL coefficient and the expert position."""
        return replace(
            state,
            kl_coef=None if self._kl is None else self._kl.coef,
            expert_position=self._expert.position if self._expert else 0,
        )

    def update(self, batch: StepBatch, *, step: int, updates_done: int) -> UpdateResult:
        """Train on all groups of one step. Without any experience there is no update."""
        groups = batch.groups
        experiences = _same_logprobs([experience for group in groups for experience in group.experiences])
        if not experiences:
            return UpdateResult(0, {})
        if self._algorithm.distillation is not None:
            require_teachers(self._algorithm.distillation, {e.source for e in experiences})
        chosen = make_rollout_algorithm(self._algorithm).chosen_groups(groups, seed=self._seed, step=step)
        planned = self._plan_minibatches(chosen, step, updates_done)
        started = time.perf_counter()
        logprobs = compute_step_logprobs(self._policy.engine, self._algorithm, experiences)
        logprobs_ended = time.perf_counter()
        baselines = {group.id: group.baseline for group in groups if group.baseline is not None}
        scored, metrics = self._score(experiences, logprobs, baselines or None)
        advantages, advantage_metrics = self._advantages(scored, StepExperiences(experiences, chosen, step))
        from_teacher, teacher_metrics = self._distillation_advantages(experiences, logprobs)
        advantages = advantages + from_teacher
        by_experience = split_by_experience(advantages, experiences)
        metrics |= advantage_metrics | teacher_metrics
        metrics["advantages/mean"] = float(advantages.mean())
        metrics["advantages/std"] = float(advantages.std(correction=0))
        mean_weight = None
        if not weighs_current_policy(self._algorithm):
            mean_weight = mean_importance_weight(self._algorithm, experiences, lambda: logprobs.old)
        kept = self._kept_targets(experiences, logprobs, advantages)
        if kept is not None:
            metrics["entropy_filter/token_fraction"] = float((~kept).double().mean())
        trained = trained_experiences(self._algorithm, experiences, kept)
        minibatches = make_minibatches(
            planned,
            trained,
            by_experience,
            skip_zero_advantages=self._skip_zero_advantages,
            skip_zero_ratios=self._skip_zero_ratios and logprobs.old is None,
        )
        old_started = time.perf_counter()
        logprobs = add_update_logprobs(
            logprobs, self._policy.engine, self._algorithm, experiences, minibatches
        )
        updates_started = time.perf_counter()
        compared = self._algorithm.old_policy == "sampler" or self._algorithm.needs_start_logprobs
        rows = []
        for number, minibatch in enumerate(minibatches):
            known = logprobs if number or compared else replace(logprobs, old=None)
            rows.append(
                self._update(
                    trained, by_experience, minibatch, known, mean_weight, step, updates_done + number
                )
            )
        if rows:
            metrics |= mean_metrics(rows)
        metrics |= {
            **staleness_metrics(experiences, step),
            "updates": float(len(rows)),
            "time/logprobs_seconds": logprobs_ended - started + updates_started - old_started,
            "time/update_seconds": time.perf_counter() - updates_started,
        }
        return UpdateResult(len(rows), metrics, experiences, by_experience)

    def _score(
        self,
        experiences: Sequence[Experience],
        logprobs: StepLogprobs,
        baselines: Mapping[str, float] | None,
    ) -> tuple[RolloutBatch, dict[str, float]]:
        """Rewards, minus the KL penalty of `algorithm.kl_reward` where it is set; and the penalty's metrics."""
        algorithm = self._algorithm
        metrics: dict[str, float] = {}
        scored = make_rollout_batch(experiences, baselines=baselines, parts=algorithm.compared_parts)
        if algorithm.needs_turn_states and scored.turn_states is None:
            raise ConfigError(turn_states_fault())
        if algorithm.needs_gradient_norms:
            assert logprobs.old is not None
            norms = logit_gradient_norms(
                gather_targets(logprobs.old, experiences),
                gather_targets(
                    self._policy.engine.token_values(experiences, "squared_probabilities"), experiences
                ),
                importance_weights(algorithm, experiences, logprobs.old),
            )
            scored = replace(scored, gradient_norms=norms)
        if self._kl is not None and algorithm.kl_reward is not None:
            kl = self._divergence(experiences, logprobs, algorithm.kl_reward.estimator)
            scored = replace(scored, kl_penalties=self._kl.coef * kl)
            metrics["kl_reward/kl"] = mean_rollout_kl(kl, scored.tokens)
            metrics["kl_reward/coef"] = self._kl.coef
            self._kl = self._kl.update(metrics["kl_reward/kl"], len(scored.rewards))
        return scored, metrics

    def _divergence(
        self,
        experiences: Sequence[Experience],
        logprobs: StepLogprobs,
        estimator: KlEstimator,
    ) -> torch.Tensor:
        """[K] KL from the reference model, by the weights at the start of the step."""
        if estimator == "full":
            return gather_targets(self._policy.engine.token_values(experiences, "reference_kl"), experiences)
        assert logprobs.old is not None and logprobs.reference is not None
        current = gather_targets(logprobs.old, experiences)
        target = gather_targets(logprobs.reference, experiences)
        return estimate_kl(current, target, estimator)

    def _advantages(
        self, scored: RolloutBatch, trained: StepExperiences
    ) -> tuple[torch.Tensor, dict[str, float]]:
        """[K] of all targets, and metrics. Second models score the targets before, and learn from the returns."""
        started = time.perf_counter()
        metrics: dict[str, float] = {}
        for model in self._second_models:
            scored, found = model.score(scored, trained)
            metrics |= found
        estimate = compute_advantages(self._algorithm, scored, max_response_tokens=self._max_response_tokens)
        for model in self._second_models:
            metrics |= model.learn(scored, estimate.returns, trained)
            metrics[f"time/{model.name}_seconds"] = time.perf_counter() - started
        return estimate.advantages, metrics

    def _distillation_advantages(
        self, experiences: Sequence[Experience], logprobs: StepLogprobs
    ) -> tuple[torch.Tensor | float, dict[str, float]]:
        """[K] Part of the advantages that a teacher gives, and the divergence from it; 0 for no such reward."""
        section = self._algorithm.distillation
        if section is None or section.reward is None:
            return 0.0, {}
        assert logprobs.old is not None and logprobs.teacher is not None
        divergence = sampled_divergence(
            gather_targets(logprobs.old, experiences),
            gather_targets(logprobs.teacher, experiences),
            section.reward.divergence,
        )
        metrics = {"distillation_reward/divergence": float(divergence.mean())}
        return distillation_advantages(divergence, section.reward), metrics

    def _kept_targets(
        self, experiences: Sequence[Experience], logprobs: StepLogprobs, advantages: torch.Tensor
    ) -> torch.Tensor | None:
        """[K] bool: targets that `algorithm.entropy_filter` keeps; None without a filter."""
        section = self._algorithm.entropy_filter
        if section is None:
            return None
        assert logprobs.old is not None
        engine, old = self._policy.engine, gather_targets(logprobs.old, experiences)
        entropies = gather_targets(engine.token_values(experiences, "entropies"), experiences)
        if section.center == "step":
            return clip_b(old, entropies, advantages, deviations=section.deviations)
        return clip_v(
            old,
            entropies,
            gather_targets(engine.token_values(experiences, "expected_entropy_effects"), experiences),
            advantages,
            deviations=section.deviations,
            max_fraction=section.max_fraction,
        )

    def _plan_minibatches(
        self, groups: Sequence[Sequence[int]], step: int, updates_done: int
    ) -> list[list[int]]:
        """Indices of each update's experiences; no update in the steps that train only the critic."""
        if step <= self._horizon.critic_steps:
            return []
        trainer = self._trainer
        updates = plan_minibatches(
            groups,
            per_update=trainer.tasks_per_update or trainer.tasks_per_step,
            epochs=trainer.epochs_per_step,
            shuffle_seed=None if self._shuffle_seed is None else (self._shuffle_seed, step),
        )
        return updates[: self._horizon.updates - updates_done]

    def _update(
        self,
        experiences: Sequence[Experience | None],
        advantages: Sequence[FloatArray],
        minibatch: Minibatch,
        logprobs: StepLogprobs,
        mean_weight: float | None,
        step: int,
        update: int,
    ) -> dict[str, float]:
        """One update of the policy, on a minibatch and, under mix, the expert's next demonstrations.

        `experiences` are None where they have no loss. `mean_weight` is None where importance weights are those of
        the current policy, whose mean changes.
        """
        expert = [] if self._expert is None else self._expert.take()
        rollouts = [each for each in (experiences[i] for i in minibatch.trained) if each is not None]
        computed = [each for each in (experiences[i] for i in minibatch.computed) if each is not None]
        start = None if logprobs.old is None else [logprobs.old[i] for i in minibatch.trained]

        def current() -> list[FloatArray]:
            return self._policy.engine.token_values(rollouts, "logprobs")

        compared = None
        if start is not None:
            compared = sum(each.response_tokens for i in minibatch.compared if (each := experiences[i]))
        own = add_implicit_rewards(
            self._algorithm, rollouts, [advantages[i] for i in minibatch.trained], start, current
        )
        selected = select_update_tokens(
            self._algorithm,
            rollouts,
            own,
            start,
            self._policy.engine,
            seed=derive_seed(self._seed, "token_selection", update),
        )
        batch = make_update_batch(
            minibatch, computed, expert, advantages=own, logprobs=logprobs, selected=selected
        )
        if mean_weight is None:
            mean_weight = mean_importance_weight(self._algorithm, rollouts, current)
        counts = replace(
            GlobalCounts.of([*rollouts, *expert]),
            sequences=len(minibatch.members),
            computed_tokens=sum(each.response_tokens for each in computed),
            compared_tokens=compared,
            kept_tokens=count_kept(self._algorithm, rollouts, start),
            mean_importance_weight=mean_weight,
        )
        skipped = {"skipped_sequences": float(len(rollouts) - len(computed))}
        return skipped | self._policy.update(batch, step=step, update=update, counts=counts)


def _same_logprobs(experiences: Sequence[Experience]) -> Sequence[Experience]:
    """The experiences without `policy_logprobs` if one of them has none, so that a metric covers all or none."""
    if all(experience.policy_logprobs is not None for experience in experiences):
        return experiences
    return [replace(experience, policy_logprobs=None) for experience in experiences]
