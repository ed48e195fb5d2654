"""Log-probs of a step's experiences by the weights at its start: the policy's, the reference's, the teacher's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from strop.algorithms import requirements
from strop.config.schema.algorithm import RolloutAlgorithmConfig
from strop.protocols import TrainingEngine
from strop.run.optimize.advantage_inputs import zeros_for
from strop.run.optimize.minibatches import Minibatch
from strop.types import Experience, FloatArray


@dataclass(frozen=True, slots=True)
class StepLogprobs:
    """Log-probs [L] of each of a step's experiences, by the weights at its start; None where not needed, and 0 for an
    experience that no update reads them of."""

    old: Sequence[FloatArray] | None
    reference: Sequence[FloatArray] | None
    teacher: Sequence[FloatArray] | None


def compute_step_logprobs(
    engine: TrainingEngine, algorithm: RolloutAlgorithmConfig, experiences: Sequence[Experience]
) -> StepLogprobs:
    """Compute what advantages and corrections read of all experiences; `add_update_logprobs` adds what updates read."""
    in_reward = requirements.reward_reads_logprobs(algorithm)
    teacher = in_reward and requirements.needs_teacher_logprobs(algorithm)
    reference = algorithm.kl_reward is not None and algorithm.kl_reward.estimator != "full"
    return StepLogprobs(
        old=_old_logprobs(engine, algorithm, experiences),
        reference=engine.logprobs(experiences, reference=True) if reference else None,
        teacher=engine.teacher_logprobs(experiences) if teacher else None,
    )


def _old_logprobs(
    engine: TrainingEngine, algorithm: RolloutAlgorithmConfig, experiences: Sequence[Experience]
) -> list[FloatArray] | None:
    """Log-probs by the sampler, where it is the old policy and they are known, or by the weights at the start of the
    step, where a divergence in the reward or a correction is computed from those of all experiences."""
    if algorithm.old_policy == "sampler":
        known = [e.policy_logprobs for e in experiences if e.policy_logprobs is not None]
        if len(known) == len(experiences):
            return known
    if requirements.reward_reads_logprobs(algorithm) or requirements.needs_start_logprobs(algorithm):
        return engine.logprobs(experiences)
    return None


def add_update_logprobs(
    logprobs: StepLogprobs,
    engine: TrainingEngine,
    algorithm: RolloutAlgorithmConfig,
    experiences: Sequence[Experience],
    minibatches: Sequence[Minibatch],
) -> StepLogprobs:
    """The log-probs, with those that the updates' losses read of the experiences that they compute.

    In the first update the old policy's log-probs equal the current ones, so no forward pass is spent on them.

    Args:
        logprobs: those that are known, which stay.
        engine: the policy's engine, before the first update.
        algorithm: the section `algorithm`.
        experiences: those of the step.
        minibatches: the step's updates.
    """
    computed = {i for each in minibatches for i in each.computed}
    later = minibatches if algorithm.old_policy == "sampler" else minibatches[1:]
    compared = {i for each in later for i in each.compared}
    old, reference, teacher = logprobs.old, logprobs.reference, logprobs.teacher
    if old is None and compared:
        old = _of_some(experiences, compared, engine.logprobs)
    if reference is None and computed and requirements.needs_reference_logprobs(algorithm):
        reference = _of_some(experiences, computed, lambda some: engine.logprobs(some, reference=True))
    if teacher is None and computed and requirements.needs_teacher_logprobs(algorithm):
        teacher = _of_some(experiences, computed, engine.teacher_logprobs)
    return StepLogprobs(old, reference, teacher)


def _of_some(
    experiences: Sequence[Experience],
    numbers: Iterable[int],
    compute: Callable[[Sequence[Experience]], Sequence[FloatArray]],
) -> list[FloatArray]:
    """[L] of each experience; computed for those with these numbers, and 0 for the others."""
    chosen = sorted(numbers)
    found = dict(zip(chosen, compute([experiences[i] for i in chosen]), strict=True))
    return [found[i] if i in found else zeros_for(e) for i, e in enumerate(experiences)]
