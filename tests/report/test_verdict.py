"""The verdict on a run: changes beyond chance, and what keeps a run from learning."""

from __future__ import annotations

import io
import math
from pathlib import Path

import pytest

from strop.report.build import write_report
from strop.runs.reader import read_run
from strop.runs.verdict import (
    LearningWatch,
    MeanChange,
    evaluation_change,
    learning_faults,
    series_change,
    verdict,
)
from tests.report.run_folders import group, open_recorder

EQUAL = {"reward/mean": 0.0, "groups/zero_variance_fraction": 1.0, "grad_norm": 0.0}
VARIED = {"reward/mean": 0.5, "groups/zero_variance_fraction": 0.2, "grad_norm": 0.7}


def test_equal_rewards_in_all_steps() -> None:
    assert learning_faults([EQUAL] * 2) == []
    (fault,) = learning_faults([EQUAL] * 3)
    assert "equal rewards in all 3 steps (mean reward 0)" in fault and "easier tasks" in fault
    (fault,) = learning_faults([EQUAL | {"reward/mean": 1.0}] * 4)
    assert "harder tasks" in fault
    assert learning_faults([*[EQUAL] * 3, VARIED]) == []
    assert learning_faults([{"eval/sums/reward": 0.0}] * 5) == []


def test_equal_rewards_that_a_pipeline_tells_apart() -> None:
    shaped = EQUAL | {"grad_norm": 0.3, "pipeline/0_length_reward/changed_fraction": 0.5}
    assert learning_faults([shaped] * 3) == []
    kept = EQUAL | {"pipeline/0_length_reward/changed_fraction": 0.0}
    assert "equal rewards" in learning_faults([kept] * 3)[0]


def test_zero_gradients_and_truncated_responses() -> None:
    (fault,) = learning_faults([VARIED | {"grad_norm": 0.0}] * 3)
    assert "The gradient was zero in all 3 steps" in fault
    (fault,) = learning_faults([VARIED | {"rollouts/truncated_fraction": 0.9}] * 3)
    assert "90% of the responses" in fault and "data.max_response_tokens" in fault
    ended = VARIED | {"rollouts/truncated_fraction": 0.1}
    assert learning_faults([VARIED | {"rollouts/truncated_fraction": 1.0}, *[ended] * 3]) == []


@pytest.mark.parametrize(("fraction", "told"), [(0.0, False), (0.004, False), (0.25, True)])
def test_the_verdict_names_truncated_responses_if_there_are_any(
    tmp_path: Path, fraction: float, told: bool
) -> None:
    with open_recorder(tmp_path) as record:
        for step in (1, 2, 3):
            record.log_step(step, {"reward/mean": 0.5, "rollouts/truncated_fraction": fraction})
    assert ("25% of the responses truncated" in verdict(read_run(tmp_path))) == told
    assert ("truncated" in verdict(read_run(tmp_path))) == told


def test_a_watch_reports_once() -> None:
    watch = LearningWatch()
    assert [len(watch.observe(EQUAL)) for _ in range(5)] == [0, 0, 1, 0, 0]


def test_the_change_of_a_series() -> None:
    assert series_change([1.0]) is None
    assert series_change([1.0, 2.0]) == MeanChange(1.0, 2.0, None)
    change = series_change([0, 1, 2, 4, 5, 6])
    # Means 1 and 5; each of the three values has the variance 1, so the error is sqrt(1/3 + 1/3).
    assert change is not None and (change.first, change.last) == (1, 5)
    assert change.standard_error == pytest.approx(math.sqrt(2 / 3)) and change.is_significant


def evaluate(folder: Path, rewards: list[list[float]]) -> Path:
    """A run with one evaluation per list, of as many tasks as the list has rewards."""
    with open_recorder(folder) as record:
        for step, values in enumerate(rewards):
            record.log_evaluation("sums", step, [group(n, ["x"], [value]) for n, value in enumerate(values)])
            record.log_step(step, {"eval/sums/reward": sum(values) / len(values)})
    return folder


def test_evaluations_are_compared_by_task(tmp_path: Path) -> None:
    files = read_run(evaluate(tmp_path, [[0, 0, 1, 1], [1, 0, 1, 1]])).eval_files()["sums"]
    change = evaluation_change(files[0], files[1])
    # Differences 1, 0, 0, 0: mean 0.25, variance 0.25, error sqrt(0.25 / 4).
    assert change == MeanChange(0.5, 0.75, 0.25) and not change.is_significant


def test_verdicts(tmp_path: Path) -> None:
    rising = evaluate(tmp_path / "rising", [[0] * 8, [1] * 4 + [0] * 4, [1] * 7 + [0]])
    assert verdict(read_run(rising)).startswith("sums 0 -> 0.875 (+0.875") and "still rising" in verdict(
        read_run(rising)
    )
    flat = evaluate(tmp_path / "flat", [[0, 0, 1, 1], [1, 0, 1, 1]])
    assert "no change beyond the standard error of 0.250" in verdict(read_run(flat))
    pages = [write_report(folder).read_text() for folder in (rising, flat)]
    assert ['class="value good"' in page for page in pages] == [True, False]
    assert ["sums 0 -&gt; 0.875" in pages[0], "(standard error 0.250)" in pages[1]] == [True, True]


def test_a_run_that_cannot_learn_says_so(tmp_path: Path) -> None:
    stream = io.StringIO()
    with open_recorder(tmp_path, console=stream) as record:
        for step in range(1, 5):
            record.log_step(step, EQUAL)
        record.log_evaluation("sums", 1, [group(1, ["five"], [0.0])])
        record.log_evaluation("sums", 4, [group(1, ["six"], [0.0])])
    assert stream.getvalue().count("warning: All responses to a task had equal rewards in all 3 steps") == 1
    page = write_report(tmp_path).read_text()
    assert 'role="alert">All responses to a task had equal rewards in all 4 steps' in page
    assert "Held out, sums: equal rewards" in page and "six" in page


@pytest.mark.parametrize(
    ("divergences", "is_reported"),
    [([0.5, 1.5, 2.0, 4.0], True), ([1.5, 2.0], False), ([4.0, 3.0, 2.0], False), ([0.1, 0.2, 0.3], False)],
)
def test_a_divergence_that_grows_beyond_a_nat_per_token_is_reported(
    divergences: list[float], is_reported: bool
) -> None:
    rows = [{"grad_norm": 1.0, "reward/mean": 0.5, "kl/ref": value} for value in divergences]
    faults = learning_faults(rows)
    assert bool(faults) is is_reported
    assert all("docs/troubleshooting.md#the-reward-rises-then-collapses" in fault for fault in faults)
