"""Tests for the simulation of the asynchronous loop, `benchmarks/async_loop.py`, against cases worked by hand.

A response has 10 tokens at a second per token and all run at once, so a step is sampled in 10 s, unless a test says
otherwise.
"""

from __future__ import annotations

import importlib
import random
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from strop.config.schema.buffer import (
    BoundedStyleConfig,
    FixedStyleConfig,
    LatestStyleConfig,
    OnRequestStyleConfig,
    PauseMode,
)
from strop.config.units import Amount

TEN_TOKENS = {"median": 10.0}


@pytest.fixture
def sim(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("async_loop")


def steps(count: int) -> Amount:
    return Amount(count, "steps")


def fixed(max_lead: int = 0, every: int = 1) -> FixedStyleConfig:
    return FixedStyleConfig(max_lead=steps(max_lead), every=steps(every))


def bounded(max_staleness: int, every: int = 1, pause_mode: PauseMode = "keep") -> BoundedStyleConfig:
    return BoundedStyleConfig(max_staleness=steps(max_staleness), every=steps(every), pause_mode=pause_mode)


def loop(
    sim: ModuleType,
    style: object,
    update: float,
    *,
    engines: dict[str, Any] | None = None,
    lengths: dict[str, float] | None = None,
    **others: Any,
) -> Any:
    values: dict[str, Any] = {"prompts": 4, "responses": 2, "polls": False, **others}
    settings = importlib.import_module("async_settings")
    return sim.Loop(
        style=style,
        lengths=settings.Lengths(**(lengths or TEN_TOKENS)),
        engines=settings.Engines(**{"count": 1, "decode": ((1, 1.0),), **(engines or {})}),
        update_seconds=update,
        **values,
    )


def test_without_a_lead_a_step_is_the_sum(sim: ModuleType) -> None:
    run = loop(sim, fixed(), 4.0, engines={"load_seconds": 0.5}, publish_seconds=0.25, explorer_seconds=0.125)
    found = sim.simulate(run, steps=10)
    assert found.seconds_per_step == pytest.approx(10 + 0.125 + 4 + 0.25 + 0.5)
    assert found.trainer_idle == pytest.approx(1 - 4.25 / 14.875)
    assert found.engines_idle == pytest.approx(1 - 10 / 14.875)
    assert found.tokens_per_second == pytest.approx(8 * 10 / 14.875)
    assert found.staleness == {0: 1.0}


@pytest.mark.parametrize("update", [4.0, 10.0, 25.0])
def test_with_a_lead_a_step_is_the_maximum(sim: ModuleType, update: float) -> None:
    found = sim.simulate(loop(sim, fixed(max_lead=1), update), steps=20, first=5)
    assert found.seconds_per_step == pytest.approx(max(10.0, update))
    assert found.staleness == {1: 1.0}
    assert found.trainer_idle == pytest.approx(1 - update / max(10.0, update))


def test_an_interval_of_two_steps_saves_every_second_load(sim: ModuleType) -> None:
    run = loop(sim, fixed(every=2), 4.0, engines={"load_seconds": 1.0}, publish_seconds=1.0)
    found = sim.simulate(run, steps=9, first=1)
    # Two steps of the explorer with one version, while the trainer updates on the first of the two: 10 + 10 + 4 + 2.
    assert found.seconds_per_step == pytest.approx(26 / 2)
    assert found.staleness == {0: 0.5, 1: 0.5}


def test_waits_end_at_the_next_look(sim: ModuleType) -> None:
    found = sim.simulate(loop(sim, fixed(), 4.02, polls=True), steps=10)
    # The explorer waits for 4.02 s, and looks every 0.05 s.
    assert found.seconds_per_step == pytest.approx(10 + 4.05)


@pytest.mark.parametrize("limit", [0, 1, 2, 3])
@pytest.mark.parametrize(("tokens", "update"), [(2.0, 10.0), (10.0, 10.0), (20.0, 4.0)])
def test_a_staleness_bound_is_never_exceeded(
    sim: ModuleType, limit: int, tokens: float, update: float
) -> None:
    run = loop(sim, bounded(limit), update, lengths={"median": tokens, "sigma": 1.0}, prompts=8)
    found = sim.simulate(run, steps=40)
    assert found.max_staleness <= limit
    if limit == 0:
        alternating = sim.simulate(
            loop(sim, fixed(), update, lengths={"median": tokens, "sigma": 1.0}, prompts=8), steps=40
        )
        assert found.seconds_per_step == pytest.approx(alternating.seconds_per_step)


def test_a_fast_explorer_reaches_its_bound_and_the_trainer_never_waits(sim: ModuleType) -> None:
    found = sim.simulate(loop(sim, bounded(2), 25.0), steps=30, first=10)
    assert found.seconds_per_step == pytest.approx(25)
    assert found.trainer_idle == pytest.approx(0)
    assert found.staleness == {2: 1.0}


def test_without_a_bound_the_buffer_bounds_the_staleness(sim: ModuleType) -> None:
    run = loop(sim, LatestStyleConfig(), 25.0, capacity_groups=20)
    found = sim.simulate(run, steps=40, first=20)
    assert found.seconds_per_step == pytest.approx(25)
    # A group waits behind 20 groups of the buffer, which are 5 steps, and 4 that did not fit.
    assert found.max_staleness in (6, 7)


def test_a_request_is_served_when_the_trainer_waits(sim: ModuleType) -> None:
    # All responses of a step end at once, and the next step's request waits for the update on them.
    alternating = sim.simulate(loop(sim, OnRequestStyleConfig(), 4.0), steps=10)
    assert alternating.seconds_per_step == pytest.approx(14)
    assert alternating.staleness == {0: 1.0}
    # With engines of two speeds the request comes while the trainer waits for the slower half of the step.
    engines = {"count": 2, "slow": 1, "slow_factor": 1.25}
    overlapping = sim.simulate(loop(sim, OnRequestStyleConfig(), 4.0, engines=engines), steps=10, first=2)
    assert overlapping.seconds_per_step < 14
    assert 0 < overlapping.mean_staleness <= overlapping.max_staleness == 1


def test_one_straggler_holds_up_a_step_but_not_the_steps_after_it(sim: ModuleType) -> None:
    engines = {"count": 4, "decode": ((1, 1.0), (2, 1.0)), "slow": 1, "slow_factor": 3.0}
    whole = sim.simulate(loop(sim, fixed(), 5.0, engines=engines), steps=20)
    assert whole.seconds_per_step == pytest.approx(30 + 5)
    assert whole.engines_idle == pytest.approx(1 - (30 + 3 * 10) / (4 * 35))
    free = sim.simulate(loop(sim, bounded(3), 5.0, engines=engines), steps=60, first=10)
    # Three engines complete a group in 10 s, one in 30 s: four groups of a step take 12 s.
    assert free.seconds_per_step == pytest.approx(12, rel=0.05)


def test_engines_divide_their_speed_and_queue_what_does_not_fit(sim: ModuleType) -> None:
    # Eight sequences on one engine that runs four, a decoding step of which takes 2 s: two rounds of 20 s.
    engines = {"decode": ((1, 1.0), (3, 1.5), (5, 2.5)), "max_sequences": 4}
    found = sim.simulate(loop(sim, fixed(), 1.0, engines=engines), steps=5)
    assert found.seconds_per_step == pytest.approx(2 * 10 * 2.0 + 1)


def test_a_group_stays_on_one_engine(sim: ModuleType) -> None:
    # Two groups of four on four engines: two of the engines have none.
    engines = {"count": 4}
    found = sim.simulate(loop(sim, fixed(), 10.0, engines=engines, prompts=2, responses=4), steps=5)
    assert found.engines_idle == pytest.approx(1 - 2 * 10 / (4 * 20))


def test_max_concurrent_rollouts_limits_the_explorer(sim: ModuleType) -> None:
    found = sim.simulate(loop(sim, fixed(), 1.0, max_concurrent_rollouts=2), steps=5)
    assert found.seconds_per_step == pytest.approx(4 * 10 + 1)


@pytest.mark.parametrize(
    ("mode", "speed", "seconds"),
    # Groups of one response. The engine of 15 s completes one at 15 s, and the explorer loads version 1 for 1 s. The
    # other engine has 5 of 10 tokens of its second response, the group of step 3. Step 2 ends at 19 s, step 3 4 s after
    # this group: at 21 s, with 5 tokens computed again in 1 s at 22 s, sampled again at 26 s, or waited for at 20 s.
    [
        ("keep", None, 6.0),
        ("keep", 5.0, 7.0),
        ("abort", 5.0, 7.0),
        ("restart", 5.0, 11.0),
        ("finish", 5.0, 5.0),
    ],
)
def test_a_load_treats_running_sequences_by_the_pause_mode(
    sim: ModuleType, mode: PauseMode, speed: float | None, seconds: float
) -> None:
    engines: dict[str, Any] = {"count": 2, "slow": 1, "slow_factor": 1.5, "load_seconds": 1.0}
    if speed is not None:
        engines["prefill_tokens_per_second"] = speed
    run = loop(
        sim, bounded(8, pause_mode=mode), 4.0, engines=engines, prompts=1, responses=1, max_concurrent_rollouts=2
    )  # fmt: skip
    assert sim.simulate(run, steps=3, first=2).seconds_per_step == pytest.approx(seconds)


def test_the_same_seed_gives_the_same_figures(sim: ModuleType) -> None:
    lengths = {"median": 10.0, "sigma": 1.0, "maximum": 60.0}
    one, same, other = (
        sim.simulate(loop(sim, bounded(2), 4.0, lengths=lengths, seed=seed), steps=20) for seed in (1, 1, 2)
    )
    assert one == same != other


def test_inputs_of_the_sweep(sim: ModuleType) -> None:
    sweep = importlib.import_module("async_simulation")
    generator = random.Random(1)
    for sigma in sweep.TAILS.values():
        drawn = [sweep.lengths(sigma).draw(generator) for _ in range(20_000)]
        assert sum(drawn) / len(drawn) == pytest.approx(sweep.MEAN_RESPONSE_TOKENS, rel=0.02)
        assert max(drawn) <= sweep.MAX_RESPONSE_TOKENS
    # One sequence reads 15.23 GB of weights and 3,024 tokens of 57,344 bytes at 60 % of 3.35 TB/s.
    assert sweep.decode_seconds(1) == pytest.approx((15.231e9 + 3024 * 57_344) / 2.01e12, rel=1e-3)
    # 256 x (1,024 + 8 x 4,000) tokens, 4 x 2 FLOP for each of 7.07e9 weights, and attention over 5,024 tokens.
    flops = 256 * 33_024 * 4 * (2 * 7.071e9 + 2 * 28 * 3584 * 5024)
    assert sweep.update_seconds(64) == pytest.approx(flops / (0.4 * 989.4e12 * 64), rel=1e-3)
