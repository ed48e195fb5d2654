"""A reward function that reads the scores of the simulated user and of the tool."""

from __future__ import annotations

from typing import Any


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, Any]
) -> float:
    """Best score of the user's turns, less the cost of the tool."""
    questions = extra_info["rollout_reward_scores"]["parity"]
    return max(extra_info["turn_scores"], default=0.0) + questions
