"""The scorers of verl and Trinity, against scores worked out from their code.

Each case names the function of verl 0.4.1 and 0.9.0 (`verl/utils/reward_score/`) or of Trinity-RFT 0.3.1 and 0.6.0
(`trinity/common/rewards/`) from which its score was derived.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strop.compat.scorers import hendrycks, minerva, qwen
from strop.compat.trinity.interface.rewards import REWARD_FN_CLASSES
from strop.errors import RewardError
from strop.rewards.execution.function_spec import RewardFunctionSpec
from strop.rewards.execution.signature import RewardInput
from strop.rewards.registry import load_reward_function

GAME = '{"target": 24, "numbers": [4, 6, 1]}'
CASES: dict[str, tuple[tuple[str, Any, float, str], ...]] = {
    # gsm8k.py, extract_solution(method="strict"): the last "#### ", then [0-9.,]+, compared as text without commas
    "verl_gsm8k": (
        ("#### 72", "72", 1, "gsm8k.compute_score"),
        ("#### 3\n#### 72", "72", 1, "gsm8k.extract_solution: solutions[-1]"),
        ("#### 72\n#### 3", "72", 0, "gsm8k.extract_solution: solutions[-1]"),
        ("#### 1,234", "1234", 1, "gsm8k.extract_solution: replace(',', '')"),
        ("#### 72.", "72", 0, "gsm8k.extract_solution: the period is part of the number"),
        ("#### 72.0", "72", 0, "gsm8k.compute_score: compared as text"),
        ("####72", "72", 0, "gsm8k.extract_solution: a space after the mark"),
        ("#### $72", "72", 0, "gsm8k.extract_solution: no dollar sign in the pattern"),
        ("It is 72", "72", 0, "gsm8k.extract_solution"),
    ),
    # math.py (0.4), math_reward.py (0.9): the last \boxed, compared by strip_string
    "verl_math": (
        ("Answer: 34", "34", 0, "math.compute_score: last_boxed_only_string is None"),
        (r"\boxed{34}", "34", 1, "math.compute_score"),
        (r"\boxed{3} then \boxed{4}", "4", 1, "math.last_boxed_only_string: rfind"),
        (r"\boxed 4$ is it", "4", 1, "math.last_boxed_only_string: a space after the command"),
        (r"\fbox{4}", "4", 0, "math.remove_boxed: asserts \\boxed{"),
        (r"\boxed{4", "4", 0, "math.last_boxed_only_string: no closing brace"),
        (r"\boxed{\frac12}", "0.5", 1, "math.fix_fracs, strip_string: 0.5"),
        (r"\boxed{1/2}", r"\dfrac{1}{2}", 1, "math.fix_a_slash_b"),
        (r"\boxed{0.50}", "0.5", 0, "math.strip_string: only 0.5 is a half"),
        (r"\boxed{2/4}", r"\frac{1}{2}", 0, "math.is_equiv: text"),
        (r"\boxed{x = 5}", "5", 1, "math.strip_string: a short left side"),
        (r"\boxed{5 \text{ cm}}", "5", 1, "math.remove_right_units"),
        (r"\boxed{50\%}", "50", 1, "math.strip_string: percentage"),
        (r"\boxed{1,234}", "1234", 0, "math.strip_string: commas stay"),
    ),
    # math_dapo.py: the last 300 characters, the last (?i)Answer\s*:\s*, normalize_final_answer, 1 or -1
    "verl_math_dapo": (
        ("Answer: 34", "34", 1, "math_dapo.is_correct_minerva"),
        (r"\boxed{34}", "34", -1, "math_dapo.is_correct_minerva: [INVALID]"),
        ("answer : $34$", "34", 1, "math_dapo.is_correct_minerva: (?i), normalize_final_answer"),
        (r"Answer: \boxed{34}", "34", 1, "math_dapo.normalize_final_answer"),
        ("Answer: 34\nAnswer: 35", "34", -1, "math_dapo.is_correct_minerva: match[-1]"),
        ("Answer: x = 34 dollars", "34", 1, "math_dapo.normalize_final_answer"),
        ("Answer: 1,234", "1234", 1, "math_dapo.normalize_final_answer: isdigit"),
        ("Answer: 34" + " " * 300, "34", -1, "math_dapo.compute_score: solution_str[-300:]"),
    ),
    # prime_math/__init__.py: match_answer, then grade_answer or math_equal
    "verl_prime_math": (
        ("Therefore the answer is 34", "34", 1, "prime_math.match_answer"),
        (r"so it is \boxed{x = 34}", "34", 1, "prime_math.match_answer: after the box, '='"),
        (r"\boxed{0.34}", "34", 1, "grader.math_equal: include_percentage"),
        (r"\boxed{3.1415}", r"\pi", 1, "grader.handle_pi, isclose 1e-4"),
        (r"\boxed{2/4}", r"\frac{1}{2}", 1, "grader.symbolic_equal"),
        (r"\boxed{35}", "34", 0, "prime_math.compute_score"),
        (r"\boxed{1/3}", "0.3333", 1, "grader.symbolic_equal: N, isclose 1e-4"),
        (r"\boxed{1/3}", "0.33", 0, "grader.symbolic_equal"),
        (r"\boxed{[1,2]}", "(1,2)", 0, "grader.math_equal: brackets of another kind"),
        (r"\boxed{[2,3)}", "(2,3)", 0, "grader.math_equal"),
        (r"\boxed{(0.5,3)}", r"(\frac{1}{2},3)", 1, "grader.math_equal: element by element"),
        (r"\boxed{9.11e-31}", "6.6e-34", 0, "Strop's: verl's simplify gives 1"),
        (r"\boxed{52_8}", "52_9", 0, "Strop's: verl's handle_base drops the base"),
    ),
    # geo3k.py: 0.9 for mathruler's grade_answer, 0.1 for the form
    "verl_geometry3k": (
        (r"<think>a</think> \boxed{34}", "34", 1, "geo3k.compute_score"),
        (r"\boxed{34}", "34", 0.9, "geo3k.format_reward"),
        (r"<think>a</think> \boxed{35}", "34", 0.1, "geo3k.acc_reward"),
        ("34", "34", 0, "geo3k.acc_reward: extract_boxed_content"),
        (r"\boxed{2/4}", "1/2", 0, "mathruler.grader.grade_answer: fractions that are not reduced"),
        (r"\boxed{2 \sqrt{3}}", r"2\sqrt{3}", 0.9, "mathruler.grader.grade_answer"),
        (r"\boxed{0.25}", r"\frac14", 0.9, "mathruler.grader._parse_latex: a fraction without braces"),
        (r"\boxed{\frac{\sqrt{3}}{3}}", r"\frac{1}{\sqrt{3}}", 0.9, "mathruler.grader._parse_latex: nested"),
        (r"\boxed{\sqrt{21}/5}", r"\frac{\sqrt{21}}{5}", 0.9, "mathruler.grader.are_equal_under_sympy"),
        (r"\boxed{-\frac{1}{2}}", r"\frac{-1}{2}", 0.9, "mathruler.grader.are_equal_under_sympy"),
        (r"\boxed{(\frac12,3)}", "(0.5,3)", 0.9, "mathruler.grader.split_tuple"),
        (r"\boxed{1000}", "1e3", 0.9, "mathruler.grader._str_to_int"),
        (r"\boxed{e^2}", "e^{2}", 0.9, "mathruler.grader._normalize: no letter is a unit"),
        (r"\boxed{\frac{a+b}{2}}", r"a+\frac{b}{2}", 0, "Strop's: mathruler reads both as a+b/2"),
        (r"\boxed{52_8}", "52", 0, "mathruler.grader.are_equal_under_sympy"),
        (r"\boxed{5 miles}", "5 meters", 0.9, "mathruler.grader._normalize: units go"),
    ),
    # search_r1_like_qa_em.py: the last answer tags, em_check, a quarter above 10 tags
    "verl_search_qa": (
        ("<answer>The Beatles.</answer>", {"target": ["Beatles"]}, 1, "search_r1.normalize_answer"),
        ("<answer>a</answer><answer>no</answer>", {"target": "a"}, 0, "search_r1.extract_solution"),
        ("<answer>yes</answer>" + "</answer>" * 10, {"target": "yes"}, 0.25, "search_r1.compute_score"),
        ("yes", {"target": "yes"}, 0, "search_r1.extract_solution: None"),
    ),
    # math_reward.py, simple_answer_parser: the first answer tags of one line, else the text, parsed by math-verify
    "trinity_math": (
        ("<think>3</think><answer>34</answer>", "34", 1, "eval_utils.simple_answer_parser"),
        ("<answer>34</answer> or <answer>35</answer>", "34", 1, "eval_utils: re.search, the first tags"),
        ("<answer>\n35\n</answer> 34", "34", 1, "eval_utils: no DOTALL, so the whole text counts"),
        (r"so \boxed{34}", "34", 1, "eval_utils.simple_answer_parser"),
        ("it is 35", "He has 30 and 4.\n#### 34", 0, "accuracy_reward.AccuracyReward"),
        ("it is 1234", "He has a lot.\n#### 1,234", 1, "accuracy_reward.AccuracyReward"),
    ),
    # accuracy_reward.py without a parser: LaTeX only
    "trinity_accuracy": (
        (r"\boxed{34}", "$34$", 1, "accuracy_reward.AccuracyReward: boxed_match_priority=0"),
        ("$34$", "$34$", 0, "accuracy_reward.AccuracyReward: try_extract_without_anchor=False"),
        ("34", "34", 0, "accuracy_reward.AccuracyReward: try_extract_without_anchor=False"),
    ),
    # format_reward.py: ^<think>\n.*?\n</think>\n<answer>\n.*?\n</answer>$ with re.match, 0.1 or -0.1
    "trinity_format": (
        ("<think>\na\n</think>\n<answer>\nb\n</answer>", None, 0.1, "format_reward.FormatReward"),
        ("<think>\na\n</think>\n<answer>\nb\n</answer>\nc", None, 0.1, "format_reward: re.MULTILINE"),
        ("<think>a</think><answer>b</answer>", None, -0.1, "format_reward.FormatReward"),
        ("x\n<think>\na\n</think>\n<answer>\nb\n</answer>", None, -0.1, "format_reward: re.match"),
    ),
    # math_reward.py, MathBoxedRewardFn: the last box, by strip_string of math_eval_utils (0.6: qwen25_eval)
    "trinity_math_boxed": (
        (r"\boxed{34}", r"the result is \boxed{34}", 1, "eval_utils.compute_score"),
        (r"\boxed{34.0}", "34", 1, "math_eval_utils.strip_string"),
        (r"\boxed{34 apples}", "34", 1, "math_eval_utils.strip_string: unit_texts"),
        (r"\boxed{50\%}", "50", 0, "math_eval_utils.strip_string: the backslash stays"),
        ("Answer: 34", "34", 0, "eval_utils.last_boxed_only_string"),
        (r"\boxed{\sqrt{21}/5}", r"\frac{\sqrt{21}}{5}", 1, "math_eval_utils.fix_a_slash_b: a root"),
        (r"\boxed{5/\sqrt{2}}", r"\dfrac{5}{\sqrt2}", 1, "math_eval_utils.fix_a_slash_b, fix_sqrt"),
        (r"\boxed{x/5}", r"\frac{x}{5}", 0, "math_eval_utils.fix_a_slash_b: int('x')"),
    ),
    # dapo_reward.py (0.6), naive_dapo_score.py: after </think>, the last box or the text, 1 or -1
    "trinity_math_dapo": (
        (r"<think>\boxed{1}</think> \boxed{34}", "34", 1, "naive_dapo_score.match_answer"),
        (r"<think>\boxed{34}</think> 34", "34", 1, "naive_dapo_score.match_answer: the text"),
        (r"<think>\boxed{34}</think> \boxed{1}", "34", -1, "dapo_reward.MathDAPORewardFn"),
    ),
    # countdown_reward.py, lines 34-55: the last line's last tags, each number once, 0.1 for the form
    "trinity_countdown": (
        ("<answer>4*6*1</answer>", GAME, 1, "countdown_reward.CountDownRewardFn"),
        ("<answer>4*6</answer>", GAME, 0.1, "eval_utils.validate_equation: all numbers"),
        ("<answer>4+6+1</answer>", GAME, 0.1, "countdown_reward: another value"),
        ("<answer>nothing</answer>", GAME, 0.1, "countdown_reward: format_score"),
        ("<answer>4*6*1</answer>\ndone", GAME, 0, "eval_utils.extract_solution: the last line"),
        ("4*6*1", GAME, 0, "eval_utils.extract_solution: None"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_scores(name):
    reward = load_reward_function(name)
    for response, truth, score, source in CASES[name]:
        given = () if name == "trinity_format" else (truth,)
        assert reward(response, *given) == pytest.approx(score), (response, source)


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
def test_verl_selects_the_scorer_by_data_source(source, response, truth, score):
    """`reward_score/__init__.py`: aime* is math_dapo's in line 50 of 0.4.1 and 59 of 0.9.0."""
    assert load_reward_function("verl_by_source")(response, truth, source) == score


