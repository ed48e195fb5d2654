"""How a step's groups become updates, and at which learning rate: for the policy and for a critic."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from strop.algorithms.schedules import lr_at
from strop.config.schema import Run
from strop.config.schema.optimizer import Optimizer
from strop.config.schema.schedule import Schedule
from strop.run.length import Length
from strop.seeds import derive_seed
from strop.types import ExperienceGroup


def plan_updates(
    groups: Sequence[ExperienceGroup], *, per_update: int, passes: int, shuffle_seed: tuple[int, int] | None
) -> list[list[int]]:
    """Which experiences, by number, each update trains on, in order.

    `shuffle_seed` is a seed and the step, from which each pass draws an order of its own;
    None keeps the groups' order.
    """
    ends = np.cumsum([len(group.experiences) for group in groups])
    numbers = [list(range(end - len(g.experiences), end)) for g, end in zip(groups, ends, strict=True)]
    updates = []
    for repeat in range(passes):
        order = np.arange(len(groups))
        if shuffle_seed is not None:
            seed, step = shuffle_seed
            random = np.random.Generator(np.random.Philox(derive_seed(seed, "pass", step, repeat)))
            order = random.permutation(len(groups))
        for start in range(0, len(groups), per_update):
            update = [n for i in order[start : start + per_update] for n in numbers[i]]
            if update:
                updates.append(update)
    return updates


def shuffle_seed(run: Run) -> int:
    """From which each pass draws its order."""
    own = run.trainer.shuffle_seed
    return run.seed if own is None else own


def learning_rate(
    optimizer: Optimizer, schedule: Schedule, length: Length, *, step: int, update: int
) -> float:
    """The rate of one update: `step` counts from 1, `update` from 0."""
    position, total = position_of(schedule, length, step=step, update=update)
    return lr_at(
        schedule,
        optimizer.lr,
        position,
        total,
        count=lambda amount: length.in_unit(amount, schedule.counts),
    )


def position_of(schedule: Schedule, length: Length, *, step: int, update: int) -> tuple[int, int]:
    """Where an update stands and how long the run is, in what the schedule counts."""
    if schedule.counts == "steps":
        return step - 1 - length.critic_steps, length.learning_steps
    return update, length.updates
