"""The batch of one update of the policy."""

from __future__ import annotations

from collections.abc import Sequence

from strop.run.optimize.advantage_inputs import zeros_for
from strop.run.optimize.minibatches import Minibatch
from strop.run.optimize.step_logprobs import StepLogprobs
from strop.types import BoolArray, Experience, FloatArray, TrainingBatch


def make_update_batch(
    minibatch: Minibatch,
    computed: Sequence[Experience],
    expert: Sequence[Experience],
    *,
    advantages: Sequence[FloatArray],
    logprobs: StepLogprobs,
    selected: Sequence[BoolArray] | None,
) -> TrainingBatch:
    """The rollouts that an update computes, then the expert's demonstrations, with 0 for what these do not have.

    Rollouts that are not compared with the old policy have no old log-probs.

    Args:
        minibatch: indices of the rollouts among the experiences of the step.
        computed: the experiences of `minibatch.computed`.
        expert: demonstrations.
        advantages: [L] of each of `minibatch.trained`.
        logprobs: those of the step.
        selected: [L] of each of `minibatch.trained`: the tokens that the policy loss treats differently.
    """
    zeros = [zeros_for(experience) for experience in expert]
    numbers, compared = set(minibatch.computed), set(minibatch.compared)
    positions = [position for position, i in enumerate(minibatch.trained) if i in numbers]

    def picked(values: Sequence[FloatArray] | None) -> list[FloatArray] | None:
        return None if values is None else [*(values[i] for i in minibatch.computed), *zeros]

    old = logprobs.old
    old_logprobs = None if old is None else [old[i] if i in compared else None for i in minibatch.computed]
    if selected is not None:
        selected = [*(selected[position] for position in positions), *(zero > 0 for zero in zeros)]
    return TrainingBatch(
        [*computed, *expert],
        advantages=[*(advantages[position] for position in positions), *zeros],
        old_logprobs=None if old_logprobs is None else [*old_logprobs, *zeros],
        ref_logprobs=picked(logprobs.reference),
        teacher_logprobs=picked(logprobs.teacher),
        selected=selected,
    )
