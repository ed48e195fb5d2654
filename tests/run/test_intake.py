"""Which groups a step learns from, by hand: over a real database, and a priority queue that reuses."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from strop.buffer.table import open_buffer
from strop.config.schema.buffer import Buffer as Section
from strop.errors import BufferEnded, StoreError, WritersGone
from strop.protocols import Buffer, BufferCounts
from strop.run.apart.intake import ByArrival, ByStep, Reusing
from strop.run.apart.step_groups import group_id, padded
from tests.buffer.groups import ids, make_group, make_groups

pytest.importorskip("sqlalchemy")


class Meeting:
    """A buffer with an explorer's end and a trainer's, which may be opened again."""

    def __init__(self, folder: Path, **values: Any) -> None:
        self.section = TypeAdapter(Section).validate_python({"type": "sql", **values})
        self.folder = folder
        self.shifts: list[int] = []
        self.explorer = self.open("writer", "explorer-0")

    def open(self, part: Any, member: str) -> Buffer:
        return open_buffer(self.section, self.folder, part=part, member=member)

    def intake(self, size: int = 3, *, timeout: float = 5.0, oldest: int | None = None) -> ByArrival:
        reader = self.open("reader", "trainer")
        return ByArrival(
            reader,
            size,
            read_timeout_seconds=timeout,
            max_staleness=oldest,
            tell_shift=self.shifts.append,
        )


@pytest.fixture
def meeting(tmp_path: Path) -> Iterator[Meeting]:
    made = Meeting(tmp_path)
    yield made
    made.explorer.close()


def taken(intake: ByArrival, step: int) -> tuple[list[str], dict[str, float]] | None:
    batch = intake.take(step)
    return batch and (ids(batch.groups), batch.metrics)


def test_batches_are_the_next_groups_whatever_step_they_are_of(meeting: Meeting) -> None:
    intake = meeting.intake()
    meeting.explorer.put(make_groups(2, prefix="a"))
    meeting.explorer.put(make_groups(5, prefix="b"))
    meeting.explorer.finish()
    whole = {"groups/trained": 3, "groups/missing": 0, "groups/too_old": 0, "groups/evicted": 0}
    assert taken(intake, 1) == (["a0", "a1", "b0"], whole | {"groups/waiting": 4})
    assert taken(intake, 2) == (["b1", "b2", "b3"], whole | {"groups/waiting": 1})
    rest = whole | {"groups/trained": 1, "groups/missing": 2, "groups/waiting": 0}
    assert taken(intake, 3) == (["b4"], rest)
    assert taken(intake, 4) is None, "the explorer has finished"
    assert (meeting.shifts, intake.shift) == ([2], 2), "step 3 lacked two"
    assert intake.owed == ("a0", "a1", "b0", "b1", "b2", "b3", "b4")


def test_an_incomplete_batch_is_learned_from_once_the_time_is_up(meeting: Meeting) -> None:
    intake = meeting.intake(timeout=0.3)
    meeting.explorer.put(make_groups(2))
    found = taken(intake, 1)
    assert found is not None and found[0] == ["g0", "g1"] and found[1]["groups/missing"] == 1
    with pytest.raises(StoreError, match=r"step 2 not one group .*read_timeout_seconds \(0.3\)"):
        intake.take(2)


def test_what_is_too_old_is_thrown_away_and_the_batch_filled_with_younger_ones(meeting: Meeting) -> None:
    """Step 4 learns with the weights of version 3: of those two steps older, one is not."""
    intake = meeting.intake(oldest=2)
    meeting.explorer.put([make_group(f"v{version}", version=version) for version in (0, 1, 2, 0, 3)])
    found = taken(intake, 4)
    assert found is not None and found[0] == ["v1", "v2", "v3"]
    assert (found[1]["groups/too_old"], found[1]["groups/missing"]) == (1, 0)
    meeting.explorer.put([make_group("late", version=1)])
    later = threading.Timer(0.2, lambda: meeting.explorer.put(make_groups(3, prefix="y", version=4)))
    later.start()
    assert ids(intake.take(5).groups) == ["y0", "y1", "y2"]  # type: ignore[union-attr]
    later.join()
    meeting.explorer.put([make_group("old again", version=0)])
    meeting.explorer.finish()
    assert intake.take(6) is None, "only what is too old was left"
    assert meeting.shifts == [-1, -2, -3], "said at once, for who waits for their steps"
    intake.acknowledge(intake.hand_over(intake.owed))
    assert meeting.explorer.counts() == BufferCounts(0, 0, 9)


def test_an_explorer_that_is_gone_is_no_end(tmp_path: Path) -> None:
    meeting = Meeting(tmp_path, lease_seconds=0.3)
    meeting.explorer._member.stop()  # type: ignore[attr-defined]  # no word of it from here on, as after a kill
    time.sleep(0.4)
    with pytest.raises(WritersGone, match="explorer-0 not heard of"):
        meeting.intake(timeout=0.2).take(1)


def test_killed_between_checkpoint_and_acknowledgement_nothing_is_learned_twice(meeting: Meeting) -> None:
    meeting.explorer.put(make_groups(8))
    first = meeting.intake()
    first.take(1)
    first.acknowledge(first.hand_over(first.owed))
    first.take(2)
    checkpoint = first.owed
    first.take(3)
    second = meeting.intake()  # takes the place, and all that the first held comes back
    second.settle(checkpoint)
    assert taken(second, 3)[0] == ["g6", "g7"]  # type: ignore[index]


def test_by_step_the_padding_is_left_out_and_another_step_refused(meeting: Meeting) -> None:
    intake = ByStep(meeting.open("reader", "trainer"), 3)
    for step in (1, 2, 4):
        groups = [make_group(group_id("train", step, n)) for n in range(2)]
        meeting.explorer.put(padded(groups, step, 3))
    assert [ids(intake.take(step).groups) for step in (1, 2)] == [
        ["train-000001-00000", "train-000001-00001"],
        ["train-000002-00000", "train-000002-00001"],
    ]
    assert len(intake.owed) == 6, "the padding is acknowledged too"
    with pytest.raises(StoreError, match="next step is 3, and the buffer gave groups of step 4"):
        intake.take(3)
    meeting.explorer.finish()
    with pytest.raises(BufferEnded):
        intake.take(3)


def test_a_buffer_that_gives_groups_again(tmp_path: Path) -> None:
    """Newest and least used first: v2 before v1, then what has come since, then the first ones again."""
    values = {"type": "priority", "capacity_groups": 4, "reuse_cooldown_seconds": 0.2, "backup": "b.db"}
    buffer = open_buffer(TypeAdapter(Section).validate_python(values), tmp_path)
    intake = Reusing(buffer, 2, read_timeout_seconds=5.0, max_staleness=3, tell_shift=lambda _: None)
    buffer.put([make_group("v1", version=1), make_group("v2", version=2)])
    first, again = [], []
    for step in (3, 4):
        batch = intake.take(step)
        assert batch is not None
        first.append(sorted(ids(batch.groups)))
        again.append(batch.metrics["groups/again"])
        intake.acknowledge(intake.hand_over(intake.owed))
    assert (first, again) == ([["v1", "v2"], ["v1", "v2"]], [0, 2])
    buffer.put([make_group(f"n{version}", version=version) for version in (5, 6, 7)])
    batch = intake.take(7)
    assert batch is not None
    assert (ids(batch.groups), batch.metrics["groups/evicted"]) == (["n7", "n6"], 1), "v1 gave way"
    time.sleep(0.25)
    batch = intake.take(9)  # n5 is first; then n7 and n6, used once; v2, used twice, would be too old
    assert batch is not None
    assert (ids(batch.groups), batch.metrics["groups/again"]) == (["n5", "n7"], 1)
