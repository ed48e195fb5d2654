"""The scorers of verl and Trinity, against scores worked out from their code.

Each case names the function of verl 0.4.1 and 0.9.0 (`verl/utils/reward_score/`) or of Trinity-RFT 0.3.1 and 0.6.0
(`trinity/common/rewards/`) from which its score was derived.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strop.rewards.resolve import load_reward_function
from strop.rewards.upstream import hendrycks, minerva, qwen

GAME = '{"target": 24, "numbers": [4, 6, 1]}'
CASES: tuple[tuple[str, str, Any, float, str], ...] = (
    # gsm8k.py, extract_solution(method="strict"): the last "#### ", then [0-9.,]+, compared as text without commas
    ("verl_gsm8k", "#### 72", "72", 1, "gsm8k.compute_score"),
    ("verl_gsm8k", "#### 3\n#### 72", "72", 1, "gsm8k.extract_solution: solutions[-1]"),
    ("verl_gsm8k", "#### 72\n#### 3", "72", 0, "gsm8k.extract_solution: solutions[-1]"),
    ("verl_gsm8k", "#### 1,234", "1234", 1, "gsm8k.extract_solution: replace(',', '')"),
    ("verl_gsm8k", "#### 72.", "72", 0, "gsm8k.extract_solution: the period is part of the number"),
    ("verl_gsm8k", "#### 72.0", "72", 0, "gsm8k.compute_score: compared as text"),
    ("verl_gsm8k", "####72", "72", 0, "gsm8k.extract_solution: a space after the mark"),
    ("verl_gsm8k", "#### $72", "72", 0, "gsm8k.extract_solution: no dollar sign in the pattern"),
    ("verl_gsm8k", "It is 72", "72", 0, "gsm8k.extract_solution"),
    # math.py (0.4), math_reward.py (0.9): the last \boxed, compared by strip_string
    ("verl_math", "Answer: 34", "34", 0, "math.compute_score: last_boxed_only_string is None"),
    ("verl_math", r"\boxed{34}", "34", 1, "math.compute_score"),
    ("verl_math", r"\boxed{3} then \boxed{4}", "4", 1, "math.last_boxed_only_string: rfind"),
    ("verl_math", r"\boxed 4$ is it", "4", 1, "math.last_boxed_only_string: a space after the command"),
    ("verl_math", r"\fbox{4}", "4", 0, "math.remove_boxed: asserts \\boxed{"),
    ("verl_math", r"\boxed{4", "4", 0, "math.last_boxed_only_string: no closing brace"),
    ("verl_math", r"\boxed{\frac12}", "0.5", 1, "math.fix_fracs, strip_string: 0.5"),
    ("verl_math", r"\boxed{1/2}", r"\dfrac{1}{2}", 1, "math.fix_a_slash_b"),
    ("verl_math", r"\boxed{0.50}", "0.5", 0, "math.strip_string: only 0.5 is a half"),
    ("verl_math", r"\boxed{2/4}", r"\frac{1}{2}", 0, "math.is_equiv: text"),
    ("verl_math", r"\boxed{x = 5}", "5", 1, "math.strip_string: a short left side"),
    ("verl_math", r"\boxed{5 \text{ cm}}", "5", 1, "math.remove_right_units"),
    ("verl_math", r"\boxed{50\%}", "50", 1, "math.strip_string: percentage"),
    ("verl_math", r"\boxed{1,234}", "1234", 0, "math.strip_string: commas stay"),
    # math_dapo.py: the last 300 characters, the last (?i)Answer\s*:\s*, normalize_final_answer, 1 or -1
    ("verl_math_dapo", "Answer: 34", "34", 1, "math_dapo.is_correct_minerva"),
    ("verl_math_dapo", r"\boxed{34}", "34", -1, "math_dapo.is_correct_minerva: [INVALID]"),
    (
        "verl_math_dapo",
        "answer : $34$",
        "34",
        1,
        "math_dapo.is_correct_minerva: (?i), normalize_final_answer",
    ),
    ("verl_math_dapo", r"Answer: \boxed{34}", "34", 1, "math_dapo.normalize_final_answer"),
    ("verl_math_dapo", "Answer: 34\nAnswer: 35", "34", -1, "math_dapo.is_correct_minerva: match[-1]"),
    ("verl_math_dapo", "Answer: x = 34 dollars", "34", 1, "math_dapo.normalize_final_answer"),
    ("verl_math_dapo", "Answer: 1,234", "1234", 1, "math_dapo.normalize_final_answer: isdigit"),
    ("verl_math_dapo", "Answer: 34" + " " * 300, "34", -1, "math_dapo.compute_score: solution_str[-300:]"),
    # prime_math/__init__.py: match_answer, then grade_answer or math_equal
    ("verl_prime_math", "Therefore the answer is 34", "34", 1, "prime_math.match_answer"),
    ("verl_prime_math", r"so it is \boxed{x = 34}", "34", 1, "prime_math.match_answer: after the box, '='"),
    ("verl_prime_math", r"\boxed{0.34}", "34", 1, "grader.math_equal: include_percentage"),
    ("verl_prime_math", r"\boxed{3.1415}", r"\pi", 1, "grader.handle_pi, isclose 1e-4"),
    ("verl_prime_math", r"\boxed{2/4}", r"\frac{1}{2}", 1, "grader.symbolic_equal"),
    ("verl_prime_math", r"\boxed{35}", "34", 0, "prime_math.compute_score"),
    # geo3k.py: 0.9 for mathruler's grade_answer, 0.1 for the form
    ("verl_geometry3k", r"<think>a</think> \boxed{34}", "34", 1, "geo3k.compute_score"),
    ("verl_geometry3k", r"\boxed{34}", "34", 0.9, "geo3k.format_reward"),
    ("verl_geometry3k", r"<think>a</think> \boxed{35}", "34", 0.1, "geo3k.acc_reward"),
    ("verl_geometry3k", "34", "34", 0, "geo3k.acc_reward: extract_boxed_content"),
    (
        "verl_geometry3k",
        r"\boxed{2/4}",
        "1/2",
        0,
        "mathruler.grader.grade_answer: fractions that are not reduced",
    ),
    ("verl_geometry3k", r"\boxed{2 \sqrt{3}}", r"2\sqrt{3}", 0.9, "mathruler.grader.grade_answer"),
    # search_r1_like_qa_em.py: the last answer tags, em_check, a quarter above 10 tags
    (
        "verl_search_qa",
        "<answer>The Beatles.</answer>",
        {"target": ["Beatles"]},
        1,
        "search_r1.normalize_answer",
    ),
    (
        "verl_search_qa",
        "<answer>a</answer><answer>no</answer>",
        {"target": "a"},
        0,
        "search_r1.extract_solution",
    ),
    (
        "verl_search_qa",
        "<answer>yes</answer>" + "</answer>" * 10,
        {"target": "yes"},
        0.25,
        "search_r1.compute_score",
    ),
    ("verl_search_qa", "yes", {"target": "yes"}, 0, "search_r1.extract_solution: None"),
    # math_reward.py, simple_answer_parser: the first answer tags of one line, else the text, parsed by math-verify
    ("trinity_math", "<think>3</think><answer>34</answer>", "34", 1, "eval_utils.simple_answer_parser"),
    (
        "trinity_math",
        "<answer>34</answer> or <answer>35</answer>",
        "34",
        1,
        "eval_utils: re.search, the first tags",
    ),
    (
        "trinity_math",
        "<answer>\n35\n</answer> 34",
        "34",
        1,
        "eval_utils: no DOTALL, so the whole text counts",
    ),
    ("trinity_math", r"so \boxed{34}", "34", 1, "eval_utils.simple_answer_parser"),
    ("trinity_math", "it is 35", "He has 30 and 4.\n#### 34", 0, "accuracy_reward.AccuracyReward"),
    ("trinity_math", "it is 1234", "He has a lot.\n#### 1,234", 1, "accuracy_reward.AccuracyReward"),
    # accuracy_reward.py without a parser: LaTeX only
    ("trinity_accuracy", r"\boxed{34}", "$34$", 1, "accuracy_reward.AccuracyReward: boxed_match_priority=0"),
    (
        "trinity_accuracy",
        "$34$",
        "$34$",
        0,
        "accuracy_reward.AccuracyReward: try_extract_without_anchor=False",
    ),
    ("trinity_accuracy", "34", "34", 0, "accuracy_reward.AccuracyReward: try_extract_without_anchor=False"),
    # format_reward.py: ^<think>\n.*?\n</think>\n<answer>\n.*?\n</answer>$ with re.match, 0.1 or -0.1
    (
        "trinity_format",
        "<think>\na\n</think>\n<answer>\nb\n</answer>",
        None,
        0.1,
        "format_reward.FormatReward",
    ),
    (
        "trinity_format",
        "<think>\na\n</think>\n<answer>\nb\n</answer>\nc",
        None,
        0.1,
        "format_reward: re.MULTILINE",
    ),
    ("trinity_format", "<think>a</think><answer>b</answer>", None, -0.1, "format_reward.FormatReward"),
    (
        "trinity_format",
        "x\n<think>\na\n</think>\n<answer>\nb\n</answer>",
        None,
        -0.1,
        "format_reward: re.match",
    ),
    # math_reward.py, MathBoxedRewardFn: the last box, by strip_string of math_eval_utils (0.6: qwen25_eval)
    ("trinity_math_boxed", r"\boxed{34}", r"the result is \boxed{34}", 1, "eval_utils.compute_score"),
    ("trinity_math_boxed", r"\boxed{34.0}", "34", 1, "math_eval_utils.strip_string"),
    ("trinity_math_boxed", r"\boxed{34 apples}", "34", 1, "math_eval_utils.strip_string: unit_texts"),
    ("trinity_math_boxed", r"\boxed{50\%}", "50", 0, "math_eval_utils.strip_string: the backslash stays"),
    ("trinity_math_boxed", "Answer: 34", "34", 0, "eval_utils.last_boxed_only_string"),
    # dapo_reward.py (0.6), naive_dapo_score.py: after </think>, the last box or the text, 1 or -1
    ("trinity_math_dapo", r"<think>\boxed{1}</think> \boxed{34}", "34", 1, "naive_dapo_score.match_answer"),
    (
        "trinity_math_dapo",
        r"<think>\boxed{34}</think> 34",
        "34",
        1,
        "naive_dapo_score.match_answer: the text",
    ),
    ("trinity_math_dapo", r"<think>\boxed{34}</think> \boxed{1}", "34", -1, "dapo_reward.MathDAPORewardFn"),
    # countdown_reward.py, lines 34-55: the last line's last tags, each number once, 0.1 for the form
    ("trinity_countdown", "<answer>4*6*1</answer>", GAME, 1, "countdown_reward.CountDownRewardFn"),
    ("trinity_countdown", "<answer>4*6</answer>", GAME, 0.1, "eval_utils.validate_equation: all numbers"),
    ("trinity_countdown", "<answer>4+6+1</answer>", GAME, 0.1, "countdown_reward: another value"),
    ("trinity_countdown", "<answer>nothing</answer>", GAME, 0.1, "countdown_reward: format_score"),
    (
        "trinity_countdown",
        "<answer>4*6*1</answer>\ndone",
        GAME,
        0,
        "eval_utils.extract_solution: the last line",
    ),
    ("trinity_countdown", "4*6*1", GAME, 0, "eval_utils.extract_solution: None"),
)


@pytest.mark.parametrize(("name", "response", "truth", "score", "source"), CASES)
def test_scores(name: str, response: str, truth: Any, score: float, source: str) -> None:
    reward = load_reward_function(name)
    given = () if name == "trinity_format" else (truth,)
    assert reward(response, *given) == pytest.approx(score), source


@pytest.mark.parametrize(
    ("source", "response", "truth", "score"),
    [
        ("openai/gsm8k", "#### 72", "72", 1),
        ("lighteval/MATH", r"\boxed{72}", "72", 1),
        ("DigitalLearningGmbH/MATH-lighteval", r"\boxed{72}", "72", 1),
        ("HuggingFaceH4/MATH-500", r"\boxed{72}", "72", 1),
        ("math_dapo", "Answer: 72", "72", 1),
        ("aime2024", "Answer: 71", "72", -1),
        ("numina_olympiads", r"\boxed{72}", "72", 1),
        ("hiyouga/geometry3k", r"\boxed{72}", "72", 0.9),
        ("searchR1_nq", "<answer>72</answer>", {"target": ["72"]}, 1),
    ],
)
def test_verl_selects_the_scorer_by_data_source(source: str, response: str, truth: Any, score: float) -> None:
    """`reward_score/__init__.py`: aime* is math_dapo's in line 50 of 0.4.1 and 59 of 0.9.0."""
    assert load_reward_function("verl_by_source")(response, truth, source) == score


