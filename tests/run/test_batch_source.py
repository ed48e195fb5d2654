"""Batches of the buffer sources, over a real database and a priority queue that replays groups."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from strop.buffer.factory import open_buffer
from strop.config.schema.buffer import BufferConfig as Section
from strop.errors import BufferExhausted, StoreError, WritersLostError
from strop.protocols import Buffer, BufferCounts
from strop.run.drivers.batch_source import ArrivalSource, IncompleteSteps, ReplaySource, StepSource
from strop.run.rollout.explorer import group_id, pad_groups
from strop.run.state.run_state import RunState
from strop.types import ExperienceGroup
from tests.buffer.groups import ids, make_group, make_groups

pytest.importorskip("sqlalchemy")


class BufferEnds(ExitStack):
    """A buffer with an explorer as writer, and readers that may be opened again; closes all of them."""

    def __init__(self, folder: Path, **values: Any) -> None:
        super().__init__()
        self.section = TypeAdapter(Section).validate_python({"type": "sql", **values})
        self.folder = folder
        self.shifts: list[int] = []
        self.explorer = self.open("writer", "explorer-0")

    def open(self, part: Any, member: str) -> Buffer:
        buffer = open_buffer(self.section, self.folder, role=part, member_name=member)
        self.callback(buffer.close)
        return buffer

    def source(self, size: int = 3, *, timeout: float = 5.0, oldest: int | None = None) -> ArrivalSource:
        reader = self.open("reader", "trainer")
        return ArrivalSource(
            reader,
            size,
            read_timeout_seconds=timeout,
            max_staleness=oldest,
            report_shortfall=self.shifts.append,
        )


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[BufferEnds]:
    with BufferEnds(tmp_path) as made:
        yield made


def taken(source: ArrivalSource, step: int) -> tuple[list[str], dict[str, float]] | None:
    batch = source.next_batch(step)
    return batch and (ids(batch.groups), batch.metrics)


def test_arrival_batches_are_the_next_groups_of_any_step(ends: BufferEnds) -> None:
    source = ends.source()
    ends.explorer.put(make_groups(2, prefix="a"))
    ends.explorer.put(make_groups(5, prefix="b"))
    ends.explorer.finish()
    counts = {"groups/trained": 3, "groups/missing": 0, "groups/stale_dropped": 0, "groups/evicted": 0}
    assert taken(source, 1) == (["a0", "a1", "b0"], counts | {"groups/queued": 4})
    assert taken(source, 2) == (["b1", "b2", "b3"], counts | {"groups/queued": 1})
    rest = counts | {"groups/trained": 1, "groups/missing": 2, "groups/queued": 0}
    assert taken(source, 3) == (["b4"], rest)
    assert taken(source, 4) is None, "the explorer has finished"
    assert (ends.shifts, source.group_offset) == ([2], 2), "step 3 lacked two"
    assert source.unacknowledged == ("a0", "a1", "b0", "b1", "b2", "b3", "b4")


def test_an_incomplete_batch_is_trained_on_after_the_timeout(ends: BufferEnds) -> None:
    source = ends.source(timeout=0.3)
    ends.explorer.put(make_groups(2))
    found = taken(source, 1)
    assert found is not None and found[0] == ["g0", "g1"] and found[1]["groups/missing"] == 1
    with pytest.raises(StoreError, match="No usable group for step 2 arrived within"):
        source.next_batch(2)


def test_stale_groups_are_dropped_and_replaced_by_newer_ones(ends: BufferEnds) -> None:
    """Step 4 trains the weights of version 3; groups more than two steps older are stale."""
    source = ends.source(oldest=2)
    ends.explorer.put([make_group(f"v{version}", version=version) for version in (0, 1, 2, 0, 3)])
    found = taken(source, 4)
    assert found is not None and found[0] == ["v1", "v2", "v3"]
    assert (found[1]["groups/stale_dropped"], found[1]["groups/missing"]) == (1, 0)
    ends.explorer.put([make_group("late", version=1)])
    later = threading.Timer(0.2, lambda: ends.explorer.put(make_groups(3, prefix="y", version=4)))
    later.start()
    assert ids(source.next_batch(5).groups) == ["y0", "y1", "y2"]  # type: ignore[union-attr]
    later.join()
    ends.explorer.put([make_group("old again", version=0)])
    ends.explorer.finish()
    assert source.next_batch(6) is None, "only what is too old was left"
    assert ends.shifts == [-1, -2, -3], "said at once, for who waits for their steps"
    source.release(RunState(unacknowledged=source.unacknowledged))()
    assert ends.explorer.counts() == BufferCounts(0, 0, 9)


def test_a_lost_explorer_is_an_error(tmp_path: Path) -> None:
    with BufferEnds(tmp_path, lease_seconds=0.3) as ends:
        ends.explorer._member.stop_heartbeat()  # type: ignore[attr-defined]  # as after a kill
        time.sleep(0.4)
        with pytest.raises(WritersLostError, match="explorer-0 without a heartbeat"):
            ends.source(timeout=0.2).next_batch(1)


@pytest.mark.slow
def test_a_kill_between_checkpoint_and_acknowledgement_repeats_no_group(ends: BufferEnds) -> None:
    ends.explorer.put(make_groups(8))
    first = ends.source()
    first.next_batch(1)
    first.release(RunState(unacknowledged=first.unacknowledged))()
    first.next_batch(2)
    checkpoint = first.unacknowledged
    first.next_batch(3)
    second = ends.source()  # takes the place, and all that the first held comes back
    second.load_state(RunState(unacknowledged=checkpoint))
    assert taken(second, 3)[0] == ["g6", "g7"]  # type: ignore[index]


def test_step_source_removes_padding_and_refuses_another_step(ends: BufferEnds) -> None:
    source = StepSource(ends.open("reader", "trainer"), 3)
    for step in (1, 2, 4):
        groups = [make_group(group_id("train", step, n)) for n in range(2)]
        ends.explorer.put(pad_groups(groups, step, 3))
    assert [ids(source.next_batch(step).groups) for step in (1, 2)] == [
        ["train-000001-00000", "train-000001-00001"],
        ["train-000002-00000", "train-000002-00001"],
    ]
    assert len(source.unacknowledged) == 6, "the padding is acknowledged too"
    with pytest.raises(StoreError, match="next step is 3, and the buffer gave groups of step 4"):
        source.next_batch(3)
    ends.explorer.finish()
    with pytest.raises(BufferExhausted):
        source.next_batch(3)


def step_groups(step: int, numbers: range) -> list[ExperienceGroup]:
    return [make_group(group_id("train", step, number)) for number in numbers]


class TestIncompleteSteps:
    """`buffer.on_timeout: train` under the style `fixed`."""

    @pytest.fixture
    def ends(self, tmp_path: Path) -> Iterator[BufferEnds]:
        with BufferEnds(tmp_path, read_timeout_seconds=0.2) as made:
            yield made

    def source(self, ends: BufferEnds) -> StepSource:
        reader = ends.open("reader", "trainer")
        return StepSource(reader, 3, incomplete=IncompleteSteps(ends.folder / "incomplete.jsonl"))

    def test_an_incomplete_step_is_trained_on_and_its_late_groups_are_dropped(
        self, ends: BufferEnds, caplog: pytest.LogCaptureFixture
    ) -> None:
        source = self.source(ends)
        ends.explorer.put(step_groups(1, range(2)))
        batch = source.next_batch(1)
        assert ids(batch.groups) == ["train-000001-00000", "train-000001-00001"]
        assert batch.metrics == {"groups/trained": 2, "groups/missing": 1, "groups/late_dropped": 0}
        assert "Step 1 is trained on 2 of its 3 groups" in caplog.text
        ends.explorer.put(step_groups(1, range(2, 3)) + pad_groups(step_groups(2, range(2)), 2, 3))
        batch = source.next_batch(2)
        assert ids(batch.groups) == ["train-000002-00000", "train-000002-00001"]
        assert batch.metrics == {"groups/trained": 2, "groups/missing": 0, "groups/late_dropped": 1}
        assert "train-000001-00002" in source.unacknowledged
        source.release(RunState(unacknowledged=source.unacknowledged))()
        assert ends.explorer.counts() == BufferCounts(0, 0, 6)

    def test_a_killed_trainer_repeats_an_incomplete_step_with_the_same_groups(self, ends: BufferEnds) -> None:
        first = self.source(ends)
        ends.explorer.put(step_groups(1, range(2)))
        trained = ids(first.next_batch(1).groups)
        ends.explorer.put(step_groups(1, range(2, 3)) + step_groups(2, range(3)))
        with (ends.folder / "incomplete.jsonl").open("a") as file:
            file.write('{"step": 2, "gro')  # as a kill leaves it
        second = self.source(ends)  # no checkpoint: all that the first held comes back
        assert ids(second.next_batch(1).groups) == trained
        assert ids(second.next_batch(2).groups) == ids(step_groups(2, range(3)))

    def test_a_step_without_groups_is_waited_for_once_more(
        self, ends: BufferEnds, caplog: pytest.LogCaptureFixture
    ) -> None:
        source = self.source(ends)
        with pytest.raises(StoreError, match="No usable group for step 1 arrived"):
            source.next_batch(1)
        assert caplog.text.count("the trainer waits for them once more") == 1
        taken = source._buffer.take

        def take(groups: int) -> list[ExperienceGroup]:
            found = taken(groups)
            if not found:  # the explorer's step is done after the first wait
                ends.explorer.put(step_groups(1, range(3)))
            return found

        source._buffer.take = take  # type: ignore[method-assign, assignment]
        assert len(source.next_batch(1).groups) == 3

    def test_batches_by_arrival_wait_once_more(
        self, ends: BufferEnds, caplog: pytest.LogCaptureFixture
    ) -> None:
        reader = ends.open("reader", "trainer")
        source = ArrivalSource(
            reader,
            3,
            read_timeout_seconds=0.2,
            max_staleness=None,
            report_shortfall=ends.shifts.append,
            waits_once_more=True,
        )
        with pytest.raises(StoreError, match="No usable group for step 1"):
            source.next_batch(1)
        assert "the trainer waits for them once more" in caplog.text


def test_a_buffer_that_replays_groups(tmp_path: Path) -> None:
    """Newest and least used first: v2 before v1, then newer groups, then the first ones again."""
    values = {"type": "priority", "capacity_groups": 4, "reuse_cooldown_seconds": 0.2, "backup": "b.db"}
    buffer = open_buffer(TypeAdapter(Section).validate_python(values), tmp_path)
    source = ReplaySource(
        buffer, 2, read_timeout_seconds=5.0, max_staleness=3, report_shortfall=lambda _: None
    )
    buffer.put([make_group("v1", version=1), make_group("v2", version=2)])
    first, again = [], []
    for step in (3, 4):
        batch = source.next_batch(step)
        assert batch is not None
        first.append(sorted(ids(batch.groups)))
        again.append(batch.metrics["groups/reused"])
        source.release(RunState(unacknowledged=source.unacknowledged))()
    assert (first, again) == ([["v1", "v2"], ["v1", "v2"]], [0, 2])
    buffer.put([make_group(f"n{version}", version=version) for version in (5, 6, 7)])
    batch = source.next_batch(7)
    assert batch is not None
    assert (ids(batch.groups), batch.metrics["groups/evicted"]) == (["n7", "n6"], 1), "v1 gave way"
    time.sleep(0.25)
    batch = source.next_batch(9)  # n5 is first; then n7 and n6, used once; v2, used twice, would be too old
    assert batch is not None
    assert (ids(batch.groups), batch.metrics["groups/reused"]) == (["n5", "n7"], 1)
