"""Built-in rewards on manually computed cases."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strop.rewards.builtin.by_source import by_source_reward
from strop.rewards.builtin.choice import choice_reward, last_choice
from strop.rewards.builtin.countdown import countdown_reward, evaluate
from strop.rewards.builtin.exact import exact_reward
from strop.rewards.builtin.format import format_reward
from strop.rewards.builtin.gsm8k import gsm8k_reward
from strop.rewards.builtin.math import math_in_text_reward, math_reward
from strop.rewards.builtin.math_text import last_boxed
from strop.rewards.registry import REWARD_BY_SOURCE


@pytest.mark.parametrize(
    ("text", "strict", "flexible"),
    [
        ("#### 72", 1, 1),
        ("#### $72.", 1, 1),
        ("#### 72.00", 1, 1),
        ("####72 apples, as 3 would be few", 1, 0),
        ("#### 3\n#### 72", 1, 1),
        ("#### 72\n#### 3", 0, 0),
        ("It is 72.", 0, 1),
        ("100 - 28 = 72...", 0, 1),
        ("#### -72", 0, 0),
        ("#### seventy-two", 0, 0),
        ("", 0, 0),
    ],
)
def test_gsm8k_reads_the_last_number(text, strict, flexible):
    assert gsm8k_reward(text, "72") == strict
    assert gsm8k_reward(text, 72, method="flexible") == flexible


def test_gsm8k_normalizes_and_keeps_signs():
    assert gsm8k_reward("#### 1234567", "1,234,567") == 1
    assert gsm8k_reward("#### -$1,000", "-1000") == 1
    assert gsm8k_reward("from 3-5", "5", method="flexible") == 1  # that minus subtracts
    assert gsm8k_reward("#### .5", "0.50") == 1
    assert gsm8k_reward("#### 1{,}234{,}567", "1234567") == 1
    assert gsm8k_reward("#### \N{MINUS SIGN}$12", "-12") == 1
    assert gsm8k_reward("so 3\N{MINUS SIGN}5 = \N{MINUS SIGN}2", -2, method="flexible") == 1
    with pytest.raises(ValueError, match="'none' has no number"):
        gsm8k_reward("#### 1", "none")


@given(st.integers(-(10**12), 10**12), st.integers(-(10**12), 10**12))
def test_gsm8k_accepts_exactly_the_number(said, truth):
    for written in (str(said), f"{said:,}", f"{said}.", f"{said}.0"):
        assert gsm8k_reward(f"so\n#### {written}", str(truth)) == (said == truth)


@pytest.mark.parametrize(
    ("text", "answer", "reward"),
    [
        (r"\boxed{\frac{1}{2}}", "0.5", 1),
        (r"\boxed{\frac{1}{2}}", r"$\dfrac{2}{4}$", 1),
        (r"\boxed{x^2 + 2x + 1}", "(x+1)^2", 1),
        (r"\boxed{(x+1)^2}", r"\boxed{x^2 + 2x + 1}", 1),
        (r"\boxed{3} or rather \boxed{4}", "4", 1),
        (r"\boxed{4} or rather \boxed{3}", "4", 0),
        (r"\boxed{\{1, 2\}}", r"\{2, 1\}", 1),
        (r"it is 4", "4", 0),
        ("Answer: 4", 4, 1),
        ("**Answer:** $\\frac{8}{2}$.", "4", 1),
        ("Answer: .5", "1/2", 1),
        (r"Answer: 4, no, \boxed{5}", "4", 0),
        (r"\boxed{}", "4", 0),
        (r"\boxed{4", "4", 0),
        ("", "4", 0),
        # Spellings of an answer
        (r"\boxed{42.}", "42", 1),
        (r"\boxed 5", "5", 1),
        (r"\boxed{5}, as asked for in \boxed", "5", 1),
        (r"\boxed{10}", r"10\%", 1),
        (r"\boxed{11}", r"10\%", 0),
        (r"\boxed{10\%}", r"10\%", 1),
        (r"\boxed{-2\le x\le 7}", "[-2,7]", 1),
        (r"\boxed{-2 < x\le 7}", "[-2,7]", 0),
        (r"\boxed{x>5}", r"(5,\infty)", 1),
        (r"\boxed{x<5}", r"(5,\infty)", 0),
        (r"\boxed{(5,\infty)}", "x>5", 1),
        ("\\boxed{90°}", r"90^\circ", 1),
        ("\\boxed{90°}", "90", 1),
        ("\\boxed{√2}", r"\sqrt{2}", 1),
        ("\\boxed{2√(x+1)}", r"2\sqrt{x+1}", 1),
        ("\\boxed{x²−½}", r"x^2-\frac{1}{2}", 1),
        (r"\boxed{2^{0.5}}", r"\sqrt{2}", 1),
        (r"\boxed{2^{0.51}}", r"\sqrt{2}", 0),
        (r"\boxed{\text{The answer is }5}", "5", 1),
        (r"\boxed{\text{The answer is not }5}", "5", 0),
        (r"\boxed{5 \approx 5.1}", "5", 0),
        (r"\boxed{\frac{1}{3} \approx 0.333}", r"\frac{1}{3}", 1),
        (r"\boxed{\frac{1}{3} \approx 0.4}", r"\frac{1}{3}", 0),
        (r"\boxed{987 \approx 1000}", "987", 1),
        (r"\boxed{2^{2^{2020}}}", "$2^{2^{2020}}$", 1),  # too large to evaluate, but the same text
        (r"\boxed{2^{2^{2021}}}", "$2^{2^{2020}}$", 0),
        (r"\boxed{2^{1000}}", "4^{500}", 1),
        (r"\boxed{\sum_{k=1}^{100} k}", "5050", 1),
        (r"\boxed{\binom{10}{5}}", "252", 1),
    ],
)
def test_math(text, answer, reward):
    assert math_reward(f"so it is {text}", answer) == reward


@pytest.mark.parametrize(("below", "reward"), [(2, 1), (3, 0)])
def test_math_flexible_searches_the_text(below, reward):
    assert math_reward(f"so it is $\\frac{{1}}{{{below}}}$", "0.5", method="flexible") == reward


def test_math_works_in_any_thread():
    """math-verify's own limits are signals, which raise here."""
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(math_reward, r"\boxed{2}", "1+1").result() == 1.0


