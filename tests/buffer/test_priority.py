"""The order of the priority buffer, against cases worked by hand and against sorting everything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strop.buffer.order import Taken
from strop.buffer.priority import Priority, version_of
from strop.errors import BufferEnded
from strop.protocols import BufferCounts
from tests.buffer.conftest import Place
from tests.buffer.groups import ids, make_group


def names(taken: list[Taken]) -> list[str]:
    return [group.id for group, _ in taken]


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_newest_version_comes_first_and_the_older_among_equals() -> None:
    order = Priority(10, None)
    for name, version in [("a1", 1), ("b3", 3), ("c2", 2), ("d3", 3)]:
        assert order.add(make_group(name, version=version), uses=0) == []
    assert names(order.take(3)) == ["b3", "d3", "c2"]
    assert names(order.take(3)) == ["a1"]


def test_a_use_costs_as_much_as_two_versions() -> None:
    order = Priority(10, None)
    order.add(make_group("used once at 5", version=5), uses=1)
    order.add(make_group("fresh at 4", version=4), uses=0)
    order.add(make_group("fresh at 2", version=2), uses=0)
    assert names(order.take(3)) == ["fresh at 4", "used once at 5", "fresh at 2"]


def test_the_lowest_gives_way_when_it_is_full() -> None:
    order = Priority(2, None)
    order.add(make_group("old", version=1), uses=0)
    order.add(make_group("new", version=3), uses=0)
    assert order.add(make_group("newer", version=4), uses=0) == ["old"]
    assert order.add(make_group("late", version=0), uses=0) == ["late"]
    assert names(order.take(5)) == ["newer", "new"]


def test_read_groups_come_back_after_the_cooldown() -> None:
    clock = Clock()
    order = Priority(10, 5.0, clock)
    order.add(make_group("a", version=3), uses=0)
    order.add(make_group("b", version=2), uses=0)
    assert names(order.take(1)) == ["a"]
    assert (order.ready(), len(order), order.seconds_to_next()) == (1, 2, 5.0)
    clock.now = 4.9
    assert names(order.take(2)) == ["b"]  # a has 3 - 2 and cools down
    clock.now = 5.0
    assert names(order.take(2)) == ["a"]
    clock.now = 10.0
    assert names(order.take(2)) == ["b", "a"]  # 2 - 2 * 1 and 3 - 2 * 2
    assert order.comes_back("a")


def test_without_a_cooldown_nothing_comes_back() -> None:
    order = Priority(10, None)
    order.add(make_group("a"), uses=0)
    order.take(1)
    assert (len(order), order.comes_back("a"), order.seconds_to_next()) == (0, False, float("inf"))


def test_a_cooldown_of_zero_lets_a_group_be_read_again_at_once() -> None:
    order = Priority(10, 0.0)
    order.add(make_group("a"), uses=0)
    assert [names(order.take(1)) for _ in range(3)] == [["a"]] * 3


def test_what_is_discarded_does_not_come_back() -> None:
    order = Priority(10, 0.0)
    for name in "ab":
        order.add(make_group(name), uses=0)
    order.take(1)
    order.remove(["a", "never seen"])
    assert (names(order.take(2)), order.comes_back("a")) == (["b"], False)


def test_a_groups_version_is_its_oldest() -> None:
    group = make_group("a", version=4)
    assert version_of(group) == 4
    assert version_of(make_group("empty", experiences=0)) == 0


adds = st.tuples(st.just("add"), st.integers(0, 6), st.integers(0, 3))
takes = st.tuples(st.just("take"), st.integers(0, 4), st.just(0))


@dataclass
class Model:
    """The same, by sorting everything anew each time."""

    capacity: int
    held: list[tuple[int, int, str]] = field(default_factory=list)

    def add(self, priority: int, number: int, name: str) -> list[str]:
        self.held.append((priority, -number, name))
        self.held.sort()
        return [self.held.pop(0)[2]] if len(self.held) > self.capacity else []

    def take(self, count: int) -> list[str]:
        taken = sorted(self.held, reverse=True)[:count]
        self.held = [entry for entry in self.held if entry not in taken]
        return [name for _, _, name in taken]


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 5), st.lists(adds | takes, max_size=30))
def test_it_is_a_sorted_list(capacity: int, actions: list[tuple[str, int, int]]) -> None:
    order, model = Priority(capacity, None), Model(capacity)
    for number, (action, value, uses) in enumerate(actions):
        if action == "add":
            group = make_group(f"g{number}", version=value, experiences=1)
            assert order.add(group, uses) == model.add(value - 2 * uses, number, group.id)
        else:
            assert names(order.take(value)) == model.take(value)


@pytest.mark.parametrize("kind", ["priority-sqlite", "priority-jsonl"])
def test_uses_are_kept_in_the_backup(kind: str, place_of: Callable[[str], Place]) -> None:
    place = place_of(kind)
    first = place.open(reuse_cooldown_seconds=0.0)
    first.put([make_group("a", version=3)])
    for _ in range(2):
        first.take(1)
        first.acknowledge(["a"])
    first.take(1)  # not acknowledged: did not happen
    first.put([make_group("b", version=0)])
    first.close()
    second = place.open(reuse_cooldown_seconds=0.0)
    second.put([make_group("c", version=-2)])
    assert ids(second.take(3)) == ["b", "a", "c"]  # 0, 3 - 2 * 2, -2


def test_evictions_are_counted_and_said(
    place_of: Callable[[str], Place], caplog: pytest.LogCaptureFixture
) -> None:
    buffer = place_of("priority").open(capacity_groups=2)
    buffer.put([make_group(f"v{version}", version=version) for version in range(5)])
    assert buffer.counts() == BufferCounts(queued=2, claimed=0, done=0, evicted=3)
    assert "gives way" in caplog.text
    assert ids(buffer.take(2)) == ["v4", "v3"]


def test_after_the_end_what_was_read_does_not_come_back(place_of: Callable[[str], Place]) -> None:
    buffer = place_of("priority").open(reuse_cooldown_seconds=0.05)
    buffer.put([make_group("a", version=1), make_group("b", version=0)])
    assert ids(buffer.take(1)) == ["a"]
    buffer.finish()
    assert ids(buffer.take(2)) == ["b"]
    with pytest.raises(BufferEnded):
        buffer.take(1)
    buffer.acknowledge(["a", "b"])
    assert buffer.counts() == BufferCounts(0, 0, done=2)


def test_a_reader_waits_for_a_cooldown(place_of: Callable[[str], Place]) -> None:
    buffer = place_of("priority").open(reuse_cooldown_seconds=0.1)
    buffer.put([make_group("a")])
    assert [ids(buffer.take(1)) for _ in range(3)] == [["a"]] * 3
