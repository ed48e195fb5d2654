"""Which weights a step is sampled with: pure functions of its number.

A run of `last` steps counts them from 1, and its weights are version n after step n. The explorer samples
step s while the trainer is at step s or an earlier one, so version s - 1 is the newest that there can be.
Rollouts begin after step `first`: 0, or the last one of a warm-up, whose version is the first they are drawn
with; the style counts from there.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import assert_never

from strop.config.schema.synchronizer import ByExplorer, ByTrainer, Fixed, Free, Style


@dataclass(frozen=True, slots=True)
class Window:
    """The versions that a step may be sampled with; the newest that is there is taken."""

    lowest: int
    highest: int | None = None
    """None: however new."""

    def newest(self, versions: list[int]) -> int | None:
        """The newest of these that fits."""
        fitting = [v for v in versions if v >= self.lowest and (self.highest is None or v <= self.highest)]
        return max(fitting, default=None)


def window(style: Style, step: int, first: int = 0) -> Window:
    """What step `step` may be sampled with. Version 0 is the model as it is, which needs no trainer."""
    match style:
        case Fixed():
            every, ahead = int(style.every.count), int(style.ahead.count)
            version = first + max(0, step - first - 1 - ahead) // every * every
            return Window(version, version)
        case Free():
            return Window(max(first, step - 1 - int(style.max_staleness.count)))
        case ByTrainer() | ByExplorer():
            return Window(first)
        case _:
            assert_never(style)


def learned_in(put: int, shift: int, size: int, first: int = 0) -> int:
    """The trainer's step that learns from the next group, after `put` ones, where it takes `size` as they
    come: they count, not the explorer's steps, some of which gave fewer. `shift` is the trainer's account."""
    return first + max(0, put + shift) // size + 1


def asks(style: Style, step: int, first: int = 0) -> bool:
    """Whether the explorer, before it samples step `step`, asks the trainer for its newest weights."""
    done = step - 1 - first
    return isinstance(style, ByExplorer) and done > 0 and done % int(style.every.count) == 0


def publishes(style: Style, step: int, last: int, first: int = 0) -> bool:
    """Whether the trainer publishes its weights after step `step` without being asked."""
    if step in (first, last):
        return True
    return step > first and not isinstance(style, ByExplorer) and (step - first) % int(style.every.count) == 0


def kept(style: Style, versions: Collection[int], taken: int) -> list[int]:
    """Those of the published versions that the explorer may still want, which has taken `taken`: under
    `fixed` all from that on, under the others that one, for a step that is done again, and the newest."""
    if isinstance(style, Fixed):
        return [version for version in versions if version >= taken]
    return [version for version in versions if version in (taken, max(versions))]