@pytest.mark.parametrize(
    ("completion", "answer", "reward"),
    [
        ("so <answer> 72 </answer>", "6 * 12 = <<6*12=72>>72 #### 72", 1),
        ("so <answer> 1,072 </answer>", "#### 1,072", 1),
        ("it is 73", "#### 72", 0),
        ("thus $x^2$", "$x^2$", 1),
    ],
)
def test_math_in_text(completion, answer, reward):
    assert math_in_text_reward(completion, answer) == reward


def test_last_boxed_balances_braces():
    assert last_boxed(r"\boxed{1} \boxed{\frac{a}{\sqrt{b}}} end}") == r"\frac{a}{\sqrt{b}}"
    assert last_boxed(r"\fbox{\}x}") == r"\}x"
    assert last_boxed(r"\boxed{{") is None


GAME = {"target": 24, "numbers": [3, 3, 8, 8]}


@pytest.mark.parametrize(
    ("said", "reward"),
    [
        ("8 / (3 - 8 / 3)", 1),  # needs exact fractions: in floats it is 23.999999999999989
        ("8 * 3", 0),  # not all numbers
        ("8 * 3 * 8 / 8 + 3 - 3", 0),  # 8 three times
        ("8 + 8 + 8", 0),
        ("24", 0),
        ("8 / (3 - 8 / 3) = 24", 0),
        ("8 ** 3 - 8 * 3", 0),
        ("8 / (3 - 3) * 8", 0),
        ("__import__('os').getcwd()", 0),
        ("8.0 / (3 - 8 / 3)", 0),
        ("True", 0),
        ("(" * 500, 0),
        ("-" * 900 + "8", 0),
        ("8 + " * 5000 + "8", 0),
        ("", 0),
    ],
)
def test_countdown(said, reward):
    assert countdown_reward(f"<think>hm</think><answer>{said}</answer>", GAME) == reward
    with_format = countdown_reward(f"<answer>{said}</answer>", GAME, format_score=0.1)
    assert with_format == (1 if reward else 0.1)


def test_countdown_reads_the_last_answer_and_some_numbers():
    assert countdown_reward("<answer>1</answer> <answer>8/(3-8/3)</answer>", GAME) == 1
    assert countdown_reward("<answer>8/(3-8/3)</answer> <answer>1</answer>", GAME) == 0
    assert countdown_reward("8/(3-8/3)", GAME, format_score=0.1) == 0
    assert countdown_reward("<answer>8/(3-8/3)</answer> </answer> <answer>1", GAME) == 1
    assert countdown_reward("<answer>8*3</answer>", GAME, numbers="some") == 1
    assert countdown_reward("<answer>8*3*1</answer>", GAME, numbers="some") == 0
    with pytest.raises(ValueError, match="`target` and `numbers`"):
        countdown_reward("<answer>1</answer>", "[1]")


_EXPRESSIONS = st.recursive(
    st.integers(0, 99).map(str),
    lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
    max_leaves=8,
)


