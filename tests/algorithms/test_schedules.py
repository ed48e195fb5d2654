"""Learning rates and weight decays against transformers', verl's and Megatron's, at every position."""

from __future__ import annotations

import math

import pytest
import torch
import transformers

from strop.algorithms.schedules import lr_at, weight_decay_at
from strop.config.schema.optimizer import WeightDecayIncreaseConfig
from strop.config.schema.schedule import (
    ConstantScheduleConfig,
    CosineScheduleConfig,
    CosineWithRestartsScheduleConfig,
    DecayScheduleConfig,
    InverseSqrtScheduleConfig,
    LinearScheduleConfig,
    PolynomialScheduleConfig,
    ScheduleConfig,
    WsdScheduleConfig,
)
from strop.config.units import Amount

LR = 3e-4
RUNS = [(10, 0), (10, 1), (10, 4), (10, 10), (1, 0), (97, 13), (5, 9)]
FALLING = [run for run in RUNS if run[0] > run[1]]


def theirs(make, total: int, **arguments) -> list[float]:  # type: ignore[no-untyped-def]
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=LR)
    schedule = make(optimizer, **arguments)
    rates = []
    for _ in range(total):
        rates.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    return rates


def rate(schedule: ScheduleConfig, position: int, total: int, warmup: int = 0) -> float:
    schedule = schedule.model_copy(update={"warmup": Amount(warmup, "steps")})
    return lr_at(schedule, LR, position, total, count=lambda amount: int(amount.count))


def ours(schedule: ScheduleConfig, total: int, warmup: int) -> list[float]:
    return [rate(schedule, position, total, warmup) for position in range(total)]


@pytest.mark.parametrize(("total", "warmup"), RUNS)
def test_constant(total: int, warmup: int) -> None:
    make = transformers.get_constant_schedule_with_warmup
    expected = theirs(make, total, num_warmup_steps=warmup)
    assert ours(ConstantScheduleConfig(), total, warmup) == pytest.approx(expected)


@pytest.mark.parametrize(("total", "warmup"), RUNS)
def test_linear(total: int, warmup: int) -> None:
    make = transformers.get_linear_schedule_with_warmup
    expected = theirs(make, total, num_warmup_steps=warmup, num_training_steps=total)
    assert ours(LinearScheduleConfig(), total, warmup) == pytest.approx(expected)


@pytest.mark.parametrize(("total", "warmup"), FALLING)
@pytest.mark.parametrize("power", [0.5, 1.0, 2.0, 3.0])
def test_polynomial(total: int, warmup: int, power: float) -> None:
    make = transformers.get_polynomial_decay_schedule_with_warmup
    settings = {"num_warmup_steps": warmup, "num_training_steps": total}
    expected = theirs(make, total, **settings, lr_end=0.1 * LR, power=power)
    assert ours(PolynomialScheduleConfig(min_ratio=0.1, power=power), total, warmup) == pytest.approx(
        expected
    )
    if power == 1:
        assert ours(LinearScheduleConfig(min_ratio=0.1), total, warmup) == pytest.approx(expected)


@pytest.mark.parametrize(("total", "warmup"), RUNS)
@pytest.mark.parametrize("cycles", [0.5, 1.5, 2.25])
def test_cosine(total: int, warmup: int, cycles: float) -> None:
    make = transformers.get_cosine_schedule_with_warmup
    expected = theirs(make, total, num_warmup_steps=warmup, num_training_steps=total, num_cycles=cycles)
    assert ours(CosineScheduleConfig(cycles=cycles), total, warmup) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("total", "warmup"), RUNS)
@pytest.mark.parametrize("cycles", [1, 2, 3])
def test_cosine_with_restarts(total: int, warmup: int, cycles: int) -> None:
    make = transformers.get_cosine_with_hard_restarts_schedule_with_warmup
    expected = theirs(make, total, num_warmup_steps=warmup, num_training_steps=total, num_cycles=cycles)
    found = ours(CosineWithRestartsScheduleConfig(cycles=cycles), total, warmup)
    assert found == pytest.approx(expected, abs=1e-12)
    if warmup < total:
        assert rate(CosineWithRestartsScheduleConfig(cycles=cycles), total, total, warmup) == 0


