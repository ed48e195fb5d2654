"""Tests of programs: the forms in which datasets have them, and the programs that run them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from strop.rewards.code.separated import separated
from strop.rewards.code.unit_tests import runnable_tests
from strop.sandbox.protocol import Program, ProgramResult

_FORMS = (
    "Supported are Python code with asserts (HumanEval's `test`, with `entry_point`) or with test functions and "
    "classes as pytest and unittest have them, a list of asserts (MBPP's "
    "`test_list`), {inputs: [...], outputs: [...]} with an optional `fn_name` (APPS), and a list of {input, output} "
    "(LiveCodeBench), each also as JSON"
)
_CALL = """

def _strop_call():
    import json, sys
    arguments = json.loads(sys.stdin.read())
    names = globals()
    function = names[{name!r}] if {name!r} in names else getattr(names["Solution"](), {name!r})
    print()
    print(json.dumps(function(*arguments)))
_strop_call()
"""


@dataclass(frozen=True, slots=True)
class CodeTest:
    """One test: a program to run, and the condition that its end must meet."""

    program: Program
    passes: Callable[[ProgramResult], bool]


def code_tests(
    program: str, answer: Any, *, entry_point: str | None, separate: bool, beginning: str = ""
) -> list[CodeTest]:
    """The tests of a program. `separate` runs each assert of a list on its own; `beginning` is code of the prompt,
    whose helper functions the tests may use.

    Raises ValueError if the task's answer has no known form.
    """
    spec = _parsed(answer)
    if isinstance(spec, str):
        return _checks(program, spec, entry_point, separate, beginning)
    if isinstance(spec, Mapping):
        entry_point = spec.get("entry_point", entry_point)
        if isinstance(spec.get("test"), str):
            return _checks(program, spec["test"], entry_point, separate, beginning)
        for key in ("test_list", "assert_case", "tests"):
            if key in spec:
                setup = str(spec.get("test_setup_code") or "")
                return _asserts(program, _texts(spec[key]), separate, setup)
        if {"inputs", "outputs"} <= set(spec):
            return _cases(program, list(spec["inputs"]), list(spec["outputs"]), spec.get("fn_name"))
    elif isinstance(spec, Sequence) and spec:
        if all(isinstance(each, str) for each in spec):
            return _asserts(program, list(spec), separate)
        if all(isinstance(each, Mapping) and {"input", "output"} <= set(each) for each in spec):
            inputs, outputs = [each["input"] for each in spec], [each["output"] for each in spec]
            return _cases(program, inputs, outputs, spec[0].get("fn_name"))
    raise ValueError(f"the task's answer has no tests of a known form: {str(spec)[:80]!r}. {_FORMS}")


def _parsed(answer: Any) -> Any:
    """The value of a text with JSON; anything else unchanged."""
    if isinstance(answer, str) and answer.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(answer)
        except (ValueError, RecursionError):
            return answer
    return answer


def _texts(tests: Any) -> list[str]:
    return [tests] if isinstance(tests, str) else [str(each) for each in tests]


def _checks(
    program: str, test: str, entry_point: str | None, separate: bool, beginning: str
) -> list[CodeTest]:
    """Tests from code. HumanEval's defines `check`, which takes the function."""
    is_humaneval = entry_point and "def check(" in test
    runs = [f"{test}\n\ncheck({entry_point})\n"] if is_humaneval else _runs(test, separate)
    return [
        CodeTest(separated(program, code, shared=beginning, entry_point=entry_point), _ran_to_the_end)
        for code in runs
    ]


def _asserts(program: str, tests: list[str], separate: bool, setup: str = "") -> list[CodeTest]:
    """Tests from asserts; `setup` is code for both, the program and the asserts."""
    runs = [run for test in (tests if separate else ["\n".join(tests)]) for run in _runs(test, separate)]
    return [CodeTest(separated(f"{program}\n{setup}", f"{setup}\n{run}\n"), _ran_to_the_end) for run in runs]


def _runs(test: str, separate: bool) -> list[str]:
    """Code that runs all tests in some code, or each of its test functions on its own."""
    code, calls = runnable_tests(test)
    if not calls:
        return [code]
    joined = calls if separate else ["\n".join(calls)]
    return [f"{code}\n\n{call}\n" for call in joined]


def _cases(program: str, inputs: list[Any], outputs: list[Any], name: Any) -> list[CodeTest]:
    if len(inputs) != len(outputs) or not inputs:
        raise ValueError(f"the task's answer has {len(inputs)} inputs and {len(outputs)} outputs")
    pairs = zip(inputs, outputs, strict=True)
    if not name:
        return [CodeTest(Program(program, _text(given)), _Prints(_text(wanted))) for given, wanted in pairs]
    if not str(name).isidentifier():
        raise ValueError(f"the answer's fn_name is {str(name)[:80]!r}, which is no name of a function")
    source = program + _CALL.format(name=str(name))
    return [
        CodeTest(Program(source, json.dumps(_arguments(given))), _Returns(_value(wanted)))
        for given, wanted in pairs
    ]


def _text(value: Any) -> str:
    """Standard input or output; a list has one line per item."""
    return "\n".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _arguments(given: Any) -> list[Any]:
    """Arguments of a call: a list, or a text with one JSON value per line."""
    if isinstance(given, str):
        return [_value(line) for line in given.split("\n") if line.strip()]
    return list(given)


def _value(wanted: Any) -> Any:
    try:
        return json.loads(wanted) if isinstance(wanted, str) else wanted
    except (ValueError, RecursionError):
        return wanted


def _ran_to_the_end(result: ProgramResult) -> bool:
    return result.completed and result.exit_code == 0


@dataclass(frozen=True, slots=True)
class _Prints:
    """The program ends without an error, and prints the expected text, up to white space and number formats."""

    expected: str

    def __call__(self, result: ProgramResult) -> bool:
        return result.exit_code == 0 and same_output(result.stdout, self.expected)


@dataclass(frozen=True, slots=True)
class _Returns:
    """The function returns the expected value (APPS: or the only item of the expected list)."""

    expected: Any

    def __call__(self, result: ProgramResult) -> bool:
        if not _ran_to_the_end(result):
            return False
        try:
            value = json.loads(result.stdout.rstrip("\n").rpartition("\n")[2])
        except (ValueError, RecursionError):
            return False
        expected = self.expected
        only = isinstance(expected, list) and len(expected) == 1 and value == expected[0]
        return bool(value == expected or only)


def same_output(printed: str, expected: str) -> bool:
    """Whether two texts have the same lines of words, where numbers compare by value."""
    left, right = _lines(printed), _lines(expected)
    return len(left) == len(right) and all(map(_same_words, left, right))


def _lines(text: str) -> list[list[str]]:
    lines = [line.split() for line in text.splitlines()]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _same_words(left: list[str], right: list[str]) -> bool:
    return left == right or (len(left) == len(right) and all(map(_same_word, left, right)))


def _same_word(left: str, right: str) -> bool:
    if left == right:
        return True
    try:
        return Decimal(left) == Decimal(right)
    except InvalidOperation:
        return False
