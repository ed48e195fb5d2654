"""Regular expressions of the package, found in its source, and texts on which a pattern scans in quadratic time."""

from __future__ import annotations

import ast
import importlib
import re
import re._constants as constants
import re._parser as parser
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strop.compat.launch.importer import _VERL
from strop.data.encoding.reply import OPENING_MARK
from strop.pipelines.tasks.llm_operators import SCORE_PATTERN
from strop.rewards.builtin import choice

ROOT = Path(__file__).parents[2]
_FUNCTIONS = frozenset(
    ("compile", "search", "match", "fullmatch", "sub", "subn", "split", "findall", "finditer")
)
_ENDS = r"<\|im_end\|>|</s>"
"""Alternative of end tokens, as those that an encoder is made with."""
BUILT: dict[str, Sequence[str]] = {
    "checking.py: place": [r"run\.yaml(?::(\d+))?(?::\d+)?(?: \([^()]*\))?: (.*)"],
    "choice.py: '|'.join(stated)": [choice._patterns("ABCD")[0].pattern],
    "choice.py: correct": [choice._patterns("ABCD")[1].pattern],
    "choice.py: '|'.join(bare)": [choice._patterns("ABCD")[2].pattern],
    "code.py: f'\\\\bdef\\\\s+{re.escape(entry_point)}\\\\b'": [r"\bdef\s+solve\b"],
    "operators.py: SCORE_PATTERN": [SCORE_PATTERN],
    "metrics.py: re.escape(pattern).replace('<name>', '.+').replace('@k', '@\\\\d+')": [r"eval/.+/pass@\d+"],
    "importer.py: pattern": [pattern for pattern, _ in _VERL],
    "row_keys.py: f'(?<!\\\\w){re.escape(name)}(?!\\\\w)'": [r"(?<!\w)tools(?!\w)"],
    "tensor.py: re.escape(name).replace('\\\\*', '\\\\d+')": [r"layers\.\d+\.mlp\.\d+"],
    "reply.py: f'(?P<code>`+)|(?P<reasoning>{OPENING_MARK})|{re.escape(marked.mark)}'": [
        rf"(?P<code>`+)|(?P<reasoning>{OPENING_MARK})|<tool_call>"
    ],
    "turn_encoder.py: '|'.join(special) or '(?!)'": [_ENDS],
    "turn_encoder.py: f'(?P<end>{either})(?:\\\\s*(?:{either}))*\\\\s*'": [
        rf"(?P<end>{_ENDS})(?:\s*(?:{_ENDS}))*\s*"
    ],
    "turn_encoder.py: f'\\\\s*(?P<end>{either})'": [rf"\s*(?P<end>{_ENDS})"],
    "turn_encoder.py: f\"(?:\\\\s*{re.escape(found['end'])})*\"": [rf"(?:\s*(?:{_ENDS}))*"],
    # Of the author of a configuration.
    "judge.py: section.pattern": [],
    "llm_operators.py: text": [],
    "model.py: pattern": [],
    "peft_adapter.py: f'(.*\\\\.)?({pattern})$'": [r"(.*\.)?(q_proj)$"],
    "peft_adapter.py: key": [],
}
"""Examples of the patterns that the package builds when it uses them, by the name of the file and the source of the
pattern."""


@dataclass(frozen=True, slots=True)
class Found:
    """A pattern in the package's source."""

    place: str
    """Module and line, `strop/printable.py:10`."""
    pattern: re.Pattern[str]
    uses: frozenset[str]
    """Methods by which its module uses it: `search`, `fullmatch`, ..."""

    def scan(self, text: str) -> None:
        """Use the pattern on a text as its module does."""
        for use in self.uses or {"search"}:
            match use:
                case "match" | "fullmatch" | "search":
                    getattr(self.pattern, use)(text)
                case "sub" | "subn":
                    self.pattern.sub("", text)
                case _:
                    for _ in self.pattern.finditer(text):
                        pass


def find_patterns() -> list[Found]:
    """All patterns of the package. Raises KeyError for one that is neither constant, nor in a module's variable, nor in
    `BUILT`."""
    return [
        found
        for path in sorted((ROOT / "strop").rglob("*.py"))
        for found in _in_file(path, path.relative_to(ROOT))
    ]


def _in_file(path: Path, shown: Path) -> Iterator[Found]:
    source = path.read_text(encoding="utf-8")
    if "re." not in source:
        return
    tree = ast.parse(source)
    uses: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr in _FUNCTIONS:
            uses.setdefault(node.value.id, set()).add(node.attr)
    others: set[str] = set()  # by which a function uses what it took from a table
    variables = {
        id(node.value): target.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for caller, used in uses.items():
        if caller != "re" and caller not in variables.values():
            others |= used
    for node in filter(_is_call, ast.walk(tree)):
        assert isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        place, name = f"{shown}:{node.lineno}", variables.get(id(node))
        if name is not None:
            module = ".".join(shown.with_suffix("").parts).removesuffix(".__init__")
            patterns = [getattr(importlib.import_module(module), name)]
        elif isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str):
            flags = [each for each in (*node.args[1:], *(k.value for k in node.keywords)) if _is_flags(each)]
            patterns = [
                re.compile(node.args[0].value, eval(ast.unparse(flags[-1]), {"re": re}) if flags else 0)
            ]
        else:
            patterns = [re.compile(text) for text in BUILT[f"{shown.name}: {ast.unparse(node.args[0])}"]]
        used = uses.get(name or "", others) if node.func.attr == "compile" else {node.func.attr}
        for pattern in patterns:
            if isinstance(pattern.pattern, str):
                yield Found(place, pattern, frozenset(used - {"compile"}))


