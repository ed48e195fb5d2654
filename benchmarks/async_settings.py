"""Settings of a simulated run with a separate explorer (`async_loop.py`), and the figures that it results in."""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from dataclasses import dataclass

from strop.config.schema.buffer import StyleConfig


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
