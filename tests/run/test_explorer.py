"""The explorer scores rollouts while others are sampled, and keeps rollouts in flight across steps."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from strop.errors import RewardError
from strop.pipelines.experience_pipeline import make_pipeline
from strop.pipelines.operators import ExperienceServices
from strop.run.drivers.explorer_loop import ContinuousExplorer
from strop.run.rollout.collector import GroupSettings
from strop.run.rollout.explorer import Explorer
from strop.run.state.run_state import ExplorerState
from strop.runs.folder import RunFolder
from strop.types import ExperienceGroup, Rollout, RolloutGroup, SamplingParams, Task
from strop.workers.signals import StopSignal
from strop.workers.threads import EventLoopThread
from tests.rewards.builders import group as make_group

SAMPLING = SamplingParams(max_tokens=4)


@dataclass
class FakeRunner:
    """Samples rollout `index` in `index` hundredths of a second, and those of one group until a condition holds."""

    log: list[str]
    max_concurrent_rollouts: int | None = None
    slow_group: str = ""
    is_over: Callable[[], bool] = lambda: True

    async def run(self, task: Task, group: str, index: int, sampling: SamplingParams, seed: int) -> Rollout:
        await asyncio.sleep(0.01 * index)
        while group == self.slow_group and not self.is_over():
            await asyncio.sleep(0.01)
        self.log.append(f"sampled {group} {index}")
        (rollout,) = make_group(["x"]).rollouts
        return replace(rollout, id=f"{group}-{index}", task_id=task.id, group=group, index=index)

    __hash__ = object.__hash__


@dataclass
class FakeRewards:
    """Scores a rollout by its index."""

    log: list[str]
    error: Exception | None = None

    async def score_rollout(self, task: Task, rollout: Rollout) -> Rollout:
        self.log.append(f"scored {rollout.group} {rollout.index}")
        if self.error is not None:
            raise self.error
        return replace(rollout, reward=float(rollout.index))

    async def score_batch(self, groups: list[RolloutGroup]) -> list[RolloutGroup]:
        return groups


@pytest.fixture
def event_loop() -> Iterator[EventLoopThread]:
    loop = EventLoopThread("test")
    yield loop
    loop.close()


def tasks(count: int) -> list[Task]:
    return [make_group(["x"], name=f"t{n}").task for n in range(count)]


def test_a_rollout_is_scored_while_others_are_sampled(event_loop: EventLoopThread) -> None:
    log: list[str] = []
    explorer = Explorer(
        {"train": FakeRunner(log)}, {"train": FakeRewards(log)}, event_loop, StopSignal(), seed=1
    )
    explored = explorer.run(tasks(2), 4, SAMPLING, purpose="train", step=3, first=5)
    assert [group.id for group in explored.groups] == ["train-000003-00005", "train-000003-00006"]
    assert [[r.reward for r in group.rollouts] for group in explored.groups] == [[0.0, 1.0, 2.0, 3.0]] * 2
    assert log.index("scored train-000003-00005 0") < log.index("sampled train-000003-00005 3")


def test_an_error_in_a_reward_cancels_the_other_rollouts(event_loop: EventLoopThread) -> None:
    log: list[str] = []
    rewards = FakeRewards(log, RewardError("the budget is used up"))
    explorer = Explorer({"train": FakeRunner(log)}, {"train": rewards}, event_loop, StopSignal(), seed=1)
    with pytest.raises(RewardError, match="used up"):
        explorer.run(tasks(1), 50, SAMPLING, purpose="train", step=1)
    assert "sampled train-000001-00000 40" not in log


@dataclass
class FakeTasks:
    """Tasks without end."""

    position: int = 0

    def take(self, n: int) -> list[Task]:
        self.position += n
        return tasks(n)

    def restore(self, position: int, order_state: object) -> None:
        assert order_state is None
        self.position = position


@dataclass
class FakeBuffer:
    ids: list[str] = field(default_factory=list)

    def put(self, groups: list[ExperienceGroup]) -> None:
        self.ids += [group.id for group in groups]


@dataclass
class FakeSubscriber:
    """Trainer that publishes version n when it could have trained n steps on the buffer."""

    buffer: FakeBuffer
    size: int
    max_staleness: int
    version: int = 0
    load_seconds: float = 0.0
    started_with: list[int] = field(default_factory=list)

    def lowest_version(self, groups_ahead: int, size: int) -> int:
        return max(0, groups_ahead // size - self.max_staleness)

    def before_batch(self, step: int, groups_ahead: object, size: int, *, check: object) -> int:
        while len(self.buffer.ids) // self.size < self.lowest_version(groups_ahead(), size):  # type: ignore[operator]
            time.sleep(0.01)
            check()  # type: ignore[operator]
        self.version = len(self.buffer.ids) // self.size
        self.started_with.append(self.version)
        return self.version

    def trainer_has_finished(self, last: int) -> bool:
        return False

    def after_step(self, step: int) -> None:
        """Nothing to do."""


@dataclass
class FakeProgress:
    state: ExplorerState = field(default_factory=ExplorerState)
    saved: list[ExplorerState] = field(default_factory=list)
    recorded: list[tuple[int, int]] = field(default_factory=list)

    def save(self, state: ExplorerState) -> None:
        self.state = state
        self.saved.append(state)

    def evaluate_if_due(self, version: int) -> None:
        """There is nothing to evaluate."""

    def record(self, step: int, sampled: list[RolloutGroup], metrics: dict[str, float]) -> None:
        self.recorded.append((step, len(sampled)))


def explore(
    event_loop: EventLoopThread,
    progress: FakeProgress,
    steps: int,
    *,
    max_staleness: int = 2,
    slow: str = "",
    until: Callable[[FakeBuffer], bool] = lambda buffer: True,
) -> tuple[FakeBuffer, FakeSubscriber]:
    log: list[str] = []
    buffer = FakeBuffer()
    runner = FakeRunner(log, slow_group=slow, is_over=lambda: until(buffer))
    explorer = Explorer({"train": runner}, {"train": FakeRewards(log)}, event_loop, StopSignal(), seed=1)
    subscriber = FakeSubscriber(buffer, 2, max_staleness)
    settings = GroupSettings(
        2,
        3,
        SAMPLING,
        None,
        None,
        None,
        0.1,
        make_pipeline((), ExperienceServices(Path(), Path(), lambda: None, lambda *_: [])),
    )
    loop = ContinuousExplorer(
        progress,
        settings,
        explorer,
        FakeTasks(),
        buffer,
        subscriber,
        warmup_steps=0,  # type: ignore[arg-type]
    )
    loop.run(steps)
    return buffer, subscriber


def test_rollouts_stay_in_flight_across_steps(event_loop: EventLoopThread) -> None:
    """The first group of step 1 is slow; groups of later steps are in the buffer before it."""
    progress = FakeProgress()
    second = "train-000002-00000"
    buffer, _ = explore(
        event_loop, progress, 4, slow="train-000001-00000", until=lambda buffer: second in buffer.ids
    )
    assert sorted(buffer.ids) == [f"train-{s:06d}-{n:05d}" for s in range(1, 5) for n in range(2)]
    assert buffer.ids.index(second) < buffer.ids.index("train-000001-00000")
    assert progress.recorded == [(1, 2), (2, 2), (3, 2), (4, 2)], "steps are recorded in order"
    assert progress.state == ExplorerState(step=4, tasks_taken=8, groups_written=8)
    assert any(state.written_ahead for state in progress.saved)


def test_a_slow_group_is_not_overtaken_beyond_its_staleness_limit(event_loop: EventLoopThread) -> None:
    end = time.monotonic() + 0.3
    buffer, subscriber = explore(
        event_loop,
        FakeProgress(),
        8,
        max_staleness=1,
        slow="train-000001-00000",
        until=lambda buffer: time.monotonic() > end,
    )
    assert buffer.ids.index("train-000001-00000") // 2 <= 1, "it is trained on in step 2 at the latest"
    for position, version in enumerate(subscriber.started_with):
        assert position // 2 - version <= 1


def test_groups_that_were_written_before_a_kill_are_not_put_again(event_loop: EventLoopThread) -> None:
    written = ("train-000003-00001", "train-000004-00000")
    progress = FakeProgress(ExplorerState(step=2, tasks_taken=4, groups_written=6, written_ahead=written))
    buffer, _ = explore(event_loop, progress, 4, max_staleness=9)
    assert sorted(buffer.ids) == ["train-000003-00000", "train-000004-00001"]
    assert progress.recorded == [(3, 2), (4, 2)]
    assert progress.state == ExplorerState(step=4, tasks_taken=8, groups_written=8)


def test_a_state_file_of_an_older_version_is_read(tmp_path) -> None:
    old = {"step": 3, "position": 24, "version": 2, "groups": 24, "measured": None}
    (tmp_path / "explorer.json").write_text(json.dumps(old))
    state = ExplorerState.load(RunFolder(tmp_path))
    assert state == ExplorerState(step=3, tasks_taken=24, next_version=2, groups_written=24)
    state = replace(state, written_ahead=("train-000004-00001",))
    state.save(RunFolder(tmp_path))
    assert ExplorerState.load(RunFolder(tmp_path)) == state