def _is_call(node: Any) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "re"
        and node.func.attr in _FUNCTIONS
        and bool(node.args)
    )


def _is_flags(node: ast.expr) -> bool:
    return re.fullmatch(r"re\.[A-Z]+(?: \| re\.[A-Z]+)*", ast.unparse(node)) is not None


# -- hostile texts -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HostileText:
    """A repeated text after what begins a match, with an end that no match accepts."""

    begin: str
    unit: str

    def of(self, length: int) -> str:
        """The text with about `length` characters."""
        return self.begin + (self.unit * (length // len(self.unit) + 1))[:length] + "\0"


def hostile_texts(pattern: re.Pattern[str]) -> list[HostileText]:
    """Texts on which a backtracking matcher of this pattern may do much in vain."""
    parsed = parser.parse(pattern.pattern, pattern.flags)
    parts = {*_parts(parsed)} - {""}
    begins = {*_beginnings(parsed)} - {""}
    alone = [HostileText("", unit) for unit in sorted(parts | begins)]
    return alone + [
        HostileText(begin, unit) for begin in sorted(begins) for unit in sorted(parts) if begin != unit
    ]


def _beginnings(sequence: Any) -> Iterator[str]:
    """Texts that match the first parts of a pattern, also of its groups."""
    text = ""
    for part in sequence:
        operation, argument = part
        match operation:
            case constants.SUBPATTERN:
                yield from (text + inner for inner in _beginnings(argument[-1]))
            case constants.ATOMIC_GROUP:
                yield from (text + inner for inner in _beginnings(argument))
            case constants.BRANCH:
                yield from (text + inner for branch in argument[1] for inner in _beginnings(branch))
            case constants.MAX_REPEAT | constants.MIN_REPEAT | constants.POSSESSIVE_REPEAT:
                yield from (text + inner for inner in _beginnings(argument[2]))
        text += _example([part])
        yield text


def _parts(sequence: Any) -> Iterator[str]:
    """Texts that match each repeated part of a pattern, from the innermost."""
    for operation, argument in sequence:
        match operation:
            case constants.MAX_REPEAT | constants.MIN_REPEAT | constants.POSSESSIVE_REPEAT:
                yield from _parts(argument[2])
                if argument[1] > 8:
                    yield from _choices(argument[2])
            case constants.SUBPATTERN:
                yield from _parts(argument[-1])
            case constants.ATOMIC_GROUP:
                yield from _parts(argument)
            case constants.ASSERT | constants.ASSERT_NOT:
                yield from _parts(argument[1])
            case constants.BRANCH:
                for branch in argument[1]:
                    yield from _parts(branch)


def _choices(sequence: Any) -> Iterator[str]:
    """Texts that match a sequence: its example, and one for each member of a class or branch that it consists of."""
    yield _example(sequence)
    if len(sequence) == 1:
        operation, argument = sequence[0]
        if operation is constants.IN:
            yield from (_character([item]) for item in argument if item[0] is not constants.NEGATE)
        elif operation is constants.BRANCH:
            yield from (_example(branch) for branch in argument[1])
        elif operation is constants.ANY:
            yield from ("a", " ", "9")


def _example(sequence: Any) -> str:
    """A text that matches a sequence, with few repetitions."""
    text = ""
    for operation, argument in sequence:
        match operation:
            case constants.LITERAL:
                text += chr(argument)
            case constants.NOT_LITERAL:
                text += "a" if argument != ord("a") else "b"
            case constants.ANY:
                text += "a"
            case constants.IN:
                text += _character(argument)
            case constants.MAX_REPEAT | constants.MIN_REPEAT | constants.POSSESSIVE_REPEAT:
                text += _example(argument[2]) * max(argument[0], min(argument[1], 1))
            case constants.SUBPATTERN:
                text += _example(argument[-1])
            case constants.ATOMIC_GROUP:
                text += _example(argument)
            case constants.BRANCH:
                text += _example(argument[1][0])
    return text


_CATEGORIES = {
    constants.CATEGORY_DIGIT: "9",
    constants.CATEGORY_SPACE: " ",
    constants.CATEGORY_WORD: "a",
    constants.CATEGORY_NOT_DIGIT: "a",
    constants.CATEGORY_NOT_SPACE: "a",
    constants.CATEGORY_NOT_WORD: " ",
}


def _character(items: Any) -> str:
    """A character of a class."""
    if items[0][0] is constants.NEGATE:
        excluded = re.compile("[" + "".join(_class(item) for item in items[1:]) + "]")
        return next(each for each in "a9 -\n\0é" if not excluded.match(each))
    operation, argument = items[0]
    if operation is constants.RANGE:
        return chr(argument[0])
    return _CATEGORIES[argument] if operation is constants.CATEGORY else chr(argument)


def _class(item: Any) -> str:
    operation, argument = item
    if operation is constants.RANGE:
        return f"{re.escape(chr(argument[0]))}-{re.escape(chr(argument[1]))}"
    if operation is constants.CATEGORY:
        return {"9": r"\d", " ": r"\s", "a": r"\w"}[_CATEGORIES[argument]]
    return re.escape(chr(argument))
