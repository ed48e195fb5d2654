"""Console note for a run that trains on rollouts of older weights without a correction."""

from __future__ import annotations

from strop.config.schema.policy_gradient import PolicyGradientConfig
from strop.config.schema.run import Run
from strop.config.schema.synchronizer import MemorySyncConfig

_NOTE = (
    "rollouts may be of older weights, and nothing corrects for it: write algorithm.importance_correction: {} or "
    "algorithm.old_policy: sampler, unless an update changes the log-probs little (logprob_diff/mean_abs)"
)


def off_policy_note(run: Run) -> tuple[str, ...]:
    """A note if the synchronizer's style admits rollouts of older weights, which the algorithm takes for those of the
    trainer's; else none."""
    algorithm, section = run.algorithm, run.synchronizer
    if not isinstance(algorithm, PolicyGradientConfig) or isinstance(section, MemorySyncConfig):
        return ()
    is_corrected = (
        algorithm.old_policy == "sampler"
        or algorithm.importance_correction is not None
        or bool(algorithm.rejection)
    )
    return () if is_corrected or section.style.max_buffered_steps == 1 else (_NOTE,)
