"""Hostile answers: each built-in grader returns a number, after bounded work, and no worker process dies."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest

from strop.config.schema.reward import RewardConfig
from strop.rewards.builtin.choice import choice_reward
from strop.rewards.builtin.countdown import countdown_reward
from strop.rewards.builtin.exact import exact_reward
from strop.rewards.builtin.format import format_reward
from strop.rewards.builtin.gsm8k import gsm8k_reward
from strop.rewards.execution import worker_pool
from strop.rewards.execution.worker_process import RewardWorkerProcess
from strop.rewards.limits import LimitExceeded
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
CHEAP: dict[str, Callable[[str], float]] = {
    "gsm8k": partial(gsm8k_reward, answer="5"),
    "gsm8k flexible": partial(gsm8k_reward, answer="5", method="flexible"),
    "countdown": partial(countdown_reward, answer=GAME),
    "choice": partial(choice_reward, answer="B"),
    "format": format_reward,
    "format strict": partial(format_reward, method="strict"),
    "exact": partial(exact_reward, answer="B"),
    "exact last line": partial(exact_reward, answer="B", part="last_line", case_sensitive=False),
    "majority vote": lambda text: float(len(final_answer(text))),
}


def _responses() -> list[str]:
    return [*(form.format(each) for form in FORMS for each in EXPRESSIONS.values()), *TEXTS.values()]


@pytest.mark.slow
@pytest.mark.parametrize("grader", CHEAP)
def test_cheap_graders_are_linear(grader: str) -> None:
    """Each text of a megabyte would take minutes to hours if the time were quadratic in it."""
    for text in _responses():
        value = CHEAP[grader](text)
        assert isinstance(value, float) and math.isfinite(value)


@pytest.mark.parametrize("expression", GAMES)
def test_countdown(expression: str) -> None:
    for numbers in ("all", "some"):
        said = f"<answer>{GAMES[expression]}</answer>"
        assert countdown_reward(said, GAME, numbers=numbers) == 0


def _graded_in_processes(
    monkeypatch: pytest.MonkeyPatch, reward: dict[str, Any], graded: Iterable[tuple[str, str]]
) -> dict[str, tuple[float, bool]]:
    """Reward of each named response, and whether it exceeded a limit; fails if a worker process was replaced."""
    started = []

    class Counted(RewardWorkerProcess):
        def __init__(self, *args: Any) -> None:
            started.append(self)
            super().__init__(*args)

    monkeypatch.setattr(worker_pool, "RewardWorkerProcess", Counted)
    names, texts = zip(*graded, strict=True)
    section = RewardConfig.model_validate({"functions": [reward["function"]], "workers": 1})
    with Scorer(section) as scorer:
        (scored,) = scorer.score([group(list(texts), reward["answer"], source="math_dapo")])
    errors = {
        name: rollout.error for name, rollout in zip(names, scored.rollouts, strict=True) if rollout.error
    }
    assert errors == {}
    assert len(started) == 1, "a response exceeded the time limit or ended the worker"
    return {
        name: (rollout.reward or 0.0, rollout.reward_limit_exceeded)
        for name, rollout in zip(names, scored.rollouts, strict=True)
    }


RIGHT = {"boxes", "control characters", "line separators"}
"""Answers that are 5."""


def test_math_in_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    boxed = [(name, rf"so \boxed{{{text}}}") for name, text in EXPRESSIONS.items()]
    found = _graded_in_processes(monkeypatch, {"function": {"function": "math"}, "answer": "5"}, boxed)
    assert {name for name, (reward, _) in found.items() if reward} == RIGHT
    for name in ("power tower", "factorial", "sum", "digits", "braces", "matrix", "binomial of towers"):
        assert found[name] == (0.0, True), name
    for name in ("nan", "import", "empty", "fraction character", "lone surrogate"):
        assert found[name] == (0.0, False), name


@pytest.mark.faults
@pytest.mark.parametrize("gold", GOLDS)
def test_math_with_every_kind_of_gold_answer(gold: str, monkeypatch: pytest.MonkeyPatch) -> None:
    boxed = [(name, rf"so \boxed{{{text}}}") for name, text in EXPRESSIONS.items()]
    found = _graded_in_processes(monkeypatch, {"function": {"function": "by_source"}, "answer": gold}, boxed)
    assert {name for name, (reward, _) in found.items() if reward} <= RIGHT


@pytest.mark.faults
@pytest.mark.parametrize("method", ["strict", "flexible"])
def test_math_on_texts(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function = {"function": "math", "args": {"method": method}}
    lines = [(name, f"Answer: {text}") for name, text in EXPRESSIONS.items()]
    formulas = [(f"formula: {name}", f"the answer is ${text}$") for name, text in EXPRESSIONS.items()]
    _graded_in_processes(
        monkeypatch, {"function": function, "answer": "5"}, [*TEXTS.items(), *lines, *formulas]
    )


def test_a_limit_is_a_plain_zero_for_other_functions() -> None:
    value = gsm8k_reward("#### 5", "5") + LimitExceeded(0.0)
    assert value == 1.0 and not LimitExceeded(0.0)