@given(_EXPRESSIONS)
def test_countdown_evaluates_as_python_does(expression):
    """With every number made a Fraction, Python's own evaluation is the reference."""
    try:
        expected = eval(re.sub(r"(\d+)", r"F(\1)", expression), {"F": Fraction})
    except ZeroDivisionError:
        assert evaluate(expression) is None
        return
    result = evaluate(expression)
    assert result is not None
    assert result[0] == expected
    assert sorted(result[1]) == sorted(int(n) for n in re.findall(r"\d+", expression))


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("final answer: **B**", "B"),
        ("**Final Answer**: B", "B"),
        ("Final Answer:\nB", "B"),
        ("Answer: option B", "B"),
        ("The correct option is B", "B"),
        ("The answer is (B), since (A) is poison.", "B"),
        ("Option B is correct.", "B"),
        ("Not (A). Therefore option (B) is the correct one, not (C).", "B"),
        ("Option A is incorrect", None),
        ("Option A is correct? The answer is B.", "B"),
        (r"\boxed{\text{\boxed{B}}}", "B"),
        ("The answer is $\\boxed{\\text{(B)}}$.", "B"),
        ("The answer is A. No: the answer is B.", "B"),
        ("<answer>\n(B) Amoxicillin\n</answer>", "B"),
        ("(A)? No, (B)", "B"),
        ("Hm.\nB\n", "B"),
        ("B.", "B"),
        ("A patient of B type", None),
        ("The answer is not B", None),
        ("The answer is a mess", None),
        ("Final Answer: AB", None),
        ("Final Answer: E", None),
        ("", None),
    ],
)
def test_last_choice(text, letter):
    assert last_choice(text) == letter


def test_choice_with_other_letters():
    assert choice_reward("Final Answer: E", "E", choices="ABCDE") == 1
    assert choice_reward("Final Answer: B", "(b).") == 1
    with pytest.raises(ValueError, match="not one of the choices A, B, C, D"):
        choice_reward("Final Answer: E", "E")


ENDING = {"method": "ending", "wrong": -1.0}


@pytest.mark.parametrize(
    ("text", "loose", "strict"),
    [
        ("<think>\nr\n</think>\n<answer>\na\n</answer>", 1, 1),
        ("\n<think>\nr\ns\n</think>\n<answer>\na\n</answer>\n", 1, 1),
        ("<think>r</think> <answer>a</answer>", 1, 0),
        ("<think>\nr\n</think>\n\n<answer>\na\n</answer>", 1, 0),
        ("<answer>a</answer><think>r</think>", 0, 0),
        ("<think>\nr\n</think>\n<answer>\na\n</answer> and more", 0, 0),
        ("Sure! <think>r</think><answer>a</answer>", 0, 0),
        ("<think>r</think><answer>a</answer><answer>b</answer>", 0, 0),
        ("<think>r<think>s</think><answer>a</answer>", 0, 0),
        ("<think>r</think>so<answer>a</answer>", 0, 0),
        ("r</think><answer>a</answer>", 0, 0),
    ],
)
def test_format(text, loose, strict):
    assert format_reward(text) == loose
    assert format_reward(text, method="strict") == strict


@pytest.mark.parametrize(
    ("text", "options", "reward"),
    [
        ("r</think><answer>a</answer>", {"think_in_prompt": True}, 1),
        ("<think>r</think><answer>a</answer>", {"think_in_prompt": True}, 0),
        # The forms of Trinity's rewards: the end of a response, and one pair of tags
        ("<think>a</think> <answer>b</answer>", ENDING, 1),
        ("Well. <think>a</think>\n<answer>b</answer>\n", ENDING, 1),
        ("<think>a</think> then <answer>b</answer>", ENDING, -1),
        ("<think>a</think> <answer>b", ENDING, -1),
        ("a</think> <answer>b</answer>", ENDING, -1),
        ("<think>a</think> <answer>b</answer> and more", ENDING, -1),
        ("<think>a</think> b", {"method": "think", "right": 0.0, "wrong": -1.0}, 0),
        ("b", {"method": "think", "right": 0.0, "wrong": -1.0}, -1),
    ],
)
def test_format_in_other_forms(text, options, reward):
    assert format_reward(text, **options) == reward


def test_exact():
    assert exact_reward(" 42\n", 42) == 1
    assert exact_reward("42.", "42") == 0
    assert exact_reward("Paris", "paris") == 0
    assert exact_reward("Paris", "paris", case_sensitive=False) == 1
    assert exact_reward("I think\n so:\n 42 \n", "42", part="last_line") == 1
    assert exact_reward("b", ["a", "b"]) == 1
    assert exact_reward("", "") == 1


def test_by_source():
    assert by_source_reward("#### 4", "4", "openai/gsm8k") == 1
    assert by_source_reward(r"\boxed{4}", "4", "lighteval/MATH") == 1
    assert by_source_reward("Answer: 4", "4", "aime2024") == 1
    with pytest.raises(ValueError, match="source 'openai/gsm9k'; known sources: openai/gsm8k, ") as error:
        by_source_reward("#### 4", "4", "openai/gsm9k")
    assert all(source in str(error.value) for source in REWARD_BY_SOURCE)
