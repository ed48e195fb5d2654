"""Staleness policies: which version of the weights samples a step, as pure functions of the step's number.

Steps are counted from 1, and the weights after step n are version n; version 0 is the initial model. The
explorer samples step s while the trainer is at step s or an earlier one, so the newest possible version is
s - 1. Rollouts start after `warmup_steps` steps of training on demonstrations (0 without a warm-up): the
version after the warm-up is the first that samples rollouts, and the style counts from there.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import assert_never

from strop.config.schema.buffer import (
    BoundedStyleConfig,
    FixedStyleConfig,
    LatestStyleConfig,
    OnRequestStyleConfig,
    StyleConfig,
)


@dataclass(frozen=True, slots=True)
class VersionWindow:
    """The versions that may sample a step; of those that are published, the newest one does."""

    lowest: int
    highest: int | None = None
    """None: no upper limit."""

    def select_newest(self, versions: list[int]) -> int | None:
        """The newest of these versions in the window; None if none is."""
        fitting = [v for v in versions if v >= self.lowest and (self.highest is None or v <= self.highest)]
        return max(fitting, default=None)


def version_window(style: StyleConfig, step: int, warmup_steps: int = 0) -> VersionWindow:
    """The versions that may sample a step. Version 0 is the initial model, which needs no trainer."""
    match style:
        case FixedStyleConfig():
            every, lead = int(style.every.count), int(style.max_lead.count)
            version = warmup_steps + max(0, step - warmup_steps - 1 - lead) // every * every
            return VersionWindow(version, version)
        case BoundedStyleConfig():
            return VersionWindow(max(warmup_steps, step - 1 - int(style.max_staleness.count)))
        case LatestStyleConfig() | OnRequestStyleConfig():
            return VersionWindow(warmup_steps)
        case _:
            assert_never(style)


def training_step_for(
    groups_written: int, shortfall: int, groups_per_step: int, warmup_steps: int = 0
) -> int:
    """The trainer's step that trains on the next group, if the trainer takes groups in order of arrival.

    The step follows from the number of groups that were written before, not from the explorer's steps, some
    of which write fewer groups. `shortfall` is the trainer's correction, see `GROUP_SHORTFALL`.
    """
    return warmup_steps + max(0, groups_written + shortfall) // groups_per_step + 1


def requests_weights(style: StyleConfig, step: int, warmup_steps: int = 0) -> bool:
    """Whether the explorer requests the trainer's newest weights before it samples a step."""
    done = step - 1 - warmup_steps
    return isinstance(style, OnRequestStyleConfig) and done > 0 and done % int(style.every.count) == 0


def publishes_after(style: StyleConfig, step: int, last_step: int, warmup_steps: int = 0) -> bool:
    """Whether the trainer publishes its weights after a step without a request."""
    if step in (warmup_steps, last_step):
        return True
    return (
        step > warmup_steps
        and not isinstance(style, OnRequestStyleConfig)
        and (step - warmup_steps) % int(style.every.count) == 0
    )


def retained_versions(style: StyleConfig, versions: Collection[int], oldest_needed: int) -> list[int]:
    """The published versions that the explorer may still need.

    Under `fixed` these are all from `oldest_needed` on; under the other policies `oldest_needed`, in case its
    step is sampled again, and the newest.
    """
    if isinstance(style, FixedStyleConfig):
        return [version for version in versions if version >= oldest_needed]
    return [version for version in versions if version in (oldest_needed, max(versions))]
