"""`code`: the program in the response passes the task's tests, run in a sandbox.

Tests have the forms in which datasets have them. Those that are Python code become code for a process of their own,
with what they take from the program. Those in the forms of pytest and unittest only define what is to be run.
"""

from __future__ import annotations

import ast
import builtins
import json
import re
import symtable
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any

from strop.config.schema.reward import LocalSandboxConfig, SandboxConfig
from strop.sandbox.protocol import Program, ProgramResult, ProgramTests, Sandbox
from strop.sandbox.registry import open_sandbox
from strop.workers.json_text import parse_json

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


_FENCE = re.compile(r"[ \t]*```[ \t]*(\w*)")
_PYTHON = frozenset({"", "python", "python3", "py"})
_CODE_START = re.compile(r"^(?:from |import |def |class |async def |@)", re.MULTILINE)


def extract_program(text: str) -> str:
    """The last fenced block of Python in a text (of any language if no block names Python), else the text."""
    blocks = list(_fenced_blocks(text))
    python = [code for language, code in blocks if language.lower() in _PYTHON]
    named = [code for language, code in blocks if language.lower() in _PYTHON - {""}]
    found = named or python or [code for _, code in blocks]
    return str(found[-1]) if found else text


def _fenced_blocks(text: str) -> Iterator[tuple[str, str]]:
    """Language and code of each fenced block; one that is not closed ends with the text."""
    language: str | None = None
    code: list[str] = []
    lines = text.split("\n")
    for number, line in enumerate(lines):
        fence = _FENCE.match(line)
        if language is None:
            if fence is not None and number < len(lines) - 1:
                language, code = fence[1], []
        elif fence is not None:
            yield language, "".join(f"{each}\n" for each in code)
            language = None
        else:
            code.append(line)
    if language is not None:
        yield language, "\n".join(code)


def complete_program(program: str, beginning: str, entry_point: str) -> str:
    """The program with the beginning that the prompt gives, as in HumanEval: imports, helper functions, and the
    signature and docstring of `entry_point`.

    A program that defines the function follows the prompt's own definition, whose body is the docstring. Any
    other program is the body of the function.
    """
    if defines(program, entry_point):
        return f"{beginning.rstrip()}\n\n\n{program}"
    first = next((line for line in program.splitlines() if line.strip()), "")
    body = program if first[:1].isspace() else textwrap.indent(program, "    ")
    return f"{beginning.rstrip()}\n{body}"


def prompt_beginning(prompt: str, entry_point: str) -> str | None:
    """Code with which a prompt begins the function `entry_point`: its last fenced block, else all from the first line
    of code on; None if that does not begin the function."""
    code = extract_program(prompt)
    if code == prompt:
        start = _CODE_START.search(prompt)
        code = prompt[start.start() :] if start else ""
    return code if re.search(rf"\bdef\s+{re.escape(entry_point)}\b", code) else None


def defines(program: str, name: str) -> bool:
    """Whether the program binds a name at its top level; False if it is no valid Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            body = ast.parse(program).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    functions = {n.name for n in body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    assigned = {t.id for n in body if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)}
    return name in functions | assigned


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
_PACKAGES = {"np": "numpy", "numpy": "numpy"}
"""Names under which tests use packages that they leave to the program to import."""
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Pass)
_PROGRAM_MODULE = "solution"
"""Module from which tests of KodCode import the program's functions."""


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
            return parse_json(answer)
        except ValueError:
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
    code, calls = _runnable_tests(test)
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
        return parse_json(wanted) if isinstance(wanted, str) else wanted
    except ValueError:
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
            value = parse_json(result.stdout.rstrip("\n").rpartition("\n")[2])
        except ValueError:
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


def separated(program: str, tests: str, *, shared: str = "", entry_point: str | None = None) -> Program:
    """The program with tests that run in a process of their own.

    The tests take those names from the program that neither they nor `shared`, the prompt's own code, nor Python
    define; modules of the standard library are never the program's. `entry_point` is an expression whose names the
    program has, also where `shared` defines them.
    """
    shared = _runnable(shared)
    names, modules, called, classes = _names(f"{shared}\n{tests}")
    taken = set(names)
    if entry_point is not None:
        taken |= _loaded(entry_point)
    if not taken:
        taken = {
            name for name in called if defines(program, name)
        }  # the function is named like one of Python's
    imports = "".join(f"import {_PACKAGES.get(name, name)} as {name}\n" for name in modules)
    return Program(
        program,
        tests=ProgramTests(tests, shared=f"{imports}{shared}", names=tuple(sorted(taken)), classes=classes),
    )


