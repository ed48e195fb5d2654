"""The built-in reward `code`: programs in responses, forms of tests, partial scores, and forged passes."""

from __future__ import annotations

import gzip
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from strop.config.load.loader import load_run
from strop.config.schema.reward import RewardConfig
from strop.config.schema.sandbox import LocalSandboxConfig
from strop.errors import RewardError, SandboxError
from strop.rewards.builtin.by_source import by_source_reward
from strop.rewards.builtin.code import code_reward
from strop.rewards.code.cases import same_output
from strop.rewards.code.extraction import complete_program, extract_program
from strop.rewards.scorer import Scorer
from strop.sandbox.registry import open_sandbox
from tests.datasets import SHARED
from tests.rewards.builders import group

SANDBOX = LocalSandboxConfig(timeout_seconds=30)


@pytest.fixture(scope="module", autouse=True)
def _needs_isolation() -> None:
    try:
        open_sandbox(SANDBOX)
    except SandboxError as error:
        pytest.skip(str(error))


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
def test_humaneval_form(completion: str, expected: float) -> None:
    prompt = [{"role": "user", "content": f"Complete the function.\n\n{PROMPT}"}]
    assert score(completion, TEST, prompt, "root") == expected


def test_a_list_of_asserts() -> None:
    tests = [
        "assert double(1) == 2",
        "assert double(2) == 4",
        "assert double('a') == 'aa'",
        "assert double(0) == 1",
    ]
    program = "```python\ndef double(x):\n    return 2 * x\n```"
    assert score(program, tests[:3]) == 1.0
    assert score(program, tests) == 0.0
    assert score(program, tests, partial=True) == 0.75
    assert (
        score(program, json.dumps({"test_list": tests, "test_setup_code": "import math"}), partial=True)
        == 0.75
    )
    assert score(program, tests, partial=True, max_tests=2) == 1.0


def test_inputs_and_outputs() -> None:
    program = "```python\nn = int(input())\nprint(sum(int(input()) for _ in range(n)))\n```"
    spec = {"inputs": ["2\n1\n2\n", "1\n5", "0"], "outputs": ["3\n", "5.0", "1"]}
    assert score(program, spec, partial=True) == pytest.approx(2 / 3)
    assert score(program, json.dumps(spec)) == 0.0
    cases = [{"input": "2\n1\n2\n", "output": "3", "testtype": "stdin"}]
    assert score(program, json.dumps(cases)) == 1.0
    assert score("```python\nprint(3); 1 / 0\n```", cases) == 0.0


@pytest.mark.parametrize("head", ["def add(a, b):", "class Solution:\n  def add(self, a, b):"])
def test_calls_of_a_function(head: str) -> None:
    spec = {"fn_name": "add", "inputs": [[1, 2], [[1], [2]], "3\n4"], "outputs": [3, [1, 2], "7"]}
    assert score(f"```python\n{head}\n    print('noise')\n    return a + b\n```", spec) == 1.0
    assert score(f"```python\n{head}\n    return 3\n```", spec, partial=True) == pytest.approx(1 / 3)


def test_a_slow_program_is_wrong_and_no_failure() -> None:
    program = "```python\ndef f(x):\n    while x: pass\n    return 1\n```"
    tests = ["assert f(0)", "assert f(1)", "assert f(2)"]
    assert score(program, tests, partial=True, budget_seconds=1.0) <= 1 / 3


@pytest.mark.parametrize("answer", ["", [], {"inputs": ["a"], "outputs": []}, {"x": 1}, 3, None])
def test_answers_without_tests(answer: Any) -> None:
    if answer == "":
        assert score("```python\nx = 1\n```", answer) == 1.0  # a program without asserts has to run
        return
    with pytest.raises(ValueError, match="the task's answer"):
        score("```python\nx = 1\n```", answer)


def test_extraction() -> None:
    assert extract_program("a\n```python\n1\n```\n```py\n2\n```\n```sh\n3\n```") == "2\n"
    assert extract_program("a\n```\n1\n```\n") == "1\n"
    assert extract_program("```python\n1\n") == "1\n"  # cut off at the maximum length
    assert extract_program("return 1") == "return 1"
    assert complete_program("x = 1", "Write a program.", "f") == "x = 1"


def test_output_comparison() -> None:
    assert same_output("1 2 \n3\n\n", "1 2\n3")
    assert same_output("1.0", "1") and same_output("yes", "yes")
    assert not same_output("1 2", "1\n2") and not same_output("Yes", "yes") and not same_output("1.01", "1")


def test_programs_of_mixed_data() -> None:
    spec = json.dumps({"inputs": ["1", "2"], "outputs": ["1", "2"]})
    for source in ("codecontests", "apps", "codeforces", "taco"):
        assert by_source_reward("```python\nprint(1)\n```", spec, source, sandbox=SANDBOX) == 0.5


def test_in_reward_workers() -> None:
    section = RewardConfig(
        functions=[{"function": "code", "args": {"partial": True}}, {"function": "by_source", "weight": 0.1}],
        workers=2,
        sandbox={"timeout_seconds": 20},
    )
    texts = [
        "```python\nprint(1)\n```",
        "```python\nimport os; os.kill(os.getppid(), 9)\n```",
        "print(int(input()))",
    ]
    groups = [group(texts, {"inputs": ["1", "2"], "outputs": ["1", "2"]}, source="taco")]
    with Scorer(section) as scorer:
        (scored,) = scorer.score(groups)
    assert [r.reward_parts for r in scored.rollouts] == [
        {"code": 0.5, "by_source": 0.5},
        {"code": 0.0, "by_source": 0.0},
        {"code": 1.0, "by_source": 1.0},
    ]


def test_unknown_arguments_and_a_sandbox_that_is_not_safe_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RewardError, match="unknown argument 'partail'"):
        Scorer(RewardConfig(functions=[{"function": "code", "args": {"partail": True}}]))
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(SandboxError, match="namespaced"):
        Scorer(
            RewardConfig(
                functions=[{"function": "code"}], sandbox={"minimum": "namespaced", "memory_mb": 600}
            )
        )


def test_the_example() -> None:
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


@pytest.mark.faults
@pytest.mark.parametrize("mechanism", ["process", "bubblewrap"])
def test_humaneval(mechanism: Any) -> None:
    file = SHARED / "humaneval/HumanEval.jsonl.gz"
    if not file.exists():
        pytest.skip("the HumanEval tasks are not in this checkout's shared data")
    try:
        sandbox = LocalSandboxConfig(mechanism=mechanism, timeout_seconds=60)
        open_sandbox(sandbox)
    except SandboxError as error:
        pytest.skip(str(error))
    rows = [json.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()]

    def scored(row: dict[str, Any], completion: str) -> float:
        prompt = [{"role": "user", "content": row["prompt"]}]
        return code_reward(
            completion, row["test"], prompt, row["entry_point"], sandbox=sandbox, budget_seconds=60
        )

    def scores(row: dict[str, Any]) -> tuple[float, float, float]:
        body = row["canonical_solution"]
        whole = f"Here it is:\n```python\n{row['prompt']}{body}\n```\n"
        return scored(row, body), scored(row, whole), scored(row, "    return None\n")

    with ThreadPoolExecutor(2) as executor:
        assert list(executor.map(scores, rows)) == [(1.0, 1.0, 0.0)] * 164
