"""Tests of `math_in_text` and of the forms of `format` that Trinity's rewards have."""

from __future__ import annotations

import pytest

from strop.rewards.builtin.format import format_reward
from strop.rewards.builtin.math_in_text import math_in_text_reward


@pytest.mark.parametrize(
    ("completion", "answer", "expected"),
    [
        ("so <answer> 72 </answer>", "6 * 12 = <<6*12=72>>72 #### 72", 1.0),
        ("so <answer> 1,072 </answer>", "#### 1,072", 1.0),
        ("it is 73", "#### 72", 0.0),
        ("thus $x^2$", "$x^2$", 1.0),
    ],
)
def test_math_in_text(completion: str, answer: str, expected: float) -> None:
    assert math_in_text_reward(completion, answer) == expected


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("<think>a</think> <answer>b</answer>", 1.0),
        ("Well. <think>a</think>\n<answer>b</answer>\n", 1.0),
        ("<think>a</think> then <answer>b</answer>", -1.0),
        ("<think>a</think> <answer>b", -1.0),
        ("a</think> <answer>b</answer>", -1.0),
        ("<think>a</think> <answer>b</answer> and more", -1.0),
    ],
)
def test_the_end_of_a_response_has_the_form(completion: str, expected: float) -> None:
    assert format_reward(completion, method="ending", wrong=-1.0) == expected


def test_one_pair_of_think_tags() -> None:
    assert format_reward("<think>a</think> b", method="think", right=0.0, wrong=-1.0) == 0.0
    assert format_reward("b", method="think", right=0.0, wrong=-1.0) == -1.0
