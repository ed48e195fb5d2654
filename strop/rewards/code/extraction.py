"""Extraction of the program from a response, and its combination with a prompt that begins the program."""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from collections.abc import Iterator

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
