"""Histograms of a reward model's held-out scores, and the calibration of its probabilities."""

from __future__ import annotations

import math
from pathlib import Path

from strop.report.build import read_score_sections
from strop.runs.folder import RunFolder
from strop.runs.held_out_scores import HeldOutScores, write_held_out_scores


def test_scores_that_are_not_finite_are_counted_and_in_no_bin(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    diverged = HeldOutScores(
        "a", 3, {"chosen": [1.0, math.nan], "rejected": [0.0, math.inf]}, [0.75, math.nan]
    )
    nothing = HeldOutScores("b", 3, {"scored": [math.nan]}, [])
    write_held_out_scores(folder.held_out_scores, [diverged, nothing])
    first, second = read_score_sections(folder)
    assert first.title == "a, step 3, without 2 that are NaN or infinite"
    assert [sum(counts) for counts in zip(*(each.counts for each in first.bins), strict=True)] == [1, 1]
    assert [(each.confidence, each.accuracy, each.rows) for each in first.calibration] == [
        ("0.750", "1.000", 1)
    ]
    assert (second.bins, second.calibration) == ([], [])
