"""Schedules against transformers', verl's, Megatron's and torch's, at every position."""

from __future__ import annotations

import math
from inspect import signature
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from strop.algorithms.schedules import PlateauState, imitation_weight, lr_at, update_plateau, weight_decay_at
from strop.config.schema.algorithm import ImitationScheduleConfig
from strop.config.schema.optimizer import (
    ReduceOnPlateauScheduleConfig,
    ScheduleConfig,
    WeightDecayIncreaseConfig,
)
from strop.config.units import Amount

LR = 3e-4
RUNS = [(10, 0), (10, 1), (10, 4), (10, 10), (1, 0), (97, 13), (5, 9)]
WSD_STYLES = ("linear", "cosine", "exponential", "minus_sqrt")
FALLING = [run for run in RUNS if run[0] > run[1]]


def schedule(kind: str, **settings: Any) -> Any:
    """A section `schedule`."""
    return TypeAdapter(ScheduleConfig).validate_python({"type": kind} | settings)


def rate(of: ScheduleConfig, position: int, total: int, warmup: int = 0) -> float:
    of = of.model_copy(update={"warmup": Amount(warmup, "steps")})
    return lr_at(of, LR, position, total, count=lambda amount, _: int(amount.count))


def ours(of: ScheduleConfig, total: int, warmup: int) -> list[float]:
    return [rate(of, position, total, warmup) for position in range(total)]


def theirs(name: str, total: int, warmup: int, settings: dict[str, Any]) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=LR)
    make = getattr(transformers, f"get_{name}")
    if "num_training_steps" in signature(make).parameters:
        settings = settings | {"num_training_steps": total}
    scheduler, rates = make(optimizer, num_warmup_steps=warmup, **settings), []
    for _ in range(total):
        rates.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    return rates


POWERS = [{"power": power, "lr_end": 0.1 * LR} for power in (0.5, 1.0, 2.0, 3.0)]
POLYNOMIAL = "polynomial_decay_schedule_with_warmup"
TRANSFORMERS = [
    (schedule("constant"), "constant_schedule_with_warmup", {}),
    (schedule("linear"), "linear_schedule_with_warmup", {}),
    (schedule("linear", min_ratio=0.1), POLYNOMIAL, POWERS[1]),
    *((schedule("polynomial", min_ratio=0.1, power=each["power"]), POLYNOMIAL, each) for each in POWERS),
    *(
        (schedule("cosine", cycles=cycles), "cosine_schedule_with_warmup", {"num_cycles": cycles})
        for cycles in (0.5, 1.5, 2.25)
    ),
    *(
        (
            schedule("cosine_with_restarts", cycles=cycles),
            "cosine_with_hard_restarts_schedule_with_warmup",
            {"num_cycles": cycles},
        )
        for cycles in (1, 2, 3)
    ),
    (schedule("inverse_sqrt"), "inverse_sqrt_schedule", {}),
    (schedule("inverse_sqrt", timescale="3 steps"), "inverse_sqrt_schedule", {"timescale": 3}),
    (schedule("inverse_sqrt", timescale="50 steps"), "inverse_sqrt_schedule", {"timescale": 50}),
]


@pytest.mark.parametrize(("of", "name", "settings"), TRANSFORMERS, ids=str)
def test_schedules_match_transformers(of, name, settings):
    for total, warmup in FALLING if name == POLYNOMIAL else RUNS:
        assert ours(of, total, warmup) == pytest.approx(theirs(name, total, warmup, settings))
        if of.type == "cosine_with_restarts" and warmup < total:
            assert rate(of, total, total, warmup) == 0


@pytest.mark.parametrize("cycles", [0.5, 1.5])
def test_cosine_with_a_minimum_matches_verl(cycles: float) -> None:
    """verl: x (1 - min) / 2 + (1 + min) / 2, with x the cosine of 2 pi cycles progress."""
    floor, total, warmup = 0.2, 50, 5
    for position in range(warmup, total + 1):
        x = math.cos(math.pi * cycles * 2 * (position - warmup) / (total - warmup))
        expected = LR * max(0.0, x * (1 - floor) * 0.5 + (1 + floor) * 0.5)
        found = rate(schedule("cosine", min_ratio=floor, cycles=cycles), position, total, warmup)
        assert found == pytest.approx(expected)


def verl_wsd(position: int, total: int, warmup: int, floor: float, stable_ratio: float) -> float:
    stable = int(max(0, total - warmup) * stable_ratio)
    decay = max(0, total - warmup) - stable
    if position < warmup:
        return position / warmup
    if position < warmup + stable:
        return 1.0
    if position < warmup + stable + decay:
        progress = (position - warmup - stable) / decay
        return (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress)) + floor
    return floor


@pytest.mark.parametrize(("total", "warmup"), FALLING)
@pytest.mark.parametrize(("floor", "stable"), [(0.0, 0.9), (0.1, 0.5), (0.3, 0.8)])
def test_wsd_matches_verl(total: int, warmup: int, floor: float, stable: float) -> None:
    wsd = schedule("wsd", min_ratio=floor, decay=f"{round(100 * (1 - stable))}%")
    for position in range(total + 3):
        expected = LR * verl_wsd(position, total, warmup, floor, stable)
        assert rate(wsd, position, total, warmup) == pytest.approx(expected)


