"""verl's scorer of programs, against verl's `reward_score/prime_code` (0.4.1)."""

from __future__ import annotations

import json

import pytest

from strop.config.schema.sandbox import LocalSandboxConfig
from strop.errors import SandboxError
from strop.rewards.upstream.verl_code import after_python_fence, fenced, verl_code_reward
from strop.sandbox.registry import open_sandbox

SANDBOX = LocalSandboxConfig(timeout_seconds=30)
ADD = json.dumps({"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "8\n"]})
CALLS = {"fn_name": "add", "inputs": ["1\n2", "3\n4"], "outputs": ["3", "7"]}


@pytest.fixture(scope="module", autouse=True)
def _needs_isolation() -> None:
    try:
        open_sandbox(SANDBOX)
    except SandboxError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    ("text", "answer", "score"),
    [
        # prime_code.compute_score: the fraction of the tests that pass
        ("```python\na, b = map(int, input().split())\nprint(a + b)\n```", ADD, 0.5),
        # testing_util.run_test: names of the prelude, and a line that is a number up to rounding
        ("```python\nprint(sqrt(sum(map(int, input().split())) ** 2) + 1e-7)\n```", ADD, 0.5),
        # prime_code.compute_score: without a fence that names Python, the text before the first fence
        ("```\nprint(3)\n```", ADD, 0.0),
        ("print(3)", ADD, 0.5),
        # testing_util.run_test, call_based: a method of Solution, with List of the prelude
        (
            "```python\nclass Solution:\n    def add(self, a: int, b: int) -> int:\n        return a + b\n```",
            CALLS,
            1.0,
        ),
        ("```python\ndef add(a, b) -> List[int]:\n    return 3\n```", CALLS, 0.0),
        ("```python\nprint(3)\n```", "no tests", 0.0),
    ],
)
def test_scores(text: str, answer: object, score: float) -> None:
    assert verl_code_reward(text, answer, sandbox=SANDBOX) == score


def test_extraction() -> None:
    """prime_code.compute_score, and sandbox_fusion.compute_score, which also reads other fences."""
    text = "```python\na\n``` and ```python\nb\n``` end"
    assert after_python_fence(text) == fenced(text) == "\nb\n"
    assert fenced("so ```cpp\nx\n```") == "x\n" and fenced("no fence") is None
