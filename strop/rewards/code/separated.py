"""Tests that are Python code, as code for a process of their own: what they take from the program, and what not."""

from __future__ import annotations

import ast
import builtins
import symtable
import sys
import warnings
from collections.abc import Iterator
from functools import lru_cache

from strop.rewards.code.extraction import defines
from strop.sandbox.protocol import Program, ProgramTests

_PACKAGES = {"np": "numpy", "numpy": "numpy"}
"""Names under which tests use packages that they leave to the program to import."""


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
