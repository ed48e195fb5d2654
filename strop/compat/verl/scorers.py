r"""verl's scorers: of mathematics (`verl_gsm8k`, `verl_math`, `verl_math_dapo`, `verl_prime_math`, `verl_geometry3k`),
of programs (`verl_code`), of short answers (`verl_search_qa`), and by the task's source (`verl_by_source`).

Each reads the answer where the scorer of this name in verl's `utils/reward_score` reads it, and gives its values.
"""

from __future__ import annotations

import math
import re
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

from strop.compat.scorers import hendrycks, minerva
from strop.compat.scorers.boxed import braced, last_box_of_math, last_box_of_prm800k
from strop.compat.scorers.expressions import is_equal_prm800k, is_equal_tolerant
from strop.compat.verl.extension import REWARD_BY_SOURCE
from strop.config.schema.reward import SandboxConfig, SandboxFusionConfig
from strop.rewards.builtin.code import DEFAULT_SANDBOX, CodeTest, code_tests, run_tests
from strop.rewards.builtin.math_text import last_tagged
from strop.rewards.graders import StatedAnswer, zero_beyond_limits
from strop.sandbox.protocol import Program, ProgramResult
from strop.sandbox.registry import open_sandbox
from strop.workers.json_text import parse_json

_GSM8K = re.compile(r"#### (-?[0-9.,]+)")
_ANSWER_LINE = re.compile(r"(?i)Answer\s*:\s*([^\n]+)")
_SEARCHED_CHARS = 300
"""Length of the end of a response in which an answer line counts."""
_BOX_CHARS = 100
"""Length of the end of a response in which a box counts."""
_INVALID = "[INVALID]"
"""verl's answer of a response without an answer line."""
_BEFORE = ("answer:", "answer is", "answers are")
_AFTER = ("is answer", "is the answer", "are answers", "are the answers")
_VERBS = ("be ", "is ", "are ", "=", ": ", "get ", "be\n", "is\n", "are\n", ":\n", "get\n")


@zero_beyond_limits
def verl_gsm8k_reward(completion: str, answer: Any, *, last_chars: int | None = None) -> float:
    """1 if the number after the last `#### ` is the answer, as text without commas, else 0.

    `last_chars` searches only the end of the response: 300 characters since verl 0.5.
    """
    found = _GSM8K.findall(completion if last_chars is None else completion[-last_chars:])
    return float(bool(found) and found[-1].replace(",", "") == str(answer))


@zero_beyond_limits
def verl_math_reward(completion: str, answer: Any) -> float:
    r"""1 if the last `\boxed{...}` is the answer in the normal form of MATH, else 0; `Answer: 34` is 0."""
    stated = last_box_of_math(completion)
    return float(stated is not None and hendrycks.is_equal(stated, str(answer)))


@zero_beyond_limits
def verl_math_dapo_reward(
    completion: str, answer: Any, *, version: Literal["0.4", "0.5", "0.9"] = "0.4"
) -> float:
    r"""1 if the last line `Answer: ...` is the answer in Minerva's normal form, else -1.

    Only the last 300 characters of the response count. In version 0.9 (verl 0.9.1), a response without such a line has
    the answer of the last `\boxed{...}` in its last 100 characters, which is compared as text.
    """
    end = completion[-_SEARCHED_CHARS:]
    lines = _ANSWER_LINE.findall(end)
    stated = minerva.normal_form(lines[-1] if lines else _INVALID)
    is_right = stated == minerva.normal_form(str(answer))
    if version == "0.9" and stated == _INVALID and (boxed := _last_box(end[-_BOX_CHARS:])) is not None:
        stated, is_right = boxed, boxed == str(answer)
    return StatedAnswer(1.0 if is_right else -1.0, is_right=is_right, prediction=stated)


@zero_beyond_limits
def verl_prime_math_reward(completion: str, answer: Any) -> float:
    r"""1 if the answer that the response ends with has the value of the task's answer, else 0.

    The answer is the last `\boxed{...}`, or what follows phrases such as `the answer is` and the last verb.
    """
    stated, truth = stated_in_prose(completion), str(answer)
    return float(is_equal_prm800k(stated, truth) or is_equal_tolerant(stated, truth))


@zero_beyond_limits
def verl_geometry3k_reward(completion: str, answer: Any, *, format_weight: float = 0.1) -> float:
    r"""0.9 for the last `\boxed{...}` with the answer, plus 0.1 for `<think>...</think>` and a box after it."""
    stated = last_box_of_mathruler(completion)
    accuracy = float(is_equal_prm800k("None" if stated is None else stated, str(answer)))
    return (1.0 - format_weight) * accuracy + format_weight * float(_thinks_then_boxes(completion))


