"""Where the trainer takes groups as they come: nobody waits for ever, and what `free` bounds.

A run in small, in any order of events. The explorer's steps give any number of groups, some of which are too
old when their turn comes; the buffer gives the oldest first, or the newest.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from hypothesis import example, given
from hypothesis import strategies as st

from strop.config.schema.synchronizer import Free, Style
from strop.sync.style import asks, learned_in, publishes, window

from .test_style import style


@dataclass
class Simulation:
    """Groups are the versions that they were sampled with."""

    style: Style
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
        """To the end, or until nobody can go on."""
        while self.trained < self.last and not (self.explored == self.last and not self.waiting):
            moves = [self.explore] if self._version() is not None and self.answered >= self.asked else []
            is_patient = len(self.waiting) < self.size and self.explored < self.last
            if not is_patient or (moves and self.waiting and not self.whole_steps):
                moves.append(self.train)
            if self.asked > self.answered:
                moves.append(self.answer)
            assert moves, f"nobody can go on: {self}"
            self.draw.choice(moves)()

    def _version(self) -> int | None:
        if self.explored == self.last:
            return None
        step = self.explored + 1
        if asks(self.style, step, self.first):
            self.asked = step
        turn = learned_in(self.put, self.shift, self.size, self.first)
        return window(self.style, turn, self.first).newest(sorted(self.versions))

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
        """A batch if there is one without what is too old; of what is too old nothing is kept."""
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
            self.waiting = batch + self.waiting  # it waits for the rest, which it has in its hands already
            return
        if batch:
            self.learned += len(batch)
            self.staleness = max(self.staleness, *(step - 1 - group for group in batch))
            self.trained = step
            self.shift += self.size - len(batch)
            if publishes(self.style, step, self.last, self.first):
                self.versions.add(step)

    def answer(self) -> None:
        self.versions.add(self.trained)
        self.answered = self.asked


@st.composite
def styles(draw: st.DrawFn) -> Style:
    kind, every = draw(st.sampled_from(["trainer", "explorer", "free"])), draw(st.integers(1, 4))
    if kind == "free":
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
@example(style("free", max_staleness=0), 3, 20, 0, None, False, False, 1)
@example(style("free", max_staleness=1), 2, 20, 1, 0, True, False, 7)
def test_both_come_to_the_end(
    chosen: Style,
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
    assert run.learned + run.thrown + len(run.waiting) == run.put, "each group has one end"
    if oldest is not None:
        assert run.staleness <= oldest
    if isinstance(chosen, Free) and not newest:
        assert run.staleness <= chosen.max_staleness.count + (0 if whole else 1)
