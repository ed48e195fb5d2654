"""The built-in reward `code`: programs in responses, forms of tests, partial scores, and forged passes."""

from __future__ import annotations

import gzip
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from strop.compat.verl.scorers import (
    _are_close,
    _cases,
    after_python_fence,
    fenced,
    verl_code_reward,
)
from strop.config.load.loader import load_run, load_values
from strop.config.schema.reward import LocalSandboxConfig, RewardConfig
from strop.errors import RewardError, SandboxError
from strop.rewards.builtin.by_source import by_source_reward
from strop.rewards.builtin.code import code_reward, extract_program, prompt_beginning, same_output
from strop.rewards.scorable_tasks import unscorable_tasks
from strop.rewards.scorer import Scorer
from strop.sandbox.registry import open_sandbox
from tests.cases import nightly
from tests.datasets import SHARED
from tests.rewards.builders import group
from tests.rewards.isolation import SANDBOX, needs_isolation  # noqa: F401  (a fixture of this module)


def score(completion: str, answer: Any, *arguments: Any, **options: Any) -> float:
    return code_reward(completion, answer, *arguments, sandbox=SANDBOX, **options)


PROMPT = '''from typing import List


def poly(xs: list, x: float):
    return sum(c * x**i for i, c in enumerate(xs))


def root(xs: List[int]) -> int:
    """Smallest non-negative integer root."""
'''
TEST = "def check(candidate):\n    assert candidate([-4, 2]) == 2\n    assert candidate([-3, 1]) == 3\n"
BODY = "    x = 0\n    while poly(xs, x):\n        x += 1\n    return x\n"


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        (BODY, 1.0),
        (f"```python\n{BODY}```", 1.0),
        ("```python\nx = 0\nwhile poly(xs, x):\n    x += 1\nreturn x\n```", 1.0),
        (f"Let me think.\n```python\n{PROMPT}{BODY}```\nThis works.", 1.0),
        (f"```\nroot(\n```\n```python\ndef root(xs):\n{BODY}\n```", 1.0),
        ("    return None\n", 0.0),
        ("    import os; os._exit(0)\n", 0.0),
        ("    raise SystemExit\n", 0.0),
        ("I do not know.", 0.0),
        ("", 0.0),
    ],
)
def test_humaneval_form(completion, expected):
    prompt = [{"role": "user", "content": f"Complete the function.\n\n{PROMPT}"}]
    assert score(completion, TEST, prompt, "root") == expected


@pytest.mark.parametrize("test", ["assert root([-4, 2]) == 2", ["assert root([-4, 2]) == 2"]])
def test_asserts_about_a_function_that_the_prompt_begins(test):
    prompt = [{"role": "user", "content": PROMPT}]
    assert score(BODY, test, prompt, "root") == 1.0
    assert score("    return None\n", test, prompt, "root") == 0.0


def test_a_list_of_asserts():
    tests = [f"assert double({case}" for case in ("1) == 2", "2) == 4", "'a') == 'aa'", "0) == 1")]
    program = "```python\ndef double(x):\n    return 2 * x\n```"
    assert score(program, tests[:3]) == 1.0
    assert score(program, tests) == 0.0
    assert score(program, tests, partial=True) == 0.75
    with_setup = json.dumps({"test_list": tests, "test_setup_code": "import math"})
    assert score(program, with_setup, partial=True) == 0.75
    assert score(program, tests, partial=True, max_tests=2) == 1.0


def test_inputs_and_outputs():
    program = "```python\nn = int(input())\nprint(sum(int(input()) for _ in range(n)))\n```"
    spec = {"inputs": ["2\n1\n2\n", "1\n5", "0"], "outputs": ["3\n", "5.0", "1"]}
    assert score(program, spec, partial=True) == pytest.approx(2 / 3)
    assert score(program, json.dumps(spec)) == 0.0
    cases = [{"input": "2\n1\n2\n", "output": "3", "testtype": "stdin"}]
    assert score(program, json.dumps(cases)) == 1.0
    assert score("```python\nprint(3); 1 / 0\n```", cases) == 0.0


