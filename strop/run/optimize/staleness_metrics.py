"""Metrics of the age of the weights that sampled a step's experiences."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from strop.types import Experience, IntArray


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