def stated_in_prose(text: str) -> str:
    """The answer that a response ends with, as PRIME (arXiv 2502.01456) extracts it; the entire text if it has no
    mark of an answer."""
    for mark in _BEFORE:
        found = text.lower().rfind(mark)
        text = text if found < 0 else text[found + len(mark) :].strip()
    for mark in _AFTER:
        found = text.lower().rfind(mark)
        text = text if found < 0 else text[:found].strip()
    text = last_box_of_prm800k(text) or text
    if ". " in text:
        text = text.rpartition(". ")[0].strip()
    for mark in _VERBS:
        found = text.lower().rfind(mark)
        text = text if found < 0 else text[found + len(mark) :].strip()
    return text


def last_box_of_mathruler(text: str) -> str | None:
    r"""Content of the last `\boxed{...}`; None if there is none or it is not closed."""
    found = _last_box(text)
    return None if found is None else found.strip()


def _last_box(text: str) -> str | None:
    r"""Content of the last `\boxed{...}`; None if there is none or it is not closed."""
    start = text.rfind("\\boxed{")
    return None if start < 0 else braced(text, start + len("\\boxed"))


def _thinks_then_boxes(text: str) -> bool:
    closed = text.find("</think>", len("<think>"))
    box = -1 if closed < 0 else text.find("\\boxed{", closed + len("</think>"))
    return text.startswith("<think>") and box >= 0 and text.find("}", box + len("\\boxed{")) >= 0


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


_ARTICLE = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_MAX_TAGS = 10


def verl_search_qa_reward(completion: str, answer: Any) -> float:
    """1 if the last `<answer>...</answer>` is one of the answers, without case, articles and punctuation, else 0.

    A quarter of it for a response with more than 10 opening or closing tags. `answer` is a mapping with `target`: an
    answer or a list of them. Raises ValueError for anything else.
    """
    if not isinstance(answer, Mapping) or "target" not in answer:
        raise ValueError(f"the task's answer must have `target`, got {answer!r}")
    target = answer["target"]
    targets = [target] if isinstance(target, str) else list(target)
    stated = last_tagged(completion)
    if stated is None or normalized(stated) not in {normalized(str(each)) for each in targets}:
        return 0.0
    crowded = max(completion.count("<answer>"), completion.count("</answer>")) > _MAX_TAGS
    return 0.25 if crowded else 1.0


def normalized(text: str) -> str:
    """The text in lower case without ASCII punctuation and articles, with single spaces (SQuAD, arXiv 1606.05250)."""
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_PUNCTUATION)).split())


_OTHERS: dict[str, Callable[[str, Any], float]] = {
    "verl_math": verl_math_reward,
    "verl_prime_math": verl_prime_math_reward,
    "verl_geometry3k": verl_geometry3k_reward,
    "verl_search_qa": verl_search_qa_reward,
}
_GSM8K_CHARS = {"0.4": None, "0.5": 300, "0.9": 300}


def verl_by_source_reward(
    completion: str,
    answer: Any,
    source: str,
    *,
    version: Literal["0.4", "0.5", "0.9"] = "0.4",
    sandbox: SandboxConfig = DEFAULT_SANDBOX,
    budget_seconds: float = 24.0,
) -> float:
    """Value of the scorer that `REWARD_BY_SOURCE` has for the task's source.

    Since version 0.5, GSM8K's scorer searches only the last 300 characters; in version 0.9 (verl 0.9.1), that of
    `math_dapo` and `aime*` falls back to the last box. Raises ValueError for an unknown source.
    """
    name = next((name for known, name in REWARD_BY_SOURCE.items() if fnmatchcase(source, known)), None)
    if name is None:
        known = ", ".join(REWARD_BY_SOURCE)
        raise ValueError(
            f"verl has no reward for the data_source {source!r}; it has one for {known}. Write a "
            "custom_reward_function, or one of these names in the data"
        )
    if name == "verl_code":
        return verl_code_reward(completion, answer, sandbox=sandbox, budget_seconds=budget_seconds)
    if name == "verl_gsm8k":
        return verl_gsm8k_reward(completion, answer, last_chars=_GSM8K_CHARS[version])
    if name == "verl_math_dapo":
        return verl_math_dapo_reward(completion, answer, version=version)
    return _OTHERS[name](completion, answer)