@lru_cache(maxsize=1024)
def _names(source: str) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Names in code: undefined ones, modules among them, builtin functions whose calls contain no other call, and
    classes that it defines. All are empty for code that is no Python, with which the test fails."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
            undefined = _undefined(symtable.symtable(source, "tests.py", "exec"))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return (), (), (), ()
    nodes = list(ast.walk(tree))
    used_otherwise = {
        node.value.id
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    calls = [node for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    called = {node.func.id for node in calls if isinstance(node.func, ast.Name)}
    modules = {
        name
        for name in (undefined & used_otherwise) - called
        if name in sys.stdlib_module_names or name in _PACKAGES
    }
    innermost = {
        node.func.id
        for node in calls
        if isinstance(node.func, ast.Name)
        and not any(
            isinstance(each, ast.Call) for part in ast.iter_child_nodes(node) for each in ast.walk(part)
        )
    }
    known = set(dir(builtins))
    classes = [node.name for node in nodes if isinstance(node, ast.ClassDef)]
    return (
        tuple(undefined - modules - known),
        tuple(sorted(modules)),
        tuple(sorted(innermost & undefined & known)),
        tuple(classes),
    )


def _undefined(table: symtable.SymbolTable) -> set[str]:
    """Global names that code uses and does not bind at its top level."""
    bound = {
        symbol.get_name()
        for symbol in table.get_symbols()
        if symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()
    }
    used = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_referenced()}
    for scope in _inner(table):
        for symbol in scope.get_symbols():
            if symbol.is_global():
                (bound if symbol.is_assigned() else used).add(symbol.get_name())
    return used - bound


def _inner(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    for child in table.get_children():
        yield child
        yield from _inner(child)


def _loaded(expression: str) -> set[str]:
    try:
        tree = ast.parse(expression, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _runnable(code: str) -> str:
    """A prompt's code, whose last function may lack a body; empty if it is no Python."""
    for candidate in (code, f"{code.rstrip()}\n    pass\n"):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ast.parse(candidate)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        return candidate
    return ""


def _runnable_tests(source: str) -> tuple[str, list[str]]:
    """Code of tests, and a statement for each test function and test method in it that the code does not run itself.

    Names that the code imports from the module `solution` are left to the program. The list is empty for code that
    runs its own asserts. Raises ValueError for code that runs nothing, with which every program would pass.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return source, []  # the test fails with the error
    source = _without_program_imports(source, tree)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    calls = [call for node in tree.body for call in _calls(node, used)]
    if not calls and all(map(_only_defines, tree.body)):
        checks = any(isinstance(node, ast.FunctionDef) and node.name == "check" for node in tree.body)
        mend = "name the function to check in a column `entry_point`" if checks else "write asserts"
        raise ValueError(
            f"the task's answer has tests that run nothing, so that every program passes; {mend}"
        )
    return source, calls


def _calls(node: ast.stmt, used: set[str]) -> Iterator[str]:
    match node:
        case ast.FunctionDef(name=name) if name.startswith("test") and name not in used:
            _refuse_parameters(node, own=0)
            yield f"{name}()"
        case ast.ClassDef(name=name) if name not in used:
            is_unittest = any("TestCase" in ast.unparse(base) for base in node.bases)
            if not is_unittest and not name.startswith("Test"):
                return
            for method in node.body:
                if not isinstance(method, ast.FunctionDef) or not method.name.startswith("test"):
                    continue
                _refuse_parameters(method, own=1)
                yield (
                    f"__import__('unittest').TestSuite([{name}({method.name!r})]).debug()"
                    if is_unittest
                    else f"_test = {name}(); getattr(_test, 'setup_method', lambda: None)(); _test.{method.name}()"
                )


def _refuse_parameters(function: ast.FunctionDef, own: int) -> None:
    """Raise ValueError for parameters that pytest would fill in."""
    arguments = function.args
    required = len(arguments.posonlyargs) + len(arguments.args) - len(arguments.defaults)
    if required > own:
        raise ValueError(
            f"the task's answer has the test {function.name}, whose parameters pytest would fill in; tests are called "
            "without fixtures and parametrization"
        )


def _only_defines(node: ast.stmt) -> bool:
    match node:
        case ast.Expr(value=ast.Constant()):
            return True
        case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
            return not any(isinstance(each, ast.Call) for each in ast.walk(value))
        case _:
            return isinstance(node, _DEFINITIONS)


def _without_program_imports(source: str, tree: ast.Module) -> str:
    """The code with `from solution import name as other` as `other = name`, on the same lines."""
    lines = source.split("\n")
    for node in tree.body:
        if (
            isinstance(node, ast.ImportFrom)
            and node.module == _PROGRAM_MODULE
            and node.end_lineno is not None
        ):
            renamed = [f"{alias.asname} = {alias.name}" for alias in node.names if alias.asname is not None]
            lines[node.lineno - 1 : node.end_lineno] = ["; ".join(renamed)] + [""] * (
                node.end_lineno - node.lineno
            )
    return "\n".join(lines)
