"""Check the vocabulary of documentation, docstrings, comments and messages against a list of words to avoid.

    python tools/check_words.py [FILE ...]

Reads Markdown pages, Python files (docstrings, comments, and string literals with more than one word) and the
comments of YAML files; code spans and code blocks are skipped. Prints `file:line: word -> standard word` and exits
with 1 if there is any. Without arguments it checks all files that git tracks.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]

AVOIDED = {
    r"so many|so often|that many times": "name the quantity: `number of ...`",
    r"whoever|whosoever": "name the process or person",
    r"that one's|the other one|the other ones": "name the noun",
    r"(?:is|are|was|were) said": "`printed`, `reported`, `specified`",
    r"what (?:it|this|that) is called": "`name`",
    r"as it is among": "`initial model`",
    r"the model as it is": "`initial model`",
    r"beside": "`alongside`, `next to`, `in addition to`",
    r"\bapart(?! from)": "`in separate processes`, `distributed`",
    r"for want of|want of (?:room|memory|space)": "`for lack of`",
    r"(?:no|has|have|had|make|more|for|enough|little|its) room(?! temperature)": "`capacity`, `space`",
    r"rooms of the house|the road\b|this floor|floors below": "`package`, `pipeline`, `layer`",
    r"next life|new life|its life|lives again": "`restart`",
    r"(?:two|both|one|each|other|every) (?:halves|half(?= of the run| alone))": "`role`, `process`",
    r"halves of (?:a|one|the) run": "`roles`",
    r"\banew\b": "`again`, `from scratch`",
    r"given answers?": "`demonstrations`",
    r"set aside": "`overridden`",
    r"(?:broken|broke) rollouts?|rollouts? (?:that |which )?(?:broke|breaks)": "`failed rollout`",
    r"learn(?:s|ed|t|ing)? (?:from|of) (?:it|them|groups|a group|the group|rollouts|experiences)": "`train on`",
    r"heard of|taken for dead": "`declared dead`",
    r"goes on (?:with|from)|go on (?:with|from)|going on (?:with|from)": "`continue`, `resume`",
    r"at work\b": "`running`",
    r"nothing to say|has anything to say|have to say": "`does not apply`",
    r"none was lent|when this was written": "`not tried yet`",
}
"""Expressions to avoid, matched as whole words without regard to case, with the standard expression."""

OPENERS = {
    r"(?:What|Who|Whose|Where|How|So|Those|That|These|Of|The same,)\b": "begin with a noun phrase or a verb",
}
"""Openings that a docstring must not have."""

_PATTERN = [
    (re.compile(rf"(?<![\w./])(?:{words})(?![\w:])", re.IGNORECASE), better)
    for words, better in AVOIDED.items()
]
_OPENINGS = [(re.compile(words), better) for words, better in OPENERS.items()]
_CODE_SPAN = re.compile(r"``.*?``|`[^`\n]*`", re.DOTALL)
_CODE_BLOCK = re.compile(r"^(```|~~~).*?^\1|<!--.*?-->", re.DOTALL | re.MULTILINE)

Text = tuple[int, str, bool]
"""First line, text, and whether the text is a docstring."""


def blank(match: re.Match[str]) -> str:
    """Replace code by spaces, keeping the lines."""
    return re.sub(r"[^\n]", " ", match[0])


def python_texts(source: str) -> Iterator[Text]:
    """Yield the comments, docstrings and messages of a Python file."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("#! "), False
    tree = ast.parse(source)
    docstrings, parts = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            docstrings.add(id(node.value))
        if isinstance(node, ast.JoinedStr):
            parts |= {id(value) for value in node.values}
            text = "".join(
                str(value.value) if isinstance(value, ast.Constant) else "{}" for value in node.values
            )
            yield node.lineno, text, False
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        if id(node) not in parts and " " in node.value.strip():
            yield node.lineno, node.value, id(node) in docstrings


def texts(path: Path) -> Iterator[Text]:
    """Yield the prose of a file."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        yield from python_texts(source)
    elif path.suffix in (".yaml", ".yml"):
        for number, line in enumerate(source.splitlines(), 1):
            if "#" in line:
                yield number, line.partition("#")[2], False
    else:
        yield 1, _CODE_BLOCK.sub(blank, source), False


def faults(path: Path) -> Iterator[str]:
    """Yield one line for each expression to avoid."""
    for first, raw, is_docstring in texts(path):
        text = _CODE_SPAN.sub(blank, raw)
        for pattern, better in _PATTERN:
            for match in pattern.finditer(re.sub(r"\s", " ", text)):
                line = first + text.count("\n", 0, match.start())
                yield f"{path.relative_to(ROOT)}:{line}: {match[0]!r} -> {better}"
        for pattern, better in _OPENINGS if is_docstring else ():
            if match := pattern.match(text.lstrip()):
                yield f"{path.relative_to(ROOT)}:{first}: docstring opens with {match[0]!r} -> {better}"


def tracked_files() -> list[Path]:
    """List the files with prose that git tracks or would track."""
    command = [
        "git",
        "ls-files",
        "--cached",
        "--others",
        "--exclude-standard",
        "*.py",
        "*.md",
        "*.yaml",
        "*.yml",
    ]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    return [ROOT / name for name in listed if name and (ROOT / name).exists()]


def main() -> int:
    """Print the expressions to avoid in the files that the arguments name, or in all."""
    this = Path(__file__).resolve()
    paths = [Path(name).resolve() for name in sys.argv[1:]] or tracked_files()
    found = [fault for path in paths if path != this for fault in faults(path)]
    for fault in found:
        print(fault)
    if found:
        print(f"{len(found)} expressions to replace; the list is in tools/check_words.py.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
