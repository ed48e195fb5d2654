"""Section of a report on a reward model: histograms of held-out scores, and calibration of its probabilities."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from strop.runs.folder import RunFolder
from strop.runs.formatting import format_number
from strop.runs.held_out_scores import HeldOutScores, read_held_out_scores

_BINS = 16
_CALIBRATION_BINS = 10
"""Bins of the confidence between 1/2 and 1, as of the metric `calibration_error`."""


@dataclass(frozen=True, slots=True)
class ScoreBin:
    """Rows whose score is between two edges."""

    edge: str
    """Lower edge."""
    counts: Sequence[int]
    """Number of rows of each kind."""
    percents: Sequence[float]
    """Lengths of the bars, in percent of the longest one."""


@dataclass(frozen=True, slots=True)
class CalibrationBin:
    """Rows on whose outcome the model is about equally confident."""

    confidence: str
    """Mean probability of the more probable outcome."""
    accuracy: str
    """Fraction of rows with that outcome."""
    rows: int
    percents: tuple[float, float]
    """Confidence and accuracy, in percent."""


@dataclass(frozen=True, slots=True)
class ScoreSection:
    """Scores of one eval taskset."""

    title: str
    kinds: Sequence[str]
    bins: Sequence[ScoreBin]
    calibration: Sequence[CalibrationBin]
    """Empty for responses with a score."""


def read_score_sections(folder: RunFolder) -> list[ScoreSection]:
    """The section of each eval taskset of a reward model. Raises `RunFolderError` for a damaged file."""
    return [_section(each) for each in read_held_out_scores(folder.held_out_scores)]


def _section(found: HeldOutScores) -> ScoreSection:
    """The section of a taskset; a model that has diverged has scores that are in no bin."""
    finite = {
        kind: [score for score in scores if math.isfinite(score)] for kind, scores in found.scores.items()
    }
    others = sum(map(len, found.scores.values())) - sum(map(len, finite.values()))
    return ScoreSection(
        title=f"{found.taskset}, step {found.step}{f', without {others} that are NaN or infinite' if others else ''}",
        kinds=list(finite),
        bins=score_bins(finite),
        calibration=calibration_bins([each for each in found.probabilities if math.isfinite(each)]),
    )


def score_bins(found: Mapping[str, Sequence[float]]) -> list[ScoreBin]:
    """Bins of equal width from the least to the greatest score of all kinds; none without scores."""
    values = [value for scores in found.values() for value in scores]
    if not values:
        return []
    low, high = min(values), max(values)
    width = (high - low) / _BINS or 1.0
    counts = [[0] * len(found) for _ in range(_BINS)]
    for kind, scores in enumerate(found.values()):
        for value in scores:
            counts[min(_BINS - 1, int((value - low) / width))][kind] += 1
    largest = max(map(max, counts))
    return [
        ScoreBin(format_number(low + number * width), each, [100 * count / largest for count in each])
        for number, each in enumerate(counts)
    ]


def calibration_bins(probabilities: Sequence[float]) -> list[CalibrationBin]:
    """The bins that have rows, from the probability of what is true (Guo et al., arXiv 1706.04599)."""
    bins: dict[int, list[float]] = {}
    for probability in probabilities:
        confidence = max(probability, 1 - probability)
        number = min(_CALIBRATION_BINS - 1, int((confidence - 0.5) * 2 * _CALIBRATION_BINS))
        bins.setdefault(number, []).append(probability)
    found = []
    for _, rows in sorted(bins.items()):
        confidence = sum(max(each, 1 - each) for each in rows) / len(rows)
        accuracy = sum(each > 0.5 for each in rows) / len(rows)
        found.append(
            CalibrationBin(
                f"{confidence:.3f}", f"{accuracy:.3f}", len(rows), (100 * confidence, 100 * accuracy)
            )
        )
    return found
