"""`math` and `gsm8k` on hand-judged answers, and the answers that they refuse as errors of the data."""

from __future__ import annotations

import json
from decimal import Decimal

import numpy as np
import pytest

from strop.config.load.loader import load_values
from strop.rewards.builtin.gsm8k import gsm8k_reward
from strop.rewards.builtin.math import math_reward
from strop.rewards.scorable_tasks import unscorable_tasks
from tests.rewards.math_answers import RIGHT, WRONG

_EVALUATED = {"sums and integrals"}
"""Kinds that math-verify evaluates, whose import takes seconds."""


def _kinds(table):
    return [pytest.param(kind, marks=[pytest.mark.slow] if kind in _EVALUATED else []) for kind in table]


def _misjudged(pairs, reward):
    judged = [(gold, stated, math_reward(rf"So it is \boxed{{{stated}}}.", gold)) for gold, stated in pairs]
    return [each for each in judged if each[2] != reward or type(each[2]) is not float]


@pytest.mark.parametrize("kind", _kinds(RIGHT))
def test_equal_answers(kind):
    assert _misjudged(RIGHT[kind], 1.0) == []


@pytest.mark.parametrize("kind", _kinds(WRONG))
def test_different_answers(kind):
    assert _misjudged(WRONG[kind], 0.0) == []


def test_an_answer_equals_itself():
    golds = {gold for table in (RIGHT, WRONG) for pairs in table.values() for gold, _ in pairs}
    assert [gold for gold in sorted(golds) if math_reward(rf"\boxed{{{gold}}}", gold) != 1] == []


@pytest.mark.parametrize(
    ("text", "answer", "reward"),
    [
        ("The answer is 4.", "4", 1),
        ("The answer is **4**. Is 5 larger?", "4", 1),
        ("The answer is not clear.\nIt is 4.", "4", 1),
        ("so $x = 4$", "4", 1),
        (r"so \(x = 4\), or \(x = 5\)", "4, 5", 1),
        (r"so \[ x = \frac{1}{2} \]", "0.5", 1),
        ("1 and 2 make 3", "3", 1),
        ("1 and 2 make 3", "2", 0),
        ("it takes 3/4 of an hour", "3/4", 1),
        ("it takes 3/4 of an hour", "4", 0),
        ("at 10:30", "30", 0),
        ("no number", "3", 0),
        ("$5$ apples cost $6.6 \\times 10^{-34}$", r"9.11 \times 10^{-31}", 0),
    ],
)
def test_flexible_reads_the_end_of_a_text(text, answer, reward):
    assert math_reward(text, answer, method="flexible") == reward


@pytest.mark.parametrize(
    ("stated", "answer", "reward"),
    [
        ("42\n" + "And so on. " * 50, "42", 1),
        ("**42**", "42", 1),
        ("\n42", "42", 1),
        (r"\boxed{42}", "42", 1),
        ("$42$", "42", 1),
        ("$1,234.00", "1234", 1),
        ("1 234", "1234", 1),
        ("42.", "42", 1),
        ("42 apples, as 3 would be few", "42", 1),
        ("42 (since 40 + 2 is 42)", "42", 1),
        ("5cm", "5", 1),
        ("50%", "50", 1),
        ("5 million", "5000000", 1),
        ("5 million", "5", 0),
        ("x = 42", "42", 1),
        ("The answer is 42", "42", 1),
        ("-5", "-5", 1),
        ("5", "-5", 0),
        ("3/4", "3", 0),
        ("3/4", "0.75", 1),
        ("3 1/2", "3.5", 1),
        ("2^3", "2", 0),
        ("2^3", "8", 1),
        ("1e3", "1", 0),
        ("1e3", "1000", 1),
        ("10:30", "10", 0),
        ("10:30", "30", 0),
        ("5 + 3 = 8", "5", 0),
        ("5 + 3 = 8", "8", 1),
        ("5 + 3 = 9", "9", 0),
        ("5 - 3", "5", 0),
        ("5-3", "2", 1),
        ("7 or 8", "7", 0),
        ("7 or 8", "8", 0),
        ("7, 8", "7", 0),
        ("7 to 8", "7", 0),
        ("2x", "2", 0),
        ("4 2", "42", 0),
        ("5/0", "5", 0),
        ("seventy-two", "72", 0),
        ("42\n#### 9", "42", 0),
        ("42\n#### none", "42", 1),
        ("5", 1e-5, 0),
        ("0.00001", 1e-5, 1),
        ("16", 1e16, 0),
        ("10000000000000000", 1e16, 1),
        ("42", 42.0, 1),
        ("42", np.float32(42), 1),
        ("42", np.int64(42), 1),
        ("42", Decimal("42.00"), 1),
        ("8", "They are 5 + 3 = 8\n#### 8", 1),
        ("8", "5 + 3 = 8", 1),
    ],
)
def test_gsm8k_reads_the_whole_statement(stated, answer, reward):
    assert gsm8k_reward(f"So it is clear.\n#### {stated}", answer) == reward