def test_an_unknown_data_source_is_refused_by_name():
    with pytest.raises(ValueError, match=r"the data_source 'openai/gsm9k'.*custom_reward_function"):
        load_reward_function("verl_by_source")("#### 1", "1", "openai/gsm9k")


def test_gsm8k_counts_in_the_last_300_characters_since_verl_0_5():
    """gsm8k.py of 0.9: _SOLUTION_CLIP_CHARS; 0.4.1 searches all of the response."""
    text, reward = "#### 72 " + "." * 300, load_reward_function("verl_by_source")
    assert reward(text, "72", "openai/gsm8k", version="0.9") == 0
    assert reward(text, "72", "openai/gsm8k") == 1


BOX = r"so \boxed{34}"


@pytest.mark.parametrize(
    ("response", "version", "score", "prediction"),
    [
        (BOX, "0.4", -1, "[INVALID]"),
        (BOX, "0.5", -1, "[INVALID]"),
        (BOX, "0.9", 1, "34"),
        (r"\boxed{33} so \boxed{34}", "0.9", 1, "34"),
        (r"\boxed{34} so \boxed{33}", "0.9", -1, "33"),
        (r"\boxed{34}\nAnswer: 33", "0.9", -1, "33"),
        (r"Answer: 34 or \boxed{33}", "0.9", -1, "34or33"),
        (r"\boxed{34 }", "0.9", -1, "34 "),
        (r"\boxed{34", "0.9", -1, "[INVALID]"),
        (BOX + "." * 93, "0.9", -1, "[INVALID]"),
        (BOX + "." * 89, "0.9", 1, "34"),
        ("none", "0.9", -1, "[INVALID]"),
    ],
)
def test_math_dapo_falls_back_to_the_last_box_in_verl_0_9_1(response, version, score, prediction):
    """math_dapo.py of 0.9.1, verify: is_correct_strict_box in the last 100 characters, compared as text; 0.9.0 and
    earlier have no such fallback."""
    response = response.replace(r"\n", "\n")
    by_source = load_reward_function("verl_by_source")
    for found in (
        load_reward_function("verl_math_dapo")(response, "34", version=version),
        by_source(response, "34", "math_dapo", version=version),
        by_source(response, "34", "aime2025", version=version),
    ):
        assert (found, found.prediction, found.is_right) == (score, prediction, score > 0)


