"""Reward of a run: the weighted sum of functions, reward models and judges."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from strop.config.redact import safe_text
from strop.config.schema.reward import RewardConfig
from strop.inference.endpoint.server import EndpointAccess
from strop.python_rewards import PythonRewards
from strop.rewards.execution.trainer_state import TrainingLength
from strop.rewards.judges.judge import Judge, Judges
from strop.rewards.scorer import Scorer, reject_duplicate_names
from strop.training.device import find_device
from strop.types import Rollout, RolloutGroup, Task
from strop.workers.cleanup import keep_first_error
from strop.workers.event_loop_thread import gather_or_cancel

if TYPE_CHECKING:
    from strop.inference.reward_model import RewardModel


class RewardComponent(Protocol):
    """A component of the sum that is not a function: a judge or a reward model."""

    name: str
    weight: float


class RewardManager:
    """Scores rollouts by the weighted sum of all components, in the order functions, reward models, judges.

    The order decides which components a failed rollout still costs: those after the failed one are skipped.
    Functions score each rollout when it completes, and so do judges if there is no reward model. A reward
    model scores many rollouts in one batch; it and the components after it wait for `score_batch`.

    The constructor finds and loads all components and tests the judges' endpoints, so that mistakes show
    before training: it raises RewardError, ModelError or PlacementError. Use it as a context manager.
    """

    def __init__(
        self,
        section: RewardConfig,
        extra: PythonRewards | None = None,
        *,
        replies: Path,
        auxiliary: EndpointAccess | None = None,
        default: float | None = None,
        length: TrainingLength | None = None,
    ) -> None:
        """`extra` are further functions, as Python objects; `replies` the folder of the judges' cache; `auxiliary`
        the endpoint of the run's auxiliary models; `default` the reward of a rollout that nothing scores, which
        fails if it is None; `length` that of the training, None outside of one."""
        self._default = default
        self._said_unscored = False
        with ExitStack() as opened:
            self._scorer = None
            if section.functions or extra is not None:
                self._scorer = opened.enter_context(Scorer(section, extra, length))
            self._models: Sequence[RewardModel] = _load_models(section)
            self._judges: Sequence[Judge] = ()
            if section.judges:
                endpoint = None if auxiliary is None else (auxiliary.url, auxiliary.api_key)
                judges = Judges(section.judges, section.judge_calls, replies, endpoint)
                opened.callback(judges.close)
                self._judges = judges.parts
            reject_duplicate_names(
                [
                    *(self._scorer.names if self._scorer else ()),
                    *(model.name for model in self._models),
                    *(judge.name for judge in self._judges),
                ]
            )
            self._opened = opened.pop_all()

    async def score_rollout(self, task: Task, rollout: Rollout) -> Rollout:
        """The rollout with all components that score a single rollout; see the class.

        Components are recorded before their weight. A rollout on which a component fails gets status "error"
        and the message. Raises RewardError if a component cannot continue at all.
        """
        if self._scorer is not None:
            rollout = await self._scorer.score_rollout(task, rollout)
        return rollout if self._models else await self._judge(task, rollout)

    async def score_batch(self, groups: Sequence[RolloutGroup]) -> list[RolloutGroup]:
        """The same groups in the same order, with the components that `score_rollout` has left."""
        groups = list(groups)
        for model in self._models:
            groups = await _add_model(model, groups)
        if self._models and self._judges:
            pairs = [(group.task, rollout) for group in groups for rollout in group.rollouts]
            judged = iter(await gather_or_cancel([self._judge(*pair) for pair in pairs]))
            groups = [_with_rollouts(group, [next(judged) for _ in group.rollouts]) for group in groups]
        return [_with_rollouts(group, map(self._require_reward, group.rollouts)) for group in groups]

    async def score(self, groups: Sequence[RolloutGroup]) -> list[RolloutGroup]:
        """The same groups in the same order, scored by all components."""
        pairs = [(group.task, rollout) for group in groups for rollout in group.rollouts]
        scored = iter(await gather_or_cancel([self.score_rollout(*pair) for pair in pairs]))
        return await self.score_batch(
            [_with_rollouts(group, [next(scored) for _ in group.rollouts]) for group in groups]
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with keep_first_error(error):
            self._opened.close()

    async def _judge(self, task: Task, rollout: Rollout) -> Rollout:
        for judge in self._judges:
            if rollout.status == "error":
                break
            rollout = _with_component(judge, rollout, await judge.score_rollout(task, rollout))
        return rollout

    def _require_reward(self, rollout: Rollout) -> Rollout:
        """A rollout that no component and no workflow has scored gets the default, or fails."""
        if rollout.reward is not None or rollout.status == "error":
            return rollout
        if self._default is not None:
            return replace(rollout, reward=self._default)
        if self._scorer is not None:
            message = (
                f"task {rollout.task_id!r}: all reward functions ({', '.join(self._scorer.names)}) returned None for "
                "this response, so it has no reward and is not trained on"
            )
            if not self._said_unscored:
                self._said_unscored = True
                counted = "rollouts/unscored_fraction counts such responses"
                print(safe_text(f"strop: {message}; {counted}."), file=sys.stderr, flush=True)
            return replace(rollout, status="error", error=message, failure_cause="unscored")
        message = (
            f"task {rollout.task_id!r}: this rollout has no reward. The run file has no `reward`, and the "
            "workflow returned none: write a `reward`, or have the workflow return a number"
        )
        return replace(rollout, status="error", error=message, failure_cause="failed")


def _load_models(section: RewardConfig) -> list[RewardModel]:
    if not section.models:
        return []
    from strop.inference.reward_model import RewardModel

    return [
        RewardModel(model, find_device(model.device, f"reward.models ({model.name}).device"))
        for model in section.models
    ]


async def _add_model(model: RewardModel, groups: Sequence[RolloutGroup]) -> list[RolloutGroup]:
    """The groups with the model's component; the model scores all rollouts together."""
    pairs = [
        (group.task, rollout) for group in groups for rollout in group.rollouts if rollout.status != "error"
    ]
    values = iter(await asyncio.to_thread(model.score, pairs))
    return [
        _with_rollouts(
            group,
            [
                rollout if rollout.status == "error" else _with_component(model, rollout, next(values))
                for rollout in group.rollouts
            ],
        )
        for group in groups
    ]


def _with_rollouts(group: RolloutGroup, rollouts: Iterable[Rollout]) -> RolloutGroup:
    return replace(group, rollouts=tuple(rollouts))


def _with_component(component: RewardComponent, rollout: Rollout, value: float | str) -> Rollout:
    if isinstance(value, str):
        message = f"task {rollout.task_id!r}: the reward {component.name!r} {value}"
        return replace(rollout, status="error", reward=None, reward_parts={}, error=message)
    total = (rollout.reward or 0.0) + component.weight * value
    parts = {**rollout.reward_parts, component.name: value}
    return replace(rollout, reward=total, reward_parts=parts)