@pytest.mark.parametrize("head", ["def add(a, b):", "class Solution:\n  def add(self, a, b):"])
def test_calls_of_a_function(head):
    spec = {"fn_name": "add", "inputs": [[1, 2], [[1], [2]], "3\n4"], "outputs": [3, [1, 2], "7"]}
    assert score(f"```python\n{head}\n    print('noise')\n    return a + b\n```", spec) == 1.0
    assert score(f"```python\n{head}\n    return 3\n```", spec, partial=True) == pytest.approx(1 / 3)


def test_a_slow_program_is_wrong_and_no_failure():
    program = "```python\ndef f(x):\n    while x: pass\n    return 1\n```"
    tests = ["assert f(0)", "assert f(1)", "assert f(2)"]
    assert score(program, tests, partial=True, budget_seconds=1.0) <= 1 / 3


PYTEST = """from solution import double as twice, half

def test_double():
    assert twice(3) == 6

def test_half():
    assert half(6) == 3
"""
METHODS = """class TestAll:
    def setup_method(self):
        self.six = 6
    def test_half(self):
        assert half(self.six) == 3
"""
UNITTEST = """import unittest

class TestAll(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.three = 3
    def setUp(self):
        self.six = 6
    def test_double(self):
        self.assertEqual(double(self.three), self.six)
    def test_half(self):
        for number in (2, 6):
            with self.subTest(number):
                self.assertEqual(half(number), number / 2)
"""
BOTH = "def double(x):\n    return 2 * x\ndef half(x):\n    return x // 2\n"
ONE = "def double(x):\n    return 2 * x\ndef half(x):\n    return 3 * x\n"


@pytest.mark.parametrize(
    ("tests", "of_one"),
    [
        (PYTEST, 0.5),  # KodCode
        (METHODS, 0.0),
        (UNITTEST, 0.5),  # BigCodeBench
        (PYTEST + "test_double()\n", 0.0),  # test_half is not
        ("def test_it():\n    assert half(4) == 2\n" * 2, 0.0),
    ],
    ids=["functions", "methods", "unittest", "one is called", "a name twice"],
)
def test_test_functions_are_called(tests: str, of_one: float) -> None:
    assert score(BOTH, tests) == 1.0
    assert score(ONE, tests) == 0.0
    assert score(ONE, tests, partial=True) == of_one


@pytest.mark.parametrize(
    ("tests", "reason"),
    [
        (
            TEST,
            "run nothing, so that every program passes; name the function to check in a column `entry_point`",
        ),
        ("x = 1\n", "run nothing, so that every program passes; write asserts"),
        ("", "run nothing"),
        (["def helper(): assert f(1)"], "run nothing"),
        ("def test_f(number):\n    assert f(number)", "test_f, whose parameters pytest would fill in"),
    ],
)
def test_tests_that_run_nothing_are_refused_before_the_run(tmp_path: Path, tests: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        score(BOTH, tests)
    (tmp_path / "tasks.jsonl").write_text(json.dumps({"prompt": "Write f.", "tests": tests}) + "\n")
    run = load_values(
        {
            "model": {"path": "m"},
            "data": {"train": {"path": str(tmp_path / "tasks.jsonl"), "answer": "tests"}},
            "algorithm": "grpo",
            "reward": "code",
            "trainer": {"duration": "1 steps"},
        }
    ).run
    (fault,) = unscorable_tasks(run)
    assert "1 of 1 rows have an answer in the column 'tests' that the reward code cannot use" in fault
    assert reason in fault


@pytest.mark.parametrize("answer", [[], {"inputs": ["a"], "outputs": []}, {"x": 1}, 3, None])
def test_answers_without_tests(answer):
    with pytest.raises(ValueError, match="the task's answer"):
        score("```python\nx = 1\n```", answer)


def test_an_answer_that_is_nested_too_deep_for_json_is_code_that_fails():
    assert score("```python\nx = 1\n```", "[" * 100_000) == 0.0


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("a\n```python\n1\n```\n```py\n2\n```\n```sh\n3\n```", "2\n"),
        ("a\n```\n1\n```\n", "1\n"),
        ("```python\n1\n", "1\n"),  # cut off at the maximum length
        ("return 1", "return 1"),
    ],
)
def test_extraction(text, program):
    assert extract_program(text) == program
    assert prompt_beginning("Write a program.", "f") is None


