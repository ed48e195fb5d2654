"""`code`: the program in the response passes the task's tests, run in a sandbox."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from strop.config.schema.reward import LocalSandboxConfig, SandboxConfig
from strop.rewards.code.cases import CodeTest, code_tests
from strop.rewards.code.extraction import complete_program, extract_program, prompt_beginning
from strop.sandbox.protocol import Sandbox
from strop.sandbox.registry import open_sandbox

DEFAULT_SANDBOX = LocalSandboxConfig()


def code_reward(
    completion: str,
    answer: Any,
    prompt: Sequence[Any] = (),
    entry_point: str | None = None,
    *,
    partial: bool = False,
    max_tests: int | None = None,
    sandbox: SandboxConfig = DEFAULT_SANDBOX,
    budget_seconds: float = 24.0,
) -> float:
    """1 if the program in the completion passes all tests, else 0; with `partial`, the fraction of tests passed.

    The program is the last fenced block of Python, else the entire text. With `entry_point`, a function that
    the prompt begins, it follows the prompt's code. `answer` has the tests: Python code, a list of asserts, or
    inputs and outputs; `max_tests` uses only the first of them. Tests that have not ended after
    `budget_seconds` count as failed. Tests that are Python code run in a process of their own, which gets copies of
    the program's values (`strop/sandbox/inside/`).

    Raises ValueError if the answer has no tests of a known form, and SandboxError if the sandbox fails.
    """
    program = extract_program(completion)
    beginning = None
    if entry_point is not None and prompt:
        beginning = prompt_beginning(str(prompt[-1]["content"]), entry_point)
    if entry_point is not None and beginning is not None:
        program = complete_program(program, beginning, entry_point)
    tests = code_tests(program, answer, entry_point=entry_point, separate=partial, beginning=beginning or "")[
        :max_tests
    ]
    outcomes = run_tests(open_sandbox(sandbox), tests, sandbox.concurrency, budget_seconds, partial)
    return sum(outcomes) / len(outcomes) if partial else float(all(outcomes))


def run_tests(
    sandbox: Sandbox, tests: Sequence[CodeTest], concurrency: int, budget_seconds: float, partial: bool
) -> list[bool]:
    """Whether each test passes. Without `partial`, tests after a failure do not run."""
    deadline = time.monotonic() + budget_seconds
    over = threading.Event()

    def passes(test: CodeTest) -> bool:
        remaining = deadline - time.monotonic()
        if over.is_set() or remaining <= 0:
            return False
        passed = test.passes(sandbox.run(test.program, remaining))
        if not passed and not partial:
            over.set()
        return passed

    if len(tests) == 1:
        return [passes(tests[0])]
    with ThreadPoolExecutor(concurrency) as executor:
        return list(executor.map(passes, tests))
