"""A trainer that takes groups in order of arrival: no deadlock, and the bound of the style `bounded`.

Simulated runs in a random order of events. The explorer's steps write any number of groups, some of which are
stale when they are taken; the buffer returns the oldest group first, or the newest.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from hypothesis import example, given
from hypothesis import strategies as st

from strop.config.schema.buffer import BoundedStyleConfig, StyleConfig
from strop.sync.staleness_policy import publishes_after, requests_weights, training_step_for, version_window

from .test_staleness_policy import style


@dataclass
class Simulation:
    """A simulated run, whose groups are the versions that sampled them."""

    style: StyleConfig
    size: int
    last: int
    first: int
    max_staleness: int | None
    newest_first: bool
    whole_steps: bool
    draw: random.Random
    waiting: list[int] = field(default_factory=list)
    put: int = 0
    explored: int = 0
    trained: int = 0
    asked: int = 0
    answered: int = 0
    staleness: int = 0
    learned: int = 0
    thrown: int = 0
    shift: int = 0

    def __post_init__(self) -> None:
        self.explored = self.trained = self.first
        self.versions = {0, self.first}

    def run(self) -> None:
        """Run to the end; fails if neither process can proceed."""
        while self.trained < self.last and not (self.explored == self.last and not self.waiting):
            moves = [self.explore] if self._version() is not None and self.answered >= self.asked else []
            is_patient = len(self.waiting) < self.size and self.explored < self.last
            if not is_patient or (moves and self.waiting and not self.whole_steps):
                moves.append(self.train)
            if self.asked > self.answered:
                moves.append(self.answer)
            assert moves, f"neither process can proceed: {self}"
            self.draw.choice(moves)()

    def _version(self) -> int | None:
        if self.explored == self.last:
            return None
        step = self.explored + 1
        if requests_weights(self.style, step, self.first):
            self.asked = step
        turn = training_step_for(self.put, self.shift, self.size, self.first)
        return version_window(self.style, turn, self.first).select_newest(sorted(self.versions))

    def explore(self) -> None:
        version = self._version()
        assert version is not None and version >= self.first
        groups = (
            self.size if self.whole_steps or self.draw.random() < 0.6 else self.draw.randint(0, self.size)
        )
        self.waiting += [version] * groups
        self.put += groups
        self.explored += 1

    def train(self) -> None:
        """Train on a batch, if enough groups are fresh; stale groups are dropped."""
        step, batch = self.trained + 1, []
        while self.waiting and len(batch) < self.size:
            at = max(range(len(self.waiting)), key=self.waiting.__getitem__) if self.newest_first else 0
            group = self.waiting.pop(at)
            if self.max_staleness is not None and step - 1 - group > self.max_staleness:
                self.thrown += 1
                self.shift -= 1
            else:
                batch.append(group)
        is_late = bool(batch) and not self.whole_steps and self.draw.random() < 0.2
        if len(batch) < self.size and self.explored < self.last and not is_late:
            self.waiting = batch + self.waiting  # it waits for the rest of the batch
            return
        if batch:
            self.learned += len(batch)
            self.staleness = max(self.staleness, *(step - 1 - group for group in batch))
            self.trained = step
            self.shift += self.size - len(batch)
            if publishes_after(self.style, step, self.last, self.first):
                self.versions.add(step)

    def answer(self) -> None:
        self.versions.add(self.trained)
        self.answered = self.asked


@st.composite
def styles(draw: st.DrawFn) -> StyleConfig:
    kind, every = draw(st.sampled_from(["latest", "on_request", "bounded"])), draw(st.integers(1, 4))
    if kind == "bounded":
        return style(kind, every=every, max_staleness=draw(st.integers(every - 1, 6)))
    return style(kind, every=every)


@given(
    styles(),
    st.integers(1, 4),
    st.integers(2, 20),
    st.integers(0, 2),
    st.none() | st.integers(0, 4),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2**32),
)
@example(style("bounded", max_staleness=0), 3, 20, 0, None, False, False, 1)
@example(style("bounded", max_staleness=1), 2, 20, 1, 0, True, False, 7)
def test_no_deadlock(
    chosen: StyleConfig,
    size: int,
    steps: int,
    first: int,
    oldest: int | None,
    newest: bool,
    whole: bool,
    seed: int,
) -> None:
    run = Simulation(chosen, size, first + steps, first, oldest, newest, whole, random.Random(seed))
    run.run()
    assert run.learned + run.thrown + len(run.waiting) == run.put, (
        "every group is trained on, dropped or left exactly once"
    )
    if oldest is not None:
        assert run.staleness <= oldest
    if isinstance(chosen, BoundedStyleConfig) and not newest:
        assert run.staleness <= chosen.max_staleness.count + (0 if whole else 1)
