"""Log-probs of a step's experiences by the weights at its start: the policy's, the reference's, the teacher's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
    engine: TrainingEngine,
    algorithm: RolloutAlgorithmConfig,
    experiences: Sequence[Experience],
    updates: Sequence[Sequence[int]],
) -> StepLogprobs:
    """Compute the log-probs that the algorithm reads. `updates` are the indices of each update's experiences."""
    reference = registry.needs_reference_logprobs(algorithm)
    teacher = registry.needs_teacher_logprobs(algorithm)
    return StepLogprobs(
        old=_old_logprobs(engine, algorithm, experiences, updates),
        reference=engine.logprobs(experiences, reference=True) if reference else None,
        teacher=engine.teacher_logprobs(experiences) if teacher else None,
    )


def _old_logprobs(
    engine: TrainingEngine,
    algorithm: RolloutAlgorithmConfig,
    experiences: Sequence[Experience],
    updates: Sequence[Sequence[int]],
) -> list[FloatArray] | None:
    """Log-probs by the old policy: the weights at the start of the step, of what is trained on after the first
    update, or the sampler's.

    In the first update they equal the current log-probs, so no forward pass is spent on them, unless a
    divergence in the reward or a correction is computed from the log-probs of all experiences.
    """
    if algorithm.old_policy == "sampler":
        known = [e.policy_logprobs for e in experiences if e.policy_logprobs is not None]
        return known if len(known) == len(experiences) else engine.logprobs(experiences)
    chosen = sorted({number for update in updates[1:] for number in update})
    if registry.reward_reads_logprobs(algorithm) or registry.needs_start_logprobs(algorithm):
        chosen = list(range(len(experiences)))
    if not chosen:
        return None
    picked = [experiences[i] for i in chosen]
    found = dict(zip(chosen, engine.logprobs(picked), strict=True))
    return [found[i] if i in found else zeros_for(e) for i, e in enumerate(experiences)]
