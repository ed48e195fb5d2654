"""Length of a run, and when an interval is due."""

import itertools
import math

import pytest

from strop.config.schema import Run
from strop.config.schema.algorithm import PpoConfig
from strop.config.schema.optimizer import AdamWConfig, ConstantScheduleConfig, LinearScheduleConfig
from strop.config.units import Amount
from strop.errors import ConfigError
from strop.run.optimize.policy_optimizer import learning_rate
from strop.run.state.horizon import compute_horizon
from strop.run.state.run_state import RunState


def run_with(**trainer):
    trainer = {"tasks_per_step": 32, "tasks_per_update": 8} | trainer
    values = {"model": {"path": "m"}, "data": {"train": {"path": "d"}}, "reward": "exact", "trainer": trainer}
    return Run.model_validate(values)


@pytest.mark.parametrize(
    ("duration", "epochs_per_step", "steps", "updates"),
    [
        ("7 steps", 1, 7, 28),
        ("2 epochs", 1, 20, 80),
        ("0.5 epochs", 1, 5, 20),
        ("10 updates", 1, 3, 10),
        ("7 steps", 3, 7, 84),
    ],
)
def test_the_horizon_follows_the_unit_of_the_duration(duration, epochs_per_step, steps, updates):
    length = compute_horizon(run_with(duration=duration, epochs_per_step=epochs_per_step), steps_per_epoch=10)
    assert (length.steps, length.updates) == (steps, updates)


@pytest.mark.parametrize(("duration", "steps", "updates"), [("7 steps", 7, 20), ("10 updates", 5, 10)])
def test_critic_warm_up_steps_have_no_policy_updates(duration, steps, updates):
    """A step has 4 updates, the first 2 steps have none; a schedule covers the rest."""
    run = run_with(duration=duration)
    ppo = PpoConfig(critic={"warmup_steps": 2})
    length = compute_horizon(run.model_copy(update={"algorithm": ppo}), steps_per_epoch=10)
    assert (length.steps, length.updates, length.learning_steps) == (steps, updates, steps - 2)
    assert length.in_unit(Amount(40, "%"), "steps") == int(0.4 * (steps - 2))
    schedule = ConstantScheduleConfig(warmup=Amount(2, "steps"))
    rates = [learning_rate(AdamWConfig(lr=1.0), schedule, length, step=step, update=0) for step in (3, 4, 5)]
    assert rates == [0.0, 0.5, 1.0]


def test_less_than_a_step_is_refused_with_the_sizes():
    with pytest.raises(ConfigError, match=r"less than one step: an epoch has 10 steps of 32 tasks"):
        compute_horizon(run_with(duration="0.01 epochs"), steps_per_epoch=10)


def due_steps(every, updates_per_step=4, steps=20):
    length = compute_horizon(run_with(duration=f"{steps} steps"), steps_per_epoch=10)
    states = [RunState(step, step * updates_per_step, 0) for step in range(steps + 1)]
    return [b.step for a, b in itertools.pairwise(states) if length.is_due(every, a, b)]


def test_an_interval_is_due_at_each_multiple():
    assert due_steps(Amount(6, "steps")) == [6, 12, 18]
    assert due_steps(Amount(1, "epochs")) == [10, 20]
    assert due_steps(Amount(0.5, "epochs")) == [5, 10, 15, 20]
    assert due_steps(Amount(10, "updates")) == [3, 5, 8, 10, 13, 15, 18, 20]
    assert due_steps(None) == []


def test_lr_warm_up_is_counted_in_the_unit_of_the_schedule():
    length = compute_horizon(run_with(duration="50 steps"), steps_per_epoch=10)
    assert length.in_unit(Amount(10, "%"), "steps") == 5
    assert length.in_unit(Amount(10, "%"), "updates") == 20
    assert length.in_unit(Amount(3, "steps"), "updates") == 12
    assert length.in_unit(Amount(6, "updates"), "steps") == 2


@pytest.mark.parametrize(
    ("percent", "updates", "down", "up"),
    [(10, 44, 4, 5), (10, 40, 4, 4), (3, 10, 0, 1), (7, 100, 7, 8), (0, 40, 0, 0), (100, 44, 44, 44)],
)
def test_a_fraction_of_a_warm_up_is_rounded_as_each_tool_does(percent, updates, down, up):
    """transformers takes the ceiling of a floating-point product, in which 0.07 * 100 is above 7; verl the floor."""
    length = compute_horizon(run_with(duration=f"{updates} updates"), steps_per_epoch=100)
    assert length.updates == updates
    assert length.in_unit(Amount(percent, "%"), "updates", "down") == int(updates * (percent / 100)) == down
    assert length.in_unit(Amount(percent, "%"), "updates", "up") == math.ceil(updates * (percent / 100)) == up


@pytest.mark.parametrize(
    ("duration", "stop_after", "steps", "scheduled"),
    [
        ("40 steps", "2 epochs", 20, 40),
        ("40 steps", "9 epochs", 40, 40),
        ("3 epochs", "7 steps", 7, 30),
        ("3 epochs", "never", 30, 30),
        ("3 epochs", "0.01 epochs", 1, 30),
    ],
)
def test_a_run_ends_early_and_schedules_do_not(duration, stop_after, steps, scheduled):
    trainer = run_with(duration=duration, stop_after=stop_after).trainer
    length = compute_horizon(run_with(duration=duration, stop_after=stop_after), steps_per_epoch=10)
    assert (length.steps, length.scheduled_steps, length.learning_steps) == (steps, scheduled, scheduled)
    schedule = LinearScheduleConfig(warmup=Amount(10, "%"))
    rate = learning_rate(trainer.optimizer, schedule, length, step=scheduled, update=0)
    assert rate == pytest.approx(trainer.optimizer.lr / (0.9 * scheduled))