def test_math_dapo_returns_verls_score_acc_and_pred():
    value, parts = RewardFunctionSpec.of("verl_math_dapo").load()(RewardInput("Answer: 3", (), answer="4"))
    assert (value, parts, parts.prediction) == (-1.0, {"acc": 0.0}, "3")


_LATEX = st.text(alphabet=r"0123456789./\{}fracsqtx=+- ", max_size=30)


@given(_LATEX, _LATEX)
def test_equality_is_reflexive_and_symmetric(one, other):
    assert isinstance(minerva.normal_form(one), str)
    for is_equal in (hendrycks.is_equal, qwen.is_equal):
        assert is_equal(one, one)
        assert is_equal(one, other) == is_equal(other, one)


@given(st.integers(-999, 999), st.integers(1, 999))
def test_spellings_of_a_fraction_are_one_answer(above, below):
    braced = f"\\frac{{{above}}}{{{below}}}"
    plain = f"{above}/{below}"
    spellings = (plain, f"x = {plain}", braced, f" {braced} ", braced.replace("frac", "dfrac"))
    assert {hendrycks.normal_form(each) for each in spellings} == {braced}


# Reward function classes written for Trinity-RFT
FILE = """
from trinity.common.rewards.reward_fn import REWARD_FUNCTIONS, RewardFn
from trinity.utils.eval_utils import validate_think_pattern
from trinity.utils.log import get_logger

logger = get_logger(__name__)

@REWARD_FUNCTIONS.register_module("short")
class Short(RewardFn):
    def __init__(self, limit):
        self.limit = limit
    def __call__(self, response, truth=None, **kwargs):
        return {"short": float(len(response) <= self.limit), "right": 0.5 * (truth in response),
                "think": 0.1 * validate_think_pattern(response)}
"""


