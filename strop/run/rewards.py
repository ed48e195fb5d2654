"""The reward of a run, whole: functions by rule, models trained to score, and judges that are asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from strop.config.schema.reward import Reward
from strop.inference.endpoint.server import Access
from strop.rewards.judge import Judges
from strop.rewards.score import Scorer, refuse_doubles
from strop.training.device import find_device
from strop.types import Group, Rollout, Task

if TYPE_CHECKING:
    from strop.inference.reward_model import RewardModel


class Part(Protocol):
    """A part of the sum beside the functions."""

    name: str
    weight: float

    def score(self, answers: Sequence[tuple[Task, Rollout]]) -> list[float | str]:
        """For each answer its value, or what broke."""
        ...


class Rewards:
    """Scores rollouts by the weighted sum of all parts, functions first: they cost least.

    All parts are found, loaded and asked whether they answer when it is made, so that a mistake shows
    before training: raises RewardError, ModelError or PlacementError. Use it as a context manager.
    """

    def __init__(
        self,
        section: Reward,
        extra: Callable[..., Any] | None = None,
        *,
        replies: Path,
        auxiliary: Access | None = None,
    ) -> None:
        """`extra` is one more function, with weight 1; `replies` the folder that judges' replies go to;
        `auxiliary` where judges find the run's auxiliary models."""
        with ExitStack() as opened:
            self._scorer = None
            if section.functions or extra is not None:
                self._scorer = opened.enter_context(Scorer(section, extra))
            self._parts: list[Part] = [*_models(section)]
            if section.judges:
                where = None if auxiliary is None else (auxiliary.url, auxiliary.key)
                judges = Judges(section.judges, section.calls, replies, where)
                opened.callback(judges.close)
                self._parts += judges.parts
            refuse_doubles([*(self._scorer.names if self._scorer else ()), *(p.name for p in self._parts)])
            self._opened = opened.pop_all()

    def score(self, groups: Sequence[Group]) -> list[Group]:
        """The same groups in the same order, their rollouts with reward and named parts, each part before
        its weight. A rollout on which a part breaks gets status "error" and says why; the parts after
        that one are spared it. Raises RewardError where a part cannot go on at all.
        """
        groups = list(groups) if self._scorer is None else self._scorer.score(groups)
        for part in self._parts:
            groups = _add(part, groups)
        return [replace(group, rollouts=tuple(map(_require_reward, group.rollouts))) for group in groups]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()


def _models(section: Reward) -> list[RewardModel]:
    if not section.models:
        return []
    from strop.inference.reward_model import RewardModel

    return [
        RewardModel(model, find_device(model.device, f"reward.models ({model.name}).device"))
        for model in section.models
    ]


def _add(part: Part, groups: Sequence[Group]) -> list[Group]:
    """The part's value, times its weight, on top of each rollout's reward."""
    whole = [(group.task, rollout) for group in groups for rollout in group.rollouts]
    values = iter(part.score([(task, rollout) for task, rollout in whole if rollout.status != "error"]))
    return [
        replace(
            group,
            rollouts=tuple(
                rollout if rollout.status == "error" else _with(part, rollout, next(values))
                for rollout in group.rollouts
            ),
        )
        for group in groups
    ]


def _require_reward(rollout: Rollout) -> Rollout:
    """Broken, where nothing has scored it."""
    if rollout.reward is not None or rollout.status == "error":
        return rollout
    what = (
        f"task {rollout.task_id!r}: nothing scored this rollout. The run file names no `reward`, and the "
        "workflow gave none: write one, or have the workflow return a number"
    )
    return replace(rollout, status="error", error=what, cause="failed")


def _with(part: Part, rollout: Rollout, value: float | str) -> Rollout:
    if isinstance(value, str):
        what = f"task {rollout.task_id!r}: the reward {part.name!r} {value}"
        return replace(rollout, status="error", reward=None, reward_parts={}, error=what)
    total = (rollout.reward or 0.0) + part.weight * value
    return replace(rollout, reward=total, reward_parts={**rollout.reward_parts, part.name: value})
