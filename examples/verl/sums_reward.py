"""A reward function with the arguments that verl's reward managers pass."""

from __future__ import annotations

from typing import Any


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, Any]
) -> float:
    """1 for exactly the right sum, else 0."""
    return float(solution_str.strip() == ground_truth)
