"""How long a run is, and when something is due."""

import itertools

import pytest

from strop.config.schema import Run
from strop.config.schema.algorithm import Ppo
from strop.config.schema.optimizer import AdamW
from strop.config.schema.schedule import ConstantSchedule
from strop.config.units import Amount
from strop.errors import ConfigError
from strop.run.folder import RunState
from strop.run.length import length_of
from strop.run.updates import learning_rate


def run_with(**trainer):
    return Run.model_validate(
        {
            "model": {"path": "m"},
            "data": {"train": {"path": "d"}},
            "reward": "exact",
            "trainer": {"tasks_per_step": 32, "tasks_per_update": 8} | trainer,
        }
    )


@pytest.mark.parametrize(
    ("duration", "passes", "steps", "updates"),
    [
        ("7 steps", 1, 7, 28),
        ("2 epochs", 1, 20, 80),
        ("0.5 epochs", 1, 5, 20),
        ("10 updates", 1, 3, 10),
        ("7 steps", 3, 7, 84),
    ],
)
def test_length_counts_what_the_duration_counts(duration, passes, steps, updates):
    length = length_of(run_with(duration=duration, passes=passes), steps_per_epoch=10)
    assert (length.steps, length.updates) == (steps, updates)


@pytest.mark.parametrize(("duration", "steps", "updates"), [("7 steps", 7, 20), ("10 updates", 5, 10)])
def test_steps_of_the_critic_alone_have_no_updates(duration, steps, updates):
    """Of 4 updates a step, after 2 steps without any; a schedule goes over the rest."""
    run = run_with(duration=duration)
    ppo = Ppo(critic={"warmup_steps": 2})
    length = length_of(run.model_copy(update={"algorithm": ppo}), steps_per_epoch=10)
    assert (length.steps, length.updates, length.learning_steps) == (steps, updates, steps - 2)
    assert length.in_unit(Amount(40, "%"), "steps") == int(0.4 * (steps - 2))
    schedule = ConstantSchedule(warmup=Amount(2, "steps"))
    rates = [learning_rate(AdamW(lr=1.0), schedule, length, step=step, update=0) for step in (3, 4, 5)]
    assert rates == [0.0, 0.5, 1.0]


def test_a_warm_up_of_the_critic_that_is_the_whole_run_is_refused():
    run = run_with(duration="2 steps").model_copy(update={"algorithm": Ppo(critic={"warmup_steps": 2})})
    with pytest.raises(ConfigError, match=r"warmup_steps \(2\) leaves no step of 2"):
        length_of(run, steps_per_epoch=10)


def test_less_than_a_step_is_refused_with_the_sizes():
    with pytest.raises(ConfigError, match=r"less than one step: an epoch has 10 steps of 32 tasks"):
        length_of(run_with(duration="0.01 epochs"), steps_per_epoch=10)


def due_steps(every, updates_per_step=4, steps=20):
    length = length_of(run_with(duration=f"{steps} steps"), steps_per_epoch=10)
    states = [RunState(step, step * updates_per_step, 0) for step in range(steps + 1)]
    return [b.step for a, b in itertools.pairwise(states) if length.is_due(every, a, b)]


def test_something_is_due_whenever_a_multiple_was_reached():
    assert due_steps(Amount(6, "steps")) == [6, 12, 18]
    assert due_steps(Amount(1, "epochs")) == [10, 20]
    assert due_steps(Amount(0.5, "epochs")) == [5, 10, 15, 20]
    assert due_steps(Amount(10, "updates")) == [3, 5, 8, 10, 13, 15, 18, 20]
    assert due_steps(None) == []


def test_warm_up_is_counted_in_the_schedules_own_unit():
    length = length_of(run_with(duration="50 steps"), steps_per_epoch=10)
    assert length.in_unit(Amount(10, "%"), "steps") == 5
    assert length.in_unit(Amount(10, "%"), "updates") == 20
    assert length.in_unit(Amount(3, "steps"), "updates") == 12
    assert length.in_unit(Amount(6, "updates"), "steps") == 2