def test_a_class_is_a_reward_function_of_a_run(tmp_path):
    file = tmp_path / "short.py"
    file.write_text(FILE)
    spec = RewardFunctionSpec.of(f"{file}:Short", args={"limit": 4})
    value, parts = spec.load()(RewardInput("four", (), answer="our"))
    assert (value, parts) == (1.5, {"short": 1.0, "right": 0.5, "think": 0.0})
    with pytest.raises(RewardError, match=r"Short\(\.\.\.\) raised TypeError: .*limit"):
        RewardFunctionSpec.of(f"{file}:Short")


@pytest.mark.parametrize(
    ("name", "options", "response", "expected"),
    [
        ("math_reward", {}, "<think>\nadd\n</think>\n<answer>\n4\n</answer>", 1.1),
        ("math_reward", {}, "4", 0.9),
        ("math_boxed_reward", {}, "\\boxed{4}", 1.0),
        ("math_boxed_reward", {"with_think": True, "format_score_coef": 0.3}, "\\boxed{4}", 0.7),
        ("accuracy_reward", {}, "it is 5", 0.0),
    ],
)
def test_trinitys_own_classes_give_its_rewards(name, options, response, expected):
    parts = REWARD_FN_CLASSES[name]()(response=response, truth="4", **options)
    assert sum(parts.values()) == pytest.approx(expected)
