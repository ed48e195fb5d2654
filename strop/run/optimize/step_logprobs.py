"""Log-probs of a step's experiences by the weights at its start: the policy's, the reference's, the teacher's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from strop.algorithms import registry
from strop.config.schema.algorithm import RolloutAlgorithmConfig
from strop.protocols import TrainingEngine
from strop.run.optimize.advantage_inputs import zeros_for
from strop.types import Experience, FloatArray


@dataclass(frozen=True, slots=True)
class StepLogprobs:
    """Log-probs [L] of each of a step's experiences, by the weights at its start; None where not needed."""

    old: Sequence[FloatArray] | None
    reference: Sequence[FloatArray] | None
    teacher: Sequence[FloatArray] | None


def compute_step_logprobs(
    engine: TrainingEngine, algorithm: RolloutAlgorithmConfig, experiences: Sequence[Experience]
) -> StepLogprobs:
    """Compute the log-probs that the algorithm reads of all experiences; `add_old_logprobs` adds the others."""
    reference = registry.needs_reference_logprobs(algorithm)
    teacher = registry.needs_teacher_logprobs(algorithm)
    return StepLogprobs(
        old=_old_logprobs(engine, algorithm, experiences),
        reference=engine.logprobs(experiences, reference=True) if reference else None,
        teacher=engine.teacher_logprobs(experiences) if teacher else None,
    )


def _old_logprobs(
    engine: TrainingEngine, algorithm: RolloutAlgorithmConfig, experiences: Sequence[Experience]
) -> list[FloatArray] | None:
    """Log-probs by the sampler, where it is the old policy, or by the weights at the start of the step, where a
    divergence in the reward or a correction is computed from those of all experiences."""
    if algorithm.old_policy == "sampler":
        known = [e.policy_logprobs for e in experiences if e.policy_logprobs is not None]
        return known if len(known) == len(experiences) else engine.logprobs(experiences)
    if registry.reward_reads_logprobs(algorithm) or registry.needs_start_logprobs(algorithm):
        return engine.logprobs(experiences)
    return None


def add_old_logprobs(
    logprobs: StepLogprobs,
    engine: TrainingEngine,
    experiences: Sequence[Experience],
    updates: Sequence[Sequence[int]],
) -> StepLogprobs:
    """The log-probs, with those by the old policy of what is trained on after the first update, 0 for the others.

    In the first update they equal the current log-probs, so no forward pass is spent on them.

    Args:
        logprobs: those that are known; `old` is kept where it is.
        engine: the policy's engine, before the first update.
        experiences: those of the step.
        updates: indices of the experiences that each update computes.
    """
    later = sorted({number for update in updates[1:] for number in update})
    if logprobs.old is not None or not later:
        return logprobs
    found = dict(zip(later, engine.logprobs([experiences[i] for i in later]), strict=True))
    return replace(
        logprobs, old=[found[i] if i in found else zeros_for(e) for i, e in enumerate(experiences)]
    )