@pytest.mark.parametrize(
    ("output", "expected", "same"),
    [
        ("1 2 \n3\n\n", "1 2\n3", True),
        ("1.0", "1", True),
        ("yes", "yes", True),
        ("1 2", "1\n2", False),
        ("Yes", "yes", False),
        ("1.01", "1", False),
    ],
)
def test_output_comparison(output, expected, same):
    assert same_output(output, expected) is same


@pytest.mark.parametrize("source", ["codecontests", "apps", "codeforces", "taco"])
def test_programs_of_mixed_data(source):
    spec = json.dumps({"inputs": ["1", "2"], "outputs": ["1", "2"]})
    assert by_source_reward("```python\nprint(1)\n```", spec, source, sandbox=SANDBOX) == 0.5


@pytest.mark.slow
def test_in_reward_workers():
    section = RewardConfig(
        functions=[{"function": "code", "args": {"partial": True}}, {"function": "by_source", "weight": 0.1}],
        workers=1,
        sandbox={"timeout_seconds": 20},
    )
    programs = ("print(1)", "import os; os.kill(os.getppid(), 9)", "print(int(input()))")
    texts = [f"```python\n{program}\n```" for program in programs]
    answer = {"inputs": ["1", "2"], "outputs": ["1", "2"]}
    with Scorer(section) as scorer:
        (scored,) = scorer.score([group(texts, answer, source="taco")])
    assert [r.reward_parts for r in scored.rollouts] == [
        {"code": value, "by_source": value} for value in (0.5, 0.0, 1.0)
    ]


def test_unknown_arguments_and_a_sandbox_that_is_not_safe_enough(monkeypatch):
    with pytest.raises(RewardError, match="unknown argument 'partail'"):
        Scorer(RewardConfig(functions=[{"function": "code", "args": {"partail": True}}]))
    monkeypatch.setenv("PATH", "/nonexistent")
    sandbox = {"minimum": "namespaced", "memory_mb": 600}
    with pytest.raises(SandboxError, match="namespaced"):
        Scorer(RewardConfig(functions=[{"function": "code"}], sandbox=sandbox))


@pytest.mark.slow
def test_the_example():
    folder = Path(__file__).parents[2] / "examples/code"
    run = load_run(folder / "grpo.yaml").run
    programs = [
        "def double(x): return 2 * x",
        "def is_even(n): return n % 2 == 0",
        "print(int(input()) + int(input()))",
        "def longest(words): return max(words, key=len)",
    ]
    rows = [json.loads(line) for line in (folder / "tasks.jsonl").read_text().splitlines()]
    groups = [
        group([f"```python\n{program}\n```", "def"], row["tests"], name=program)
        for program, row in zip(programs, rows, strict=True)
    ]
    with Scorer(run.reward) as scorer:
        assert [[r.reward for r in g.rollouts] for g in scorer.score(groups)] == [[1.0, 0.0]] * 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mechanism", "step"), [("process", 40), ("bubblewrap", 40), *nightly(("process", 1), ("bubblewrap", 1))]
)
def test_humaneval(mechanism, step):
    """Every fortieth problem, in the nightly run every one."""
    file = SHARED / "humaneval/HumanEval.jsonl.gz"
    if not file.exists():
        pytest.skip("the HumanEval tasks are not in this checkout's shared data")
    try:
        sandbox = LocalSandboxConfig(mechanism=mechanism, timeout_seconds=60)
        open_sandbox(sandbox)
    except SandboxError as error:
        pytest.skip(str(error))
    rows = [json.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()][::step]

    def scores(row):
        prompt, body = [{"role": "user", "content": row["prompt"]}], row["canonical_solution"]
        whole = f"Here it is:\n```python\n{row['prompt']}{body}\n```\n"
        options = {"sandbox": sandbox, "budget_seconds": 60}
        return [
            code_reward(completion, row["test"], prompt, row["entry_point"], **options)
            for completion in (body, whole, "    return None\n")
        ]

    with ThreadPoolExecutor(2) as executor:
        assert list(executor.map(scores, rows)) == [[1.0, 1.0, 0.0]] * len(rows)


