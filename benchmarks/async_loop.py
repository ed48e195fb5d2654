"""Discrete-event simulation of a run with a separate explorer: trainer, engines, buffer and weight transfers.

Which version samples a step, when the trainer publishes one, and which step trains on a group is decided by
`strop.sync.staleness_policy`, as in a run. Each process below names the class that it follows. Not modeled: prompts'
prefill, scoring, filtered groups, priority buffers, failures, and checkpoints.
"""

from __future__ import annotations

import heapq
import math
import random
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import cache, partial

from strop.config.schema.synchronizer import FixedStyleConfig, OnRequestStyleConfig, StyleConfig
from strop.sync.staleness_policy import publishes_after, requests_weights, training_step_for, version_window

WEIGHTS_POLL_SECONDS = 0.05
"""Interval at which a waiting explorer looks for a version: `strop.sync.publish._POLL_SECONDS`."""
TRAINER_POLL_SECONDS = 1.0
"""Interval at which a trainer that waits for groups serves requests: `strop.workers.waiting.MAX_SLEEP_SECONDS`."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lognormal distribution of response lengths in tokens; longer responses are cut at `maximum`."""

    median: float
    sigma: float = 0.0
    """Standard deviation of the logarithm; 0 gives all responses the median's length."""
    maximum: float = math.inf
    base: float = 0.0
    """Constant that is added to each length."""

    def draw(self, generator: random.Random) -> float:
        """Draw one length."""
        drawn = self.median * math.exp(self.sigma * generator.gauss(0.0, 1.0))
        return self.base + min(self.maximum, drawn)


@dataclass(frozen=True, slots=True)
class Engines:
    """Inference engines of one kind."""

    count: int
    decode: tuple[tuple[float, float], ...]
    """Seconds of a decoding step, which adds a token to each running sequence, by number of running sequences:
    points in increasing order, interpolated, and constant outside."""
    max_sequences: int | None = None
    """Maximum number of running sequences of an engine; further ones queue. None for no maximum."""
    load_seconds: float = 0.0
    """Seconds in which all engines load a version; they sample nothing meanwhile."""
    prefill_tokens_per_second: float = math.inf
    """Speed at which an engine computes the KV cache of running sequences again after a load; infinite if it keeps
    the cache."""
    slow: int = 0
    """Number of engines that are slower by `slow_factor`."""
    slow_factor: float = 1.0

    def decode_seconds(self, sequences: int) -> float:
        """Seconds of a decoding step of this many sequences."""
        points = self.decode
        place = bisect_right(points, (sequences, math.inf))
        if place in (0, len(points)):
            return points[min(place, len(points) - 1)][1]
        (x0, y0), (x1, y1) = points[place - 1 : place + 1]
        return y0 + (y1 - y0) * (sequences - x0) / (x1 - x0)


@dataclass(frozen=True, slots=True)
class Loop:
    """A run to simulate."""

    style: StyleConfig
    prompts: int
    """`trainer.tasks_per_step`."""
    responses: int
    """`algorithm.rollouts_per_task`."""
    lengths: Lengths
    engines: Engines
    update_seconds: float
    """Seconds of the trainer's updates of a step."""
    publish_seconds: float = 0.0
    """Seconds in which the trainer publishes a version."""
    trainer_seconds: float = 0.0
    """Seconds of the trainer between a publication and its next step: records, evaluation, checkpoints."""
    explorer_seconds: float = 0.0
    """Seconds of the explorer between the last rollout of a step and its groups in the buffer, under `fixed`."""
    max_concurrent_rollouts: int | None = None
    """`rollout.max_concurrent_rollouts`; None for no limit."""
    capacity_groups: int = 4096
    """`buffer.capacity_groups`."""
    polls: bool = True
    """Whether waits end at the next poll, as in a run, or at once."""
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """Figures of the steps after the first ones."""

    seconds_per_step: float
    tokens_per_second: float
    """Trained response tokens per second."""
    trainer_idle: float
    """Fraction of the time in which the trainer neither updates nor publishes."""
    engines_idle: float
    """Fraction of the engines' time in which they have no running sequence, or load weights."""
    staleness: dict[int, float]
    """Fraction of the sequences by age in steps of the weights that sampled their first token."""

    @property
    def mean_staleness(self) -> float:
        """Mean age, in steps."""
        return sum(age * fraction for age, fraction in self.staleness.items())

    @property
    def max_staleness(self) -> int:
        """Maximum age, in steps."""
        return max(self.staleness)