@pytest.mark.parametrize(("total", "warmup"), RUNS)
@pytest.mark.parametrize("timescale", [None, 3, 50])
def test_inverse_sqrt(total: int, warmup: int, timescale: int | None) -> None:
    expected = theirs(
        transformers.get_inverse_sqrt_schedule, total, num_warmup_steps=warmup, timescale=timescale
    )
    scale = Amount(timescale, "steps") if timescale else None
    assert ours(InverseSqrtScheduleConfig(timescale=scale), total, warmup) == pytest.approx(expected)


@pytest.mark.parametrize("cycles", [0.5, 1.5])
def test_cosine_with_a_minimum_matches_verl(cycles: float) -> None:
    """verl: x (1 - min) / 2 + (1 + min) / 2, with x the cosine of 2 pi cycles progress."""
    floor, total, warmup = 0.2, 50, 5
    for position in range(warmup, total + 1):
        x = math.cos(math.pi * cycles * 2 * (position - warmup) / (total - warmup))
        expected = LR * max(0.0, x * (1 - floor) * 0.5 + (1 + floor) * 0.5)
        found = rate(CosineScheduleConfig(min_ratio=floor, cycles=cycles), position, total, warmup)
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
    schedule = WsdScheduleConfig(min_ratio=floor, decay=Amount(round(100 * (1 - stable)), "%"))
    for position in range(total + 3):
        expected = LR * verl_wsd(position, total, warmup, floor, stable)
        assert rate(schedule, position, total, warmup) == pytest.approx(expected)


def megatron(
    position: int, style: str, *, start: float, floor: float, warmup: int, end: int, anneal: int = 0
) -> float:
    """Megatron-core's `OptimizerParamScheduler.get_lr`, for a rate of 1."""
    if warmup > 0 and position <= warmup:
        return start + (1 - start) * position / warmup
    if position > end:
        return floor
    if style == "inverse-square-root":
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


MEGATRON: list[tuple[DecayScheduleConfig, str]] = [
    (LinearScheduleConfig(), "linear"),
    (CosineScheduleConfig(), "cosine"),
    (InverseSqrtScheduleConfig(), "inverse-square-root"),
    *(
        (WsdScheduleConfig(decay=Amount(12, "steps"), style=style), f"wsd-{style}")
        for style in ("linear", "cosine", "exponential", "minus_sqrt")
    ),
]


@pytest.mark.parametrize(("schedule", "style"), MEGATRON, ids=[style for _, style in MEGATRON])
@pytest.mark.parametrize("floor", [0.0, 0.2])
@pytest.mark.parametrize("start", [0.0, 0.4])
def test_schedules_match_megatron(
    schedule: DecayScheduleConfig, style: str, floor: float, start: float
) -> None:
    total, warmup, end = 60, 7, 41
    settings = {"min_ratio": floor, "start_ratio": start, "length": Amount(end, "steps")}
    schedule = schedule.model_copy(update=settings)
    for position in range(total):
        expected = megatron(position, style, start=start, floor=floor, warmup=warmup, end=end, anneal=12)
        assert rate(schedule, position, total, warmup) == pytest.approx(LR * expected, abs=1e-15)


@pytest.mark.parametrize("style", ["linear", "cosine"])
def test_weight_decay_increase_matches_megatron(style: str) -> None:
    """`get_wd`: start + delta * ratio, or delta * 0.5 * (cos(pi * (1 - ratio)) + 1)."""
    increase, total = WeightDecayIncreaseConfig(style=style, start=0.01), 23
    for position in range(total + 4):
        ratio = min(1.0, position / total)
        height = ratio if style == "linear" else 0.5 * (math.cos(math.pi * (1 - ratio)) + 1)
        assert weight_decay_at(increase, 0.1, position, total) == pytest.approx(0.01 + 0.09 * height)


def test_a_constant_decay_style() -> None:
    assert set(ours(WsdScheduleConfig(style="constant"), 20, 0)) == {LR}


def test_a_decay_longer_than_the_run_starts_after_the_warm_up() -> None:
    wsd = WsdScheduleConfig(decay=Amount(100, "steps"), style="linear")
    assert ours(wsd, 20, 5) == pytest.approx(ours(LinearScheduleConfig(), 20, 5))


@pytest.mark.parametrize(
    "schedule", [LinearScheduleConfig(min_ratio=0.3), CosineScheduleConfig(min_ratio=0.3)]
)
def test_the_rate_stays_after_the_end(schedule: ScheduleConfig) -> None:
    assert rate(schedule, 20, 20, 2) == pytest.approx(0.3 * LR)
    assert rate(schedule, 35, 20, 2) == pytest.approx(0.3 * LR)
