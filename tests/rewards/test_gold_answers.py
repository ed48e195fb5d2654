"""Each grader accepts all gold answers of its own dataset, and rejects wrong ones."""

from __future__ import annotations

import itertools
import json
import re
from fractions import Fraction

import pytest

from strop.rewards.builtin.choice import choice_reward
from strop.rewards.builtin.countdown import countdown_reward
from strop.rewards.builtin.gsm8k import gsm8k_reward
from strop.rewards.builtin.math import math_reward
from tests.datasets import read_rows as rows


@pytest.mark.parametrize("split", ["train", "test"])
def test_gsm8k(split):
    solutions = [row["answer"] for row in rows(f"gsm8k/{split}.jsonl")]
    assert len(solutions) >= 60
    for solution in solutions:
        truth = solution.rsplit("#### ", 1)[1]
        more = str(int(truth.replace(",", "")) + 1)
        assert gsm8k_reward(solution, truth) == 1
        assert gsm8k_reward(solution, solution) == 1  # raw GSM8K: the answer column is the solution
        assert gsm8k_reward(solution, truth, method="flexible") == 1
        assert gsm8k_reward(solution, more) == 0
        assert gsm8k_reward(f"It is {truth}.\n#### {more}", truth) == 0
        assert gsm8k_reward(f"The answer is {more}.", truth, method="flexible") == 0


@pytest.mark.slow
def test_math_500():
    """The reference solution, the answer in a line, and the answer in one of three forms."""
    forms = (r"\boxed{%s}", r"\boxed{%s.}", r"so $x = \boxed{%s}$ in the end")
    said = [
        (problem["answer"], text)
        for number, problem in enumerate(rows("math/math500.jsonl"))
        for text in (
            problem["solution"],
            f"Answer: ${problem['answer']}$.",
            forms[number % 3] % problem["answer"],
        )
    ]
    assert said
    assert [(answer, text) for answer, text in said if math_reward(text, answer) != 1] == []


@pytest.mark.slow
def test_math_500_rejects_wrong_answers():
    accepted = []
    for problem in rows("math/math500.jsonl"):
        answer = problem["answer"]
        number = re.search(r"\d+", answer)
        if number is None:
            wrong = rf"{answer} + 1" if "text" not in answer else r"\text{none of these}"
        else:
            wrong = answer[: number.start()] + str(int(number[0]) + 1) + answer[number.end() :]
        if math_reward(rf"so it is \boxed{{{wrong}}}", answer) != 0:
            accepted.append((answer, wrong))
    assert accepted == []


@pytest.mark.parametrize("split", ["train", "test"])
def test_countdown(split):
    for row in rows(f"countdown/{split}.jsonl"):
        game = json.loads(row["answer"])
        solution = _solve([(Fraction(n), str(n)) for n in game["numbers"]], Fraction(game["target"]))
        assert solution is not None
        said = f"Let me see.</think> <answer> {solution} </answer>"
        assert countdown_reward(said, row["answer"]) == 1
        assert countdown_reward(said, game) == 1
        assert countdown_reward(said, {**game, "target": game["target"] + 1}) == 0
        assert countdown_reward(f"<answer> {solution} + 0 </answer>", game) == 0
        assert countdown_reward(f"<answer> {game['target']} </answer>", game) == 0
        assert countdown_reward(solution, game) == 0


def _solve(numbers: list[tuple[Fraction, str]], target: Fraction) -> str | None:
    """Search, independent of the grader's evaluation: combine two numbers, and on with the rest."""
    if len(numbers) == 1:
        return numbers[0][1] if numbers[0][0] == target else None
    for i, j in itertools.permutations(range(len(numbers)), 2):
        (a, left), (b, right) = numbers[i], numbers[j]
        rest = [n for k, n in enumerate(numbers) if k not in (i, j)]
        combined = [(a + b, "+"), (a - b, "-"), (a * b, "*"), *([(a / b, "/")] if b else [])]
        for value, sign in combined:
            found = _solve([*rest, (value, f"({left} {sign} {right})")], target)
            if found is not None:
                return found
    return None


@pytest.mark.parametrize("split", ["train", "test", "validation"])
@pytest.mark.parametrize(
    "form",
    [
        "<think>A or D?</think>\n<answer>It is this one.</answer>\nFinal Answer: {}",
        "<think>Not (A), not (B).</think> <answer>{}</answer>",
        r"Therefore \boxed{{{}}}",
        "The answer is {}.",
        "I rule out the others. ({})",
    ],
)
def test_medmcqa(split, form):
    for row in rows(f"medmcqa/{split}.jsonl"):
        gold = row["solution"]
        for letter in "ABCD":
            assert choice_reward(form.format(letter), gold) == (letter == gold)