@dataclass(frozen=True, slots=True)
class _Wait:
    """A process's wait for a condition, which it sees at once or at its next poll; at most until the timeout."""

    condition: Callable[[], bool]
    poll: float = 0.0
    timeout: float = math.inf


_Process = Generator[float | _Wait, None, None]


class _Clock:
    """Events in the order of time, and processes: generators that yield a duration to sleep, or a wait."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._waiting: list[tuple[_Process, _Wait, float]] = []

    def at(self, time: float, call: Callable[[], None]) -> None:
        """Call a function at a time."""
        self._number += 1
        heapq.heappush(self._events, (time, self._number, call))

    def start(self, process: _Process) -> None:
        """Run a process until its end, from its present state."""
        for yielded in process:
            if not isinstance(yielded, _Wait):
                self.at(self.now + yielded, lambda: self.start(process))
                return
            if not yielded.condition():
                self._waiting.append((process, yielded, self.now))
                if yielded.timeout < math.inf:
                    self.at(self.now + yielded.timeout, lambda: None)
                return

    def run(self, until: Callable[[], bool]) -> None:
        """Handle events until a condition holds. Raises RuntimeError if no event is left before."""
        while not until():
            if not self._events:
                raise RuntimeError(f"the simulated run is blocked at {self.now:.3f} s")
            self.now, _, call = heapq.heappop(self._events)
            call()
            while self._resume():
                pass

    def _resume(self) -> bool:
        for place, (process, wait, began) in enumerate(self._waiting):
            timed_out = self.now - began >= wait.timeout
            if timed_out or wait.condition():
                del self._waiting[place]
                late = 0.0 if timed_out or not wait.poll else -(self.now - began) % wait.poll
                self.at(self.now + late, partial(self.start, process))
                return True
        return False


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
        self.clock = _Clock()
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

    def _load(self, version: int) -> _Process:
        """`InterruptibleSampler.load`; nothing is running under `fixed`."""
        if version == self.version:
            return
        mode = getattr(self.loop.style, "pause_mode", "keep")
        if mode == "finish":
            self._admitting = False
            yield _Wait(lambda: all(not engine.pending for engine in self._engines))
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

    def _wait_for(self, find: Callable[[], int | None]) -> _Process:
        """`Subscriber._load_newest`."""
        yield _Wait(lambda: find() is not None, WEIGHTS_POLL_SECONDS * self.loop.polls)
        found = find()
        assert found is not None
        yield from self._load(found)

    # Explorer

    def _stepwise_explorer(self) -> _Process:
        """`StepwiseExplorer`."""
        size = self.loop.prompts
        for step in range(1, self.steps + 1):
            window = version_window(self.loop.style, step)
            assert window.highest is not None
            yield from self._wait_for(partial(self._newest, window.lowest, window.highest))
            for number in range((step - 1) * size, step * size):
                self._start_group(number)
            yield _Wait(lambda: self._sampling == 0)
            yield self.loop.explorer_seconds
            for group in list(self._in_flight):
                self._put(group)

    def _continuous_explorer(self) -> _Process:
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
            yield _Wait(can_start)
            step = number // size + 1
            if requests_weights(loop.style, step) and self._requested < step:
                self._requested = step
                yield _Wait(lambda: self._served == self._requested, WEIGHTS_POLL_SECONDS * loop.polls)
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

    def _trainer(self) -> _Process:
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
                yield _Wait(is_ready, timeout=poll)
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

    def _publish(self, version: int) -> _Process:
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
