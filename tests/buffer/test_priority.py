"""The order of the priority policy, compared with cases worked by hand and with a sort."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strop.buffer.queue_policy import PriorityPolicy, TakenGroup, oldest_version
from strop.errors import BufferExhausted
from strop.protocols import BufferCounts
from tests.buffer.conftest import Place
from tests.buffer.groups import ids, make_group


def names(taken: list[TakenGroup]) -> list[str]:
    return [group.id for group, _ in taken]


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_newest_version_is_first_and_of_equals_the_older() -> None:
    policy = PriorityPolicy(10, None)
    for name, version in [("a1", 1), ("b3", 3), ("c2", 2), ("d3", 3)]:
        assert policy.add(make_group(name, version=version), uses=0) == []
    assert names(policy.take(3)) == ["b3", "d3", "c2"]
    assert names(policy.take(3)) == ["a1"]


def test_a_use_costs_as_much_as_two_versions() -> None:
    policy = PriorityPolicy(10, None)
    policy.add(make_group("used once at 5", version=5), uses=1)
    policy.add(make_group("fresh at 4", version=4), uses=0)
    policy.add(make_group("fresh at 2", version=2), uses=0)
    assert names(policy.take(3)) == ["fresh at 4", "used once at 5", "fresh at 2"]


def test_a_full_policy_evicts_the_lowest() -> None:
    policy = PriorityPolicy(2, None)
    policy.add(make_group("old", version=1), uses=0)
    policy.add(make_group("new", version=3), uses=0)
    assert policy.add(make_group("newer", version=4), uses=0) == ["old"]
    assert policy.add(make_group("late", version=0), uses=0) == ["late"]
    assert names(policy.take(5)) == ["newer", "new"]


def test_taken_groups_are_ready_again_after_the_cooldown() -> None:
    clock = Clock()
    policy = PriorityPolicy(10, 5.0, clock)
    policy.add(make_group("a", version=3), uses=0)
    policy.add(make_group("b", version=2), uses=0)
    assert names(policy.take(1)) == ["a"]
    assert (policy.ready_count(), len(policy), policy.seconds_until_ready()) == (1, 2, 5.0)
    clock.now = 4.9
    assert names(policy.take(2)) == ["b"]  # a has 3 - 2 and cools down
    clock.now = 5.0
    assert names(policy.take(2)) == ["a"]
    clock.now = 10.0
    assert names(policy.take(2)) == ["b", "a"]  # 2 - 2 * 1 and 3 - 2 * 2
    assert policy.is_reusable("a")


def test_without_a_cooldown_no_group_is_reused() -> None:
    policy = PriorityPolicy(10, None)
    policy.add(make_group("a"), uses=0)
    policy.take(1)
    assert (len(policy), policy.is_reusable("a"), policy.seconds_until_ready()) == (0, False, float("inf"))


def test_a_cooldown_of_zero_makes_groups_ready_at_once() -> None:
    policy = PriorityPolicy(10, 0.0)
    policy.add(make_group("a"), uses=0)
    assert [names(policy.take(1)) for _ in range(3)] == [["a"]] * 3


def test_removed_groups_are_not_reused() -> None:
    policy = PriorityPolicy(10, 0.0)
    for name in "ab":
        policy.add(make_group(name), uses=0)
    policy.take(1)
    policy.remove(["a", "unknown"])
    assert (names(policy.take(2)), policy.is_reusable("a")) == (["b"], False)


def test_a_groups_version_is_its_oldest() -> None:
    group = make_group("a", version=4)
    assert oldest_version(group) == 4
    assert oldest_version(make_group("empty", experiences=0)) == 0


adds = st.tuples(st.just("add"), st.integers(0, 6), st.integers(0, 3))
takes = st.tuples(st.just("take"), st.integers(0, 4), st.just(0))


@dataclass
class Model:
    """A reference implementation that sorts all groups every time."""

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
def test_the_policy_equals_a_sorted_list(capacity: int, actions: list[tuple[str, int, int]]) -> None:
    policy, model = PriorityPolicy(capacity, None), Model(capacity)
    for number, (action, value, uses) in enumerate(actions):
        if action == "add":
            group = make_group(f"g{number}", version=value, experiences=1)
            assert policy.add(group, uses) == model.add(value - 2 * uses, number, group.id)
        else:
            assert names(policy.take(value)) == model.take(value)


@pytest.mark.parametrize("kind", ["priority-sqlite", "priority-jsonl"])
def test_uses_are_kept_in_the_backup(kind: str, place_of: Callable[[str], Place]) -> None:
    place = place_of(kind)
    first = place.open(reuse_cooldown_seconds=0.0)
    first.put([make_group("a", version=3)])
    for _ in range(2):
        first.take(1)
        first.acknowledge(["a"])
    first.take(1)  # not acknowledged, so the use does not count
    first.put([make_group("b", version=0)])
    first.close()
    second = place.open(reuse_cooldown_seconds=0.0)
    second.put([make_group("c", version=-2)])
    assert ids(second.take(3)) == ["b", "a", "c"]  # 0, 3 - 2 * 2, -2


def test_evictions_are_counted_and_logged(
    place_of: Callable[[str], Place], caplog: pytest.LogCaptureFixture
) -> None:
    buffer = place_of("priority").open(capacity_groups=2)
    buffer.put([make_group(f"v{version}", version=version) for version in range(5)])
    assert buffer.counts() == BufferCounts(queued=2, leased=0, done=0, evicted=3)
    assert "evicts the group of lowest priority" in caplog.text
    assert ids(buffer.take(2)) == ["v4", "v3"]


def test_after_finish_no_group_is_reused(place_of: Callable[[str], Place]) -> None:
    buffer = place_of("priority").open(reuse_cooldown_seconds=0.05)
    buffer.put([make_group("a", version=1), make_group("b", version=0)])
    assert ids(buffer.take(1)) == ["a"]
    buffer.finish()
    assert ids(buffer.take(2)) == ["b"]
    with pytest.raises(BufferExhausted):
        buffer.take(1)
    buffer.acknowledge(["a", "b"])
    assert buffer.counts() == BufferCounts(0, 0, done=2)


def test_a_reader_waits_for_a_cooldown(place_of: Callable[[str], Place]) -> None:
    buffer = place_of("priority").open(reuse_cooldown_seconds=0.1)
    buffer.put([make_group("a")])
    assert [ids(buffer.take(1)) for _ in range(3)] == [["a"]] * 3
