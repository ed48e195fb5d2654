"""Tests in the forms of pytest and unittest, which only define what is to be run."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Pass)
_PROGRAM_MODULE = "solution"
"""Module from which tests of KodCode import the program's functions."""


def runnable_tests(source: str) -> tuple[str, list[str]]:
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
