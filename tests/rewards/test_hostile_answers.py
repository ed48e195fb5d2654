"""Hostile answers: each built-in grader returns a number, after bounded work, and no worker process dies."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest

from strop.config.schema.reward import RewardConfig
from strop.rewards.builtin.choice import choice_reward
from strop.rewards.builtin.countdown import countdown_reward
from strop.rewards.builtin.exact import exact_reward
from strop.rewards.builtin.format import format_reward
from strop.rewards.builtin.gsm8k import gsm8k_reward
from strop.rewards.builtin.math import math_reward
from strop.rewards.execution import worker_pool
from strop.rewards.execution.worker_pool import RewardWorkerProcess
from strop.rewards.graders import LimitExceeded
from strop.rewards.majority_vote import final_answer
from strop.rewards.scorer import Scorer
from tests.rewards.builders import group
from tests.rewards.hostile_answers import EXPRESSIONS, GAMES, TEXTS

FORMS = (r"so \boxed{{{}}}", "#### {}", "Answer: {}", "The answer is ({})", "<answer>{}</answer>")
GOLDS = (
    "5",
    r"\frac{\pi}{4}",
    "x^2 + 1",
    "x = 3",
    "x > 5",
    "(1, 2]",
    r"\{1, 2\}",
    r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}",
    r"10\%",
    r"\text{east}",
    "2^{2^{2020}}",
)
GAME = {"target": 3, "numbers": [3]}
GRADERS: dict[str, Callable[[str], float]] = {
    "gsm8k": partial(gsm8k_reward, answer="5"),
    "gsm8k flexible": partial(gsm8k_reward, answer="5", method="flexible"),
    "countdown": partial(countdown_reward, answer=GAME),
    "choice": partial(choice_reward, answer="B"),
    "format": format_reward,
    "format strict": partial(format_reward, method="strict"),
    "exact": partial(exact_reward, answer="B"),
    "exact last line": partial(exact_reward, answer="B", part="last_line", case_sensitive=False),
    "majority vote": lambda text: float(len(final_answer(text))),
    "math": partial(math_reward, answer="5"),
    "math flexible": partial(math_reward, answer="5", method="flexible"),
}


@pytest.mark.slow
@pytest.mark.parametrize("grader", GRADERS)
def test_the_time_is_linear_in_the_text(grader):
    """Each text of a megabyte would take minutes to hours if the time were quadratic in it."""
    forms = () if grader.startswith("math") else FORMS
    for text in (*(form.format(each) for form in forms for each in EXPRESSIONS.values()), *TEXTS.values()):
        value = GRADERS[grader](text)
        assert isinstance(value, float) and math.isfinite(value)


@pytest.mark.parametrize("numbers", ["all", "some"])
def test_countdown(numbers):
    rewards = {
        name: countdown_reward(f"<answer>{said}</answer>", GAME, numbers=numbers)
        for name, said in GAMES.items()
    }
    assert rewards == dict.fromkeys(GAMES, 0)


RIGHT = {"boxes", "control characters", "full-width digits", "NUL"}
"""Answers that are 5."""
LIMITED = ("power tower", "factorial", "sum", "digits", "braces", "matrix", "binomial of towers")
NOT_LIMITED = ("nan", "import", "empty", "fraction character", "lone surrogate")


def test_math_says_which_answers_exceed_its_limits():
    for name in (*LIMITED, *NOT_LIMITED):
        reward = math_reward(rf"so \boxed{{{EXPRESSIONS[name]}}}", "5")
        assert (reward, isinstance(reward, LimitExceeded)) == (0.0, name in LIMITED), name


def _by_worker(monkeypatch, method, answers):
    """Rewards of (gold answer, name, response) by `math` in one worker, which no response makes Strop replace."""
    started = []

    class Counted(RewardWorkerProcess):
        def __init__(self, *args):
            started.append(self)
            super().__init__(*args)

    monkeypatch.setattr(worker_pool, "RewardWorkerProcess", Counted)
    groups = [group([text], gold, name=f"{gold}: {name}") for gold, name, text in answers]
    math = {"function": "math", "args": {"method": method}}
    with Scorer(RewardConfig(functions=[math], workers=1)) as scorer:
        rollouts = [scored.rollouts[0] for scored in scorer.score(groups)]
    assert {rollout.task_id: rollout.error for rollout in rollouts if rollout.error} == {}
    assert len(started) == 1, "a response exceeded the time limit or ended the worker"
    return {(gold, name): rollout for (gold, name, _), rollout in zip(answers, rollouts, strict=True)}


def _check_boxed(monkeypatch, cases):
    answers = [(gold, name, rf"so \boxed{{{EXPRESSIONS[name]}}}") for gold, name in cases]
    found = _by_worker(monkeypatch, "strict", answers)
    assert {name for (gold, name), rollout in found.items() if rollout.reward} <= RIGHT
    assert {name for (gold, name), rollout in found.items() if rollout.reward and gold == "5"} == RIGHT
    assert all(found["5", name].reward_limit_exceeded for name in LIMITED)
    assert not any(found["5", name].reward_limit_exceeded for name in NOT_LIMITED)


@pytest.mark.slow
def test_math_on_boxed_answers(monkeypatch):
    """Every answer for the gold answer 5 and for one other."""
    others = [(GOLDS[1 + number % (len(GOLDS) - 1)], name) for number, name in enumerate(EXPRESSIONS)]
    _check_boxed(monkeypatch, [*(("5", name) for name in EXPRESSIONS), *others])


@pytest.mark.nightly
def test_math_on_boxed_answers_with_every_kind_of_gold_answer(monkeypatch):
    _check_boxed(monkeypatch, [(gold, name) for gold in GOLDS for name in EXPRESSIONS])


@pytest.mark.slow
@pytest.mark.parametrize("method", ["strict", "flexible"])
def test_math_on_answers_outside_of_a_box(method, monkeypatch):
    forms = ("Answer: {}", "the answer is ${}$")
    answers = [
        ("5", f"{form} {name}", form.format(text)) for form in forms for name, text in EXPRESSIONS.items()
    ]
    _by_worker(monkeypatch, method, answers)


def test_a_limit_is_a_plain_zero_for_other_functions():
    value = gsm8k_reward("#### 5", "5") + LimitExceeded(0.0)
    assert value == 1.0 and not LimitExceeded(0.0)