def test_an_unknown_data_source_is_refused_by_name() -> None:
    with pytest.raises(
        ValueError, match=r"no reward for the data_source 'openai/gsm9k'.*custom_reward_function"
    ):
        load_reward_function("verl_by_source")("#### 1", "1", "openai/gsm9k")


def test_gsm8k_counts_in_the_last_300_characters_since_verl_0_5() -> None:
    """gsm8k.py of 0.9: _SOLUTION_CLIP_CHARS; 0.4.1 searches all of the response."""
    text, reward = "#### 72 " + "." * 300, load_reward_function("verl_by_source")
    assert reward(text, "72", "openai/gsm8k", version="0.9") == 0
    assert reward(text, "72", "openai/gsm8k") == 1


_LATEX = st.text(alphabet=r"0123456789./\{}fracsqtx=+- ", max_size=30)


@given(_LATEX)
def test_an_answer_equals_itself(answer: str) -> None:
    assert hendrycks.is_equal(answer, answer)
    assert qwen.is_equal(answer, answer)
    assert minerva.normal_form(answer) == minerva.normal_form(answer)


@given(_LATEX, _LATEX)
def test_equality_is_symmetric(one: str, other: str) -> None:
    assert hendrycks.is_equal(one, other) == hendrycks.is_equal(other, one)
    assert qwen.is_equal(one, other) == qwen.is_equal(other, one)


@given(st.integers(-999, 999), st.integers(1, 999))
def test_spellings_of_a_fraction_are_one_answer(above: int, below: int) -> None:
    braced = f"\\frac{{{above}}}{{{below}}}"
    spellings = (
        f"{above}/{below}",
        braced,
        braced.replace("frac", "dfrac"),
        f"x = {above}/{below}",
        f" {braced} ",
    )
    assert {hendrycks.normal_form(each) for each in spellings} == {braced}
