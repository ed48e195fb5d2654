"""Split of a step's groups into the minibatches of its optimizer updates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from strop.config.schema.trainer import TrainerConfig
from strop.seeds import derive_seed
from strop.types import ExperienceGroup


def plan_minibatches(
    groups: Sequence[ExperienceGroup], *, per_update: int, epochs: int, shuffle_seed: tuple[int, int] | None
) -> list[list[int]]:
    """Indices of the experiences of each update, in order. A group is never split.

    Args:
        groups: the step's groups; an update without experiences is left out.
        per_update: number of groups in one update.
        epochs: number of epochs over the groups.
        shuffle_seed: a seed and the step, from which each epoch draws an order of the groups;
            None keeps their order.
    """
    ends = np.cumsum([len(group.experiences) for group in groups])
    indices = [list(range(end - len(g.experiences), end)) for g, end in zip(groups, ends, strict=True)]
    updates = []
    for epoch in range(epochs):
        order = np.arange(len(groups))
        if shuffle_seed is not None:
            seed, step = shuffle_seed
            random = np.random.Generator(np.random.Philox(derive_seed(seed, "pass", step, epoch)))
            order = random.permutation(len(groups))
        for start in range(0, len(groups), per_update):
            update = [n for i in order[start : start + per_update] for n in indices[i]]
            if update:
                updates.append(update)
    return updates


def shuffle_seed(trainer: TrainerConfig, seed: int) -> int:
    """Seed of the epochs' orders: `trainer.shuffle_seed`, or the run's `seed` where that is left out."""
    return seed if trainer.shuffle_seed is None else trainer.shuffle_seed