def megatron(
    position: int, style: str, *, start: float, floor: float, warmup: int, end: int, anneal: int = 0
) -> float:
    """Megatron-core's `OptimizerParamScheduler.get_lr`, for a rate of 1."""
    if warmup > 0 and position <= warmup:
        return start + (1 - start) * position / warmup
    if position > end:
        return floor
    if style == "inverse_sqrt":
        return max(floor, max(warmup, 1) ** 0.5 / max(position, 1) ** 0.5)
    ratio = (position - warmup) / (end - warmup)
    if style in ("linear", "cosine"):
        height = 1 - ratio if style == "linear" else 0.5 * (math.cos(math.pi * ratio) + 1)
        return floor + height * (1 - floor)
    if position <= end - anneal:
        return 1.0
    part = (position - (end - anneal)) / anneal
    height = {
        "wsd-linear": 1 - part,
        "wsd-cosine": 0.5 * (math.cos(math.pi * part) + 1),
        "wsd-exponential": 2 * 0.5**part - 1,
        "wsd-minus_sqrt": 1 - math.sqrt(part),
    }[style]
    return floor + height * (1 - floor)


@pytest.mark.parametrize(
    "style", ["linear", "cosine", "inverse_sqrt", *(f"wsd-{style}" for style in WSD_STYLES)]
)
@pytest.mark.parametrize("floor", [0.0, 0.2])
@pytest.mark.parametrize("start", [0.0, 0.4])
def test_schedules_match_megatron(style: str, floor: float, start: float) -> None:
    total, warmup, end = 60, 7, 41
    kind, _, wsd = style.partition("-")
    of = schedule(kind, **({"decay": "12 steps", "style": wsd} if wsd else {}))
    of = of.model_copy(update={"min_ratio": floor, "start_ratio": start, "length": Amount(end, "steps")})
    for position in range(total):
        expected = megatron(position, style, start=start, floor=floor, warmup=warmup, end=end, anneal=12)
        assert rate(of, position, total, warmup) == pytest.approx(LR * expected, abs=1e-15)


@pytest.mark.parametrize("style", ["linear", "cosine"])
def test_weight_decay_increase_matches_megatron(style: str) -> None:
    """`get_wd`: start + delta * ratio, or delta * 0.5 * (cos(pi * (1 - ratio)) + 1)."""
    increase, total = WeightDecayIncreaseConfig(style=style, start=0.01), 23
    for position in range(total + 4):
        ratio = min(1.0, position / total)
        height = ratio if style == "linear" else 0.5 * (math.cos(math.pi * (1 - ratio)) + 1)
        assert weight_decay_at(increase, 0.1, position, total) == pytest.approx(0.01 + 0.09 * height)


def test_a_constant_decay_style() -> None:
    assert set(ours(schedule("wsd", style="constant"), 20, 0)) == {LR}


def test_a_decay_longer_than_the_run_starts_after_the_warm_up() -> None:
    wsd = schedule("wsd", decay="100 steps", style="linear")
    assert ours(wsd, 20, 5) == pytest.approx(ours(schedule("linear"), 20, 5))


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_the_rate_stays_after_the_end(kind: str) -> None:
    for position in (20, 35):
        assert rate(schedule(kind, min_ratio=0.3), position, 20, 2) == pytest.approx(0.3 * LR)


def test_the_weight_of_demonstrations_rises_and_decays() -> None:
    schedule = ImitationScheduleConfig(warmup_steps=2, decay_steps=4, final=0.1)
    found = [imitation_weight(step, peak=0.5, schedule=schedule) for step in (1, 2, 3, 4, 6, 9)]
    quarter = 0.1 + 0.4 * (1 + math.sqrt(0.5)) / 2
    assert found == pytest.approx([0.25, 0.5, quarter, 0.3, 0.1, 0.1])


@given(
    values=st.lists(st.sampled_from([-1.0, -0.95, 0.0, 0.2, 0.21, 0.5, 0.9, 1.0]), min_size=1, max_size=40),
    mode=st.sampled_from(["max", "min"]),
    threshold_mode=st.sampled_from(["rel", "abs"]),
    threshold=st.sampled_from([0.0, 1e-4, 0.06]),
    patience=st.integers(0, 3),
    cooldown=st.integers(0, 3),
    min_ratio=st.sampled_from([0.0, 0.2]),
)
def test_reduce_on_plateau_matches_torch(values: list[float], min_ratio: float, **settings: object) -> None:
    schedule = ReduceOnPlateauScheduleConfig.model_validate(
        {**settings, "factor": 0.4, "min_ratio": min_ratio}
    )
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=LR)
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer,
        factor=0.4,
        min_lr=min_ratio * LR,
        eps=0,
        **settings,
    )
    plateau = PlateauState()
    for value in values:
        theirs.step(value)
        plateau = update_plateau(schedule, plateau, value)
        assert LR * plateau.ratio == pytest.approx(optimizer.param_groups[0]["lr"])


def test_reduce_on_plateau_by_hand() -> None:
    """Patience 1: the second evaluation in a row that is no better cuts; the best value stays."""
    schedule = ReduceOnPlateauScheduleConfig(patience=1, factor=0.5)
    plateau = PlateauState()
    ratios = []
    for value in (0.3, 0.3, 0.2, 0.4, 0.4, 0.4):
        plateau = update_plateau(schedule, plateau, value)
        ratios.append(plateau.ratio)
    assert ratios == [1, 1, 0.5, 0.5, 0.5, 0.25]
    assert plateau.best == 0.4
