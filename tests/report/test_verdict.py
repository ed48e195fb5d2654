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
SHAPED = EQUAL | {"grad_norm": 0.3, "pipeline/0_length_reward/changed_fraction": 0.5}
KEPT = EQUAL | {"pipeline/0_length_reward/changed_fraction": 0.0}
CUT = VARIED | {"rollouts/truncated_fraction": 0.9}
COLLAPSE = "strop help troubleshooting#the-reward-rises-then-collapses"


def diverging(*values: float) -> list[dict[str, float]]:
    return [VARIED | {"kl/ref": value} for value in values]


@pytest.mark.parametrize(
    ("rows", "parts"),
    [
        ([EQUAL] * 2, []),
        ([EQUAL] * 3, ["equal rewards in all 3 steps (mean reward 0)", "easier tasks"]),
        ([EQUAL | {"reward/mean": 1.0}] * 4, ["harder tasks"]),
        ([EQUAL, EQUAL, EQUAL, VARIED], []),
        ([{"eval/sums/reward": 0.0}] * 5, []),
        ([SHAPED] * 3, []),
        ([KEPT] * 3, ["equal rewards"]),
        ([VARIED | {"grad_norm": 0.0}] * 3, ["The gradient was zero in all 3 steps"]),
        ([CUT] * 3, ["90% of the responses", "data.max_response_tokens"]),
        ([CUT, *[VARIED | {"rollouts/truncated_fraction": 0.1}] * 3], []),
        (diverging(0.5, 1.5, 2.0, 4.0), [COLLAPSE]),
        (diverging(1.5, 2.0), []),
        (diverging(4.0, 3.0, 2.0), []),
        (diverging(0.1, 0.2, 0.3), []),
    ],
)
def test_what_keeps_a_run_from_learning(rows: list[dict[str, float]], parts: list[str]) -> None:
    """Equal rewards in all steps that no pipeline distinguishes, zero gradients, truncated responses, and a divergence
    that grows beyond a nat per token."""
    faults = learning_faults(rows)
    assert len(faults) == bool(parts) and all(part in faults[0] for part in parts)


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
    summary = verdict(read_run(rising))
    assert summary.startswith("sums 0 -> 0.875 (+0.875") and "still rising" in summary
    flat = evaluate(tmp_path / "flat", [[0, 0, 1, 1], [1, 0, 1, 1]])
    assert "no change beyond chance, 95% interval -0.24 to +0.74)" in verdict(read_run(flat))
    pages = [write_report(folder).read_text() for folder in (rising, flat)]
    assert ['class="value good"' in page for page in pages] == [True, False]
    assert ["sums 0 -&gt; 0.875" in pages[0], "(standard error 0.250)" in pages[1]] == [True, True]


def tasks(right: int) -> list[float]:
    """Rewards of 200 tasks, of which the first ones are right."""
    return [1.0] * right + [0.0] * (200 - right)


@pytest.mark.parametrize(
    ("right", "course"),
    [
        ([159, 149], "sums 0.795 -> 0.745 (-0.05, 95% interval -0.0803 to -0.0197), fell. Try a smaller"),
        ([159, 120, 149], ", fell; rising again since the evaluation before. Try a smaller"),
        ([159, 3, 3], ", collapsed. Try a smaller trainer.optimizer.lr or a KL term"),
        ([40, 159, 3], ", collapsed. Try"),
        ([40, 159, 40], ", collapsed from its best of 0.795 at step 1. Try"),
        ([40, 159, 120], "(+0.4, 95% interval +0.332 to +0.468), fell from its best of 0.795 at step 1. Try"),
        ([40, 100, 159], ", still rising"),
        ([40, 100, 102], ", flat since the evaluation before"),
        ([40, 38, 43], ", rising since the evaluation before"),
        ([40, 42], "(no change beyond chance, 95% interval"),
    ],
)
def test_a_reward_that_fell_is_not_called_rising_or_flat(
    tmp_path: Path, right: list[int], course: str
) -> None:
    summary = verdict(read_run(evaluate(tmp_path, [tasks(number) for number in right])))
    assert course in summary
    assert ("the-reward-rises-then-collapses" in summary) == ("fell" in course or "collapsed" in course)


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
