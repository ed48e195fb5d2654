"""`verl_code`: verl's scorers of programs, `prime_code` and, with a Sandbox Fusion server, `sandbox_fusion`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strop.config.schema.reward import SandboxConfig, SandboxFusionConfig
from strop.rewards.builtin.code import DEFAULT_SANDBOX, CodeTest, code_tests, run_tests
from strop.sandbox.protocol import Program, ProgramResult
from strop.sandbox.registry import open_sandbox
from strop.workers.json_text import parse_json

_STARRED = (
    *("string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math"),
    *("random", "statistics", "itertools", "functools", "operator", "io", "sys", "json"),
    *("builtins", "typing"),
)
_MODULES = _STARRED[:-2]
PRELUDE = "".join(
    [*(f"from {name} import *\n" for name in _STARRED), *(f"import {name}\n" for name in _MODULES)]
)
"""Names that a program may use without importing them."""
_MAX_TESTS = 10


def verl_code_reward(
    completion: str, answer: Any, *, sandbox: SandboxConfig = DEFAULT_SANDBOX, budget_seconds: float = 24.0
) -> float:
    """Fraction of the first 10 tests that the response's program passes; 0 if the tests have no known form.

    `answer` is a mapping, or one as JSON: `inputs` and `outputs`, with `fn_name` for calls of a function. Without a
    server, all of the calls must pass, and the program is the text after the last fence that names Python, or before
    the first fence. With a server it is the last fenced block of Python, or the first fenced block.
    """
    remote = isinstance(sandbox, SandboxFusionConfig)
    program = fenced(completion) if remote else after_python_fence(completion)
    cases = _cases(answer)
    if program is None or not cases:
        return 0.0
    is_call = bool(cases.get("fn_name"))
    if "assert_case" in cases:
        tests = code_tests(
            program, {"test_list": list(cases["assert_case"])}, entry_point=None, separate=True
        )
    elif is_call:
        tests = code_tests(PRELUDE + program, cases, entry_point=None, separate=True)
    else:
        tests = _standard_input(program, cases, remote=remote)
    every = is_call and not remote
    outcomes = run_tests(
        open_sandbox(sandbox),
        tests[: None if every else _MAX_TESTS],
        sandbox.concurrency,
        budget_seconds,
        not every,
    )
    return float(all(outcomes)) if every else sum(outcomes) / len(outcomes)


def after_python_fence(text: str) -> str:
    """The text after the last fence that names Python, or else the entire text, up to the next fence."""
    return text.rpartition("```python")[2].partition("```")[0]


def fenced(text: str) -> str | None:
    """The last block whose fence names Python, or else the first block without its language; None without a fence."""
    if "```python" in text:
        return after_python_fence(text)
    pieces = text.split("```")
    if len(pieces) < 2:
        return None
    first, newline, rest = pieces[1].partition("\n")
    return rest if newline and first.strip().isalpha() else pieces[1]


def _cases(answer: Any) -> Mapping[str, Any]:
    """The tests; empty for a form that verl does not know."""
    if isinstance(answer, str):
        try:
            answer = parse_json(answer)
        except ValueError:
            return {}
    if not isinstance(answer, Mapping):
        return {}
    has_pairs = len(answer.get("inputs") or ()) == len(answer.get("outputs") or ()) > 0
    return answer if has_pairs or answer.get("assert_case") else {}


def _standard_input(program: str, cases: Mapping[str, Any], *, remote: bool) -> list[CodeTest]:
    source = program if remote else f"{PRELUDE}import sys\nsys.setrecursionlimit(600000)\n{program}"
    return [
        CodeTest(Program(source, _joined(given)), _Prints(_joined(expected), exact=remote))
        for given, expected in zip(cases["inputs"], cases["outputs"], strict=True)
    ]


def _joined(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


@dataclass(frozen=True, slots=True)
class _Prints:
    """The program ends without an error and prints the expected text: exactly up to final line breaks, or up to white
    space around lines, empty lines, and rounding of lines that are numbers."""

    expected: str
    exact: bool

    def __call__(self, result: ProgramResult) -> bool:
        if result.exit_code != 0:
            return False
        if self.exact:
            return result.stdout.rstrip("\n") == self.expected.rstrip("\n")
        printed, expected = _lines(result.stdout), _lines(self.expected)
        return printed == expected or _are_close(printed, expected)


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _are_close(printed: list[str], expected: list[str]) -> bool:
    """Whether all lines are numbers that are close in the sense of numpy's `allclose`."""
    try:
        pairs = [(float(a), float(b)) for a, b in zip(printed, expected, strict=True)]
    except ValueError:
        return False
    return all(math.isfinite(b) and abs(a - b) <= 1e-8 + 1e-5 * abs(b) for a, b in pairs)
