"""Discrete-event simulation of a run with a separate explorer: trainer, engines, buffer and weight transfers.

Which version samples a step, when the trainer publishes one, and which step trains on a group is decided by
`strop.sync.staleness_policy`, as in a run. Each process below names the class that it follows. Not modeled: prompts'
prefill, scoring, filtered groups, priority buffers, failures, and checkpoints.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial

from async_settings import Loop, Outcome
from event_clock import Clock, Process, Wait

from strop.config.schema.buffer import FixedStyleConfig, OnRequestStyleConfig
from strop.sync.staleness_policy import publishes_after, requests_weights, training_step_for, version_window

WEIGHTS_POLL_SECONDS = 0.05
"""Interval at which a waiting explorer looks for a version: `strop.sync.subscribe._POLL_SECONDS`."""
TRAINER_POLL_SECONDS = 1.0
"""Interval at which a trainer that waits for groups serves requests: `strop.workers.waiting.MAX_SLEEP_SECONDS`."""


@dataclass(slots=True, eq=False)
class _Group:
    number: int
    """Position among all groups, from 0."""
    version: int
    """Version with which the group was started."""
    unfinished: int
    sequences: list[_Sequence] = field(default_factory=list)
    engine: _Engine | None = None
    """Engine that has sequences of the group pending."""
    pending: int = 0
    """Number of sequences that the engine has."""


@dataclass(slots=True, eq=False)
class _Sequence:
    group: _Group
    length: float
    version: int = -1
    """Version that sampled the first token."""


class _Engine:
    """One engine: all running sequences advance by a token in each decoding step."""

    def __init__(self, simulation: _Simulation, number: int, factor: float) -> None:
        self.number = number
        self._simulation = simulation
        self._factor = factor
        self._decoded = 0.0
        """Tokens that a sequence would have which ran from the start."""
        self._changed = 0.0
        self._paused_until = 0.0
        self._plan = 0
        """Number of the planned completion; earlier plans are void."""
        self._queue: deque[_Sequence] = deque()
        self._running: list[tuple[float, int, _Sequence]] = []
        self._admitted = 0
        self._busy = False
        self.pending = 0
        """Number of running and queued sequences."""

    def submit(self, sequence: _Sequence) -> None:
        """Run a sequence, or queue it."""
        self._advance()
        self.pending += 1
        self._queue.append(sequence)
        self._admit()

    def pause(self, seconds: float) -> None:
        """Load weights for some seconds, and compute the KV cache of the running sequences again."""
        self._advance()
        speed = self._simulation.loop.engines.prefill_tokens_per_second
        tokens = sum(each.length - (end - self._decoded) for end, _, each in self._running)
        self._paused_until = self._simulation.clock.now + seconds + tokens / speed
        self._update_busy()
        self._simulation.clock.at(self._paused_until, self._update_busy)
        self._schedule()

    def restart(self) -> None:
        """Sample the running sequences again from their beginning."""
        self._advance()
        self._queue.extendleft(each for _, _, each in reversed(self._running))
        self._running.clear()
        self._admit()

    def _advance(self) -> None:
        now = self._simulation.clock.now
        elapsed = now - max(self._changed, min(self._paused_until, now))
        if self._running:
            self._decoded += elapsed / self._step_seconds()
        self._changed = now

    def _step_seconds(self) -> float:
        return self._simulation.decode_seconds(len(self._running)) * self._factor

    def _admit(self) -> None:
        limit = self._simulation.loop.engines.max_sequences or math.inf
        while self._queue and len(self._running) < limit:
            sequence = self._queue.popleft()
            sequence.version = self._simulation.version
            self._admitted += 1
            heapq.heappush(self._running, (self._decoded + sequence.length, self._admitted, sequence))
        self._update_busy()
        self._schedule()

    def _schedule(self) -> None:
        self._plan += 1
        if self._running:
            plan, tokens = self._plan, self._running[0][0] - self._decoded
            start = max(self._simulation.clock.now, self._paused_until)
            self._simulation.clock.at(
                start + max(0.0, tokens) * self._step_seconds(), lambda: self._complete(plan)
            )

    def _complete(self, plan: int) -> None:
        if plan != self._plan:
            return
        self._advance()
        self._decoded, _, sequence = heapq.heappop(self._running)
        self.pending -= 1
        self._admit()
        self._simulation.complete(sequence, self)

    def _update_busy(self) -> None:
        busy = bool(self._running) and self._simulation.clock.now >= self._paused_until
        self._simulation.count_busy(busy - self._busy)
        self._busy = busy


@dataclass(frozen=True, slots=True)
class _StepEnd:
    """Sums at the end of a step of the trainer."""

    time: float
    trainer_busy: float
    engines_busy: float
    tokens: float


class _Simulation:
    def __init__(self, loop: Loop, steps: int) -> None:
        self.loop = loop
        self.steps = steps
        self.clock = Clock()
        self.version = 0
        """Version of the engines' weights."""
        self.step_ends = [_StepEnd(0.0, 0.0, 0.0, 0.0)]
        self.ages: dict[int, list[int]] = {}
        """Ages of each step's sequences."""
        self.decode_seconds = cache(loop.engines.decode_seconds)
        self._random = random.Random(loop.seed)
        section = loop.engines
        factors = [section.slow_factor] * section.slow + [1.0] * (section.count - section.slow)
        self._engines = [_Engine(self, number, factor) for number, factor in enumerate(factors)]
        self._least_loaded = [(0, number) for number in range(section.count)]
        self._published = {0}
        self._buffer: deque[_Group] = deque()
        self._unwritten: deque[_Group] = deque()
        """Groups that wait for free capacity in the buffer."""
        self._written = 0
        self._in_flight: dict[_Group, None] = {}
        self._sampling = 0
        """Number of rollouts that have started and not ended."""
        self._slots = loop.max_concurrent_rollouts or math.inf
        self._waiting: deque[_Sequence] = deque()
        """Rollouts that wait for `max_concurrent_rollouts`, or for a load under `pause_mode: finish`."""
        self._requested = self._served = 0
        self._admitting = True
        self._busy_engines = 0
        self._busy_since = self._engines_busy = self._trainer_busy = self._tokens = 0.0

    def run(self) -> None:
        """Run all steps."""
        fixed = isinstance(self.loop.style, FixedStyleConfig)
        self.clock.start(self._trainer())
        self.clock.start(self._stepwise_explorer() if fixed else self._continuous_explorer())
        self.clock.run(lambda: len(self.step_ends) > self.steps)

    def count_busy(self, change: int) -> None:
        """Count engines that have become busy (1) or idle (-1)."""
        self._engines_busy += self._busy_engines * (self.clock.now - self._busy_since)
        self._busy_since = self.clock.now
        self._busy_engines += change

    def complete(self, sequence: _Sequence, engine: _Engine) -> None:
        """Note that a sequence is complete, and its group if it is the last one."""
        group = sequence.group
        group.pending -= 1
        self._note_load(engine)
        self._slots += 1
        self._sampling -= 1
        group.unfinished -= 1
        if not group.unfinished and not isinstance(self.loop.style, FixedStyleConfig):
            self._put(group)
        self._dispatch()

    # Engines

    def _start_group(self, number: int) -> None:
        """`Explorer.start_group`."""
        group = _Group(number, self.version, self.loop.responses)
        group.sequences = [
            _Sequence(group, self.loop.lengths.draw(self._random)) for _ in range(self.loop.responses)
        ]
        self._in_flight[group] = None
        self._sampling += self.loop.responses
        self._waiting.extend(group.sequences)
        self._dispatch()

    def _dispatch(self) -> None:
        """`EnginePool._choose`: a group's sequences go to one engine, the one with the fewest when they start."""
        while self._waiting and self._slots > 0 and self._admitting:
            sequence = self._waiting.popleft()
            self._slots -= 1
            group = sequence.group
            if group.engine is None or not group.pending:
                group.engine = self._choose()
            group.pending += 1
            group.engine.submit(sequence)
            self._note_load(group.engine)

    def _choose(self) -> _Engine:
        while True:
            pending, number = self._least_loaded[0]
            if self._engines[number].pending == pending:
                return self._engines[number]
            heapq.heappop(self._least_loaded)

    def _note_load(self, engine: _Engine) -> None:
        heapq.heappush(self._least_loaded, (engine.pending, engine.number))

    # Weights

    def _load(self, version: int) -> Process:
        """`InterruptibleSampler.load`; nothing is running under `fixed`."""
        if version == self.version:
            return
        mode = getattr(self.loop.style, "pause_mode", "keep")
        if mode == "finish":
            self._admitting = False
            yield Wait(lambda: all(not engine.pending for engine in self._engines))
        self.version = version
        for engine in self._engines:
            if mode == "restart":
                engine.restart()
            engine.pause(self.loop.engines.load_seconds)
        yield self.loop.engines.load_seconds
        self._admitting = True
        self._dispatch()

    def _newest(self, lowest: int, highest: float = math.inf) -> int | None:
        return max((v for v in {*self._published, self.version} if lowest <= v <= highest), default=None)

    def _wait_for(self, find: Callable[[], int | None]) -> Process:
        """`Subscriber._load_newest`."""
        yield Wait(lambda: find() is not None, WEIGHTS_POLL_SECONDS * self.loop.polls)
        found = find()
        assert found is not None
        yield from self._load(found)

    # Explorer

    def _stepwise_explorer(self) -> Process:
        """`StepwiseExplorer`."""
        size = self.loop.prompts
        for step in range(1, self.steps + 1):
            window = version_window(self.loop.style, step)
            assert window.highest is not None
            yield from self._wait_for(partial(self._newest, window.lowest, window.highest))
            for number in range((step - 1) * size, step * size):
                self._start_group(number)
            yield Wait(lambda: self._sampling == 0)
            yield self.loop.explorer_seconds
            for group in list(self._in_flight):
                self._put(group)

    def _continuous_explorer(self) -> Process:
        """`ContinuousExplorer`."""
        loop, size = self.loop, self.loop.prompts
        max_rollouts = loop.max_concurrent_rollouts or size * loop.responses
        max_groups = 2 * max(size, -(-max_rollouts // loop.responses))

        def lowest() -> int:
            ahead = self._written + len(self._in_flight)
            return version_window(loop.style, training_step_for(ahead, 0, size)).lowest

        def can_start() -> bool:
            has_capacity = self._sampling < max_rollouts and len(self._in_flight) < max_groups
            if not has_capacity or self._unwritten:
                return False
            oldest = next(iter(self._in_flight), None)
            return oldest is None or oldest.version >= lowest()

        for number in range(self.steps * size):
            yield Wait(can_start)
            step = number // size + 1
            if requests_weights(loop.style, step) and self._requested < step:
                self._requested = step
                yield Wait(lambda: self._served == self._requested, WEIGHTS_POLL_SECONDS * loop.polls)
            yield from self._wait_for(lambda: self._newest(lowest()))
            self._start_group(number)

    def _put(self, group: _Group) -> None:
        del self._in_flight[group]
        self._written += 1
        self._unwritten.append(group)
        self._fill_buffer()

    def _fill_buffer(self) -> None:
        while self._unwritten and len(self._buffer) < self.loop.capacity_groups:
            self._buffer.append(self._unwritten.popleft())

    # Trainer

    def _trainer(self) -> Process:
        """`TrainLoop` with `StepSource` or `ArrivalSource`, and `Publisher`."""
        loop, size = self.loop, self.loop.prompts

        def is_ready() -> bool:
            return len(self._buffer) >= size

        for step in range(1, self.steps + 1):
            while not is_ready():
                if self._requested > self._served:
                    yield from self._publish(step - 1)
                    self._served = self._requested
                poll = TRAINER_POLL_SECONDS if isinstance(loop.style, OnRequestStyleConfig) else math.inf
                yield Wait(is_ready, timeout=poll)
            groups = [self._buffer.popleft() for _ in range(size)]
            self._fill_buffer()
            self.ages[step] = [step - 1 - each.version for group in groups for each in group.sequences]
            self._tokens += sum(each.length for group in groups for each in group.sequences)
            yield loop.update_seconds
            self._trainer_busy += loop.update_seconds
            if self._requested > self._served or publishes_after(loop.style, step, self.steps):
                yield from self._publish(step)
                self._served = self._requested
            yield loop.trainer_seconds
            self.count_busy(0)
            self.step_ends.append(
                _StepEnd(self.clock.now, self._trainer_busy, self._engines_busy, self._tokens)
            )

    def _publish(self, version: int) -> Process:
        yield self.loop.publish_seconds
        self._trainer_busy += self.loop.publish_seconds
        self._published.add(version)


def simulate(loop: Loop, *, steps: int, first: int = 1, beyond: int | None = None) -> Outcome:
    """Simulate a run, and return the figures of its steps after the first ones up to `steps`.

    The run has `beyond` further steps, so that its end has no influence; by default those that the buffer may hold.
    """
    if beyond is None:
        beyond = 3 + (loop.style.max_buffered_steps or loop.capacity_groups // loop.prompts)
    simulation = _Simulation(loop, steps + beyond)
    simulation.run()
    begin, end = simulation.step_ends[first], simulation.step_ends[steps]
    seconds = end.time - begin.time
    ages = Counter(age for step in range(first + 1, steps + 1) for age in simulation.ages[step])
    return Outcome(
        seconds_per_step=seconds / (steps - first),
        tokens_per_second=(end.tokens - begin.tokens) / seconds,
        trainer_idle=1 - (end.trainer_busy - begin.trainer_busy) / seconds,
        engines_idle=1 - (end.engines_busy - begin.engines_busy) / seconds / loop.engines.count,
        staleness={age: number / ages.total() for age, number in sorted(ages.items())},
    )
