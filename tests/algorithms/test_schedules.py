"""Learning rates against transformers' own schedules, at every position."""

from __future__ import annotations

import math

import pytest
import torch
import transformers

from strop.algorithms.schedules import lr_at
from strop.config.schema.trainer import ConstantSchedule, CosineSchedule, LinearSchedule, Schedule

LR = 3e-4
RUNS = [(10, 0), (10, 1), (10, 4), (10, 10), (1, 0), (97, 13), (5, 9)]


def theirs(make, total: int, **arguments) -> list[float]:  # type: ignore[no-untyped-def]
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=LR)
    schedule = make(optimizer, **arguments)
    rates = []
    for _ in range(total):
        rates.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    return rates


def ours(schedule: Schedule, total: int, warmup: int) -> list[float]:
    return [lr_at(schedule, LR, position, total, warmup) for position in range(total)]


@pytest.mark.parametrize(("total", "warmup"), RUNS)
def test_constant(total: int, warmup: int) -> None:
    make = transformers.get_constant_schedule_with_warmup
    expected = theirs(make, total, num_warmup_steps=warmup)
    assert ours(ConstantSchedule(), total, warmup) == pytest.approx(expected)


@pytest.mark.parametrize(("total", "warmup"), RUNS)
def test_linear(total: int, warmup: int) -> None:
    make = transformers.get_linear_schedule_with_warmup
    expected = theirs(make, total, num_warmup_steps=warmup, num_training_steps=total)
    assert ours(LinearSchedule(), total, warmup) == pytest.approx(expected)


@pytest.mark.parametrize(("total", "warmup"), [(10, 0), (10, 4), (97, 13)])
def test_linear_with_a_floor(total: int, warmup: int) -> None:
    make = transformers.get_polynomial_decay_schedule_with_warmup
    expected = theirs(
        make, total, num_warmup_steps=warmup, num_training_steps=total, lr_end=0.1 * LR, power=1.0
    )
    assert ours(LinearSchedule(min_ratio=0.1), total, warmup) == pytest.approx(expected)


@pytest.mark.parametrize(("total", "warmup"), RUNS)
@pytest.mark.parametrize("cycles", [0.5, 1.5, 2.25])
def test_cosine(total: int, warmup: int, cycles: float) -> None:
    make = transformers.get_cosine_schedule_with_warmup
    expected = theirs(make, total, num_warmup_steps=warmup, num_training_steps=total, num_cycles=cycles)
    assert ours(CosineSchedule(cycles=cycles), total, warmup) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("cycles", [0.5, 1.5])
def test_cosine_with_a_floor_is_verls(cycles: float) -> None:
    """verl: x (1 - min) / 2 + (1 + min) / 2, with x the cosine of 2 pi cycles progress."""
    floor, total, warmup = 0.2, 50, 5
    for position in range(warmup, total + 1):
        x = math.cos(math.pi * cycles * 2 * (position - warmup) / (total - warmup))
        expected = LR * max(0.0, x * (1 - floor) * 0.5 + (1 + floor) * 0.5)
        found = lr_at(CosineSchedule(min_ratio=floor, cycles=cycles), LR, position, total, warmup)
        assert found == pytest.approx(expected)


@pytest.mark.parametrize("schedule", [LinearSchedule(min_ratio=0.3), CosineSchedule(min_ratio=0.3)])
def test_it_stays_where_it_ended(schedule: Schedule) -> None:
    assert lr_at(schedule, LR, 20, 20, 2) == pytest.approx(0.3 * LR)
    assert lr_at(schedule, LR, 35, 20, 2) == pytest.approx(0.3 * LR)