# verl's scorer, against verl's `reward_score/prime_code` (0.4.1).
ADD = json.dumps({"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "8\n"]})
CALLS = {"fn_name": "add", "inputs": ["1\n2", "3\n4"], "outputs": ["3", "7"]}
METHOD = "class Solution:\n    def add(self, a: int, b: int) -> int:\n        return a + b"


@pytest.mark.parametrize(
    ("text", "answer", "expected"),
    [
        # prime_code.compute_score: the fraction of the tests that pass
        ("```python\na, b = map(int, input().split())\nprint(a + b)\n```", ADD, 0.5),
        # testing_util.run_test: names of the prelude, and a line that is a number up to rounding
        ("```python\nprint(sqrt(sum(map(int, input().split())) ** 2) + 1e-7)\n```", ADD, 0.5),
        # prime_code.compute_score: without a fence that names Python, the text before the first fence
        ("```\nprint(3)\n```", ADD, 0.0),
        ("print(3)", ADD, 0.5),
        # testing_util.run_test, call_based: a method of Solution, with List of the prelude
        (f"```python\n{METHOD}\n```", CALLS, 1.0),
        ("```python\ndef add(a, b) -> List[int]:\n    return 3\n```", CALLS, 0.0),
        ("```python\nprint(3)\n```", "no tests", 0.0),
    ],
)
def test_verls_scores(text, answer, expected):
    assert verl_code_reward(text, answer, sandbox=SANDBOX) == expected


def test_verls_extraction():
    """prime_code.compute_score, and sandbox_fusion.compute_score, which also reads other fences."""
    text = "```python\na\n``` and ```python\nb\n``` end"
    assert after_python_fence(text) == fenced(text) == "\nb\n"
    assert fenced("so ```cpp\nx\n```") == "x\n" and fenced("no fence") is None


@pytest.mark.parametrize(
    ("printed", "expected", "are_close"),
    [
        ("1", "1.000009", True),
        ("1", "1.00002", False),
        ("0", "0.000000009", True),
        ("0", "0.00000002", False),
        ("3 2", "3 2", True),
        ("3 2", "3", False),
        ("inf", "inf", False),
        ("nan", "nan", False),
        ("one", "one", False),
    ],
)
def test_verl_compares_printed_numbers_as_numpy_does(printed: str, expected: str, are_close: bool) -> None:
    assert _are_close(printed.split(), expected.split()) == are_close


@pytest.mark.parametrize(
    ("answer", "is_known"),
    [
        ({"inputs": ["1"], "outputs": ["2"]}, True),
        ('{"inputs": ["1"], "outputs": ["2"]}', True),
        ({"assert_case": ["assert f(1) == 2"]}, True),
        ({"inputs": ["1", "2"], "outputs": ["2"]}, False),
        ({"inputs": [], "outputs": []}, False),
        ({}, False),
        ("[1]", False),
        ("not JSON", False),
    ],
    ids=str,
)
def test_the_forms_of_verls_tests(answer: Any, is_known: bool) -> None:
    known = json.loads(answer) if isinstance(answer, str) and is_known else answer
    assert _cases(answer) == (known if is_known else {})
