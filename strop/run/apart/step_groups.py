"""A step's groups on their way through a buffer: their ids say which step they are of.

A step always puts as many groups as it has tasks; where it has fewer to learn from, the rest are
empty. So who takes a step's worth of groups gets one step, and all of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from strop.types import ExperienceGroup

_PAD = "none"


def group_id(purpose: str, step: int, number: int) -> str:
    """`train-000012-00003`: the fourth group of step 12."""
    return f"{purpose}-{step:06d}-{number:05d}"


def step_of(id: str) -> int:
    """The step in a group's id."""
    return int(id.rsplit("-", 2)[1])


def padded(groups: Sequence[ExperienceGroup], step: int, size: int) -> list[ExperienceGroup]:
    """The groups, and empty ones up to `size`."""
    pads = [ExperienceGroup(group_id(_PAD, step, n), ()) for n in range(len(groups), size)]
    return [*groups, *pads]


def without_padding(groups: Sequence[ExperienceGroup]) -> list[ExperienceGroup]:
    """What `padded` was given."""
    return [group for group in groups if not group.id.startswith(f"{_PAD}-")]
