"""Ids of groups, and padding of a step to a fixed number of groups.

An id contains the step in which the group was sampled. Under the `fixed` style a step always puts as many
groups into the buffer as it has tasks; missing ones are empty. So a reader that takes a step's worth of groups
gets exactly one complete step.
"""

from __future__ import annotations

from collections.abc import Sequence

from strop.types import ExperienceGroup

_PADDING = "none"


def group_id(purpose: str, step: int, number: int) -> str:
    """Id of a group: `train-000012-00003` is the fourth group of step 12."""
    return f"{purpose}-{step:06d}-{number:05d}"


def step_of_group(id: str) -> int:
    """Step in which a group was sampled."""
    return int(id.rsplit("-", 2)[1])


def pad_groups(groups: Sequence[ExperienceGroup], step: int, size: int) -> list[ExperienceGroup]:
    """The groups, followed by empty ones up to `size`."""
    padding = [ExperienceGroup(group_id(_PADDING, step, n), ()) for n in range(len(groups), size)]
    return [*groups, *padding]


def remove_padding(groups: Sequence[ExperienceGroup]) -> list[ExperienceGroup]:
    """The groups without the empty ones that `pad_groups` added."""
    return [group for group in groups if not group.id.startswith(f"{_PADDING}-")]