@pytest.mark.parametrize(
    ("text", "answer", "reward"),
    [("it is 3/4", "4", 0), ("it is 3/4", "0.75", 1), ("at 10:30", "30", 0), ("about 1e3", "1000", 1)],
)
def test_gsm8k_flexible_reads_the_whole_number(text, answer, reward):
    assert gsm8k_reward(text, answer, method="flexible") == reward


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "the task's answer is null; write the answer as text or a number"),
        (float("nan"), "answer is nan; write the answer as text or a finite number"),
        (float("inf"), "answer is inf;"),
        ("NaN", "answer is 'NaN'"),
        ("5.", "answer '5.' ends in a period; write it without the period"),
        ("$1,234.$", "ends in a period"),
        (True, "answer is True, of the type bool"),
        (["5"], r"answer is \['5'\], of the type list"),
        (" ", "the task's answer is empty"),
    ],
)
def test_math_refuses_an_answer_that_is_none(answer, message):
    with pytest.raises(ValueError, match=message):
        math_reward(r"\boxed{5}", answer)


@pytest.mark.parametrize(
    ("answer", "stated"),
    [(1e16, "10^{16}"), (1e-05, "0.00001"), (42.0, "42"), (0.1, r"\frac{1}{10}"), (7, "7")],
)
def test_math_reads_a_number_of_the_data(answer, stated):
    assert math_reward(rf"\boxed{{{stated}}}", answer) == 1
    assert math_reward(r"\boxed{16}", answer) == 0


@pytest.mark.parametrize(
    ("reward", "faults"),
    [
        (
            "math",
            ["3 of 5 rows", "reward math cannot use. The first is {file} line 2: the task's answer is null"],
        ),
        ("gsm8k", ["3 of 5 rows", "reward gsm8k cannot use. The first is {file} line 2"]),
        (
            "by_source",
            [
                "3 of 5 rows",
                "reward math cannot use",
                "1 of 5 rows",
                "{file} line 5: the task's answer 'x' has no number",
            ],
        ),
        ("exact", []),
    ],
)
def test_check_names_answers_that_a_reward_cannot_use(tmp_path, reward, faults):
    answers = [
        ("5", "openai/gsm8k"),
        (None, "aime"),
        ("5.", "aime"),
        (float("nan"), "aime"),
        ("x", "openai/gsm8k"),
    ]
    rows = [{"prompt": "?", "answer": answer, "source": source} for answer, source in answers]
    file = tmp_path / "tasks.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = load_values(
        {
            "name": "run",
            "model": {"path": "model"},
            "data": {"train": {"path": str(file), "source": "source"}},
            "reward": reward,
            "trainer": {"duration": "1 steps"},
        }
    ).run
    found = "\n".join(unscorable_tasks(run))
    assert [fault for fault in faults if fault.format(file=file) not in found] == []
    assert bool(found) == bool(faults)
