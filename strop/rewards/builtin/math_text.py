"""Texts of answers: a task's answer that data files hold as a number or as text, and stated answers of responses, which
are the content of tags, the boxed part, the line after `Answer:`, and formulas of a text.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from numbers import Integral, Real
from typing import Any

_NUMBER_WITH_PERIOD = re.compile(r"\$*\s*[-+−]?[\d,]*\d\.\s*\$*")


def answer_text(answer: Any) -> str:
    """The answer as text; a number in plain decimal digits: `1e16` as `10000000000000000`, `42.0` as `42`.

    Raises ValueError for null, NaN, infinity, a truth value, a list or a mapping, and for a text without characters.
    """
    if isinstance(answer, str):
        if not answer.strip():
            raise ValueError("the task's answer is empty; write the answer as text or a number")
        return answer
    if isinstance(answer, Decimal | Real) and not isinstance(answer, bool):
        if not math.isfinite(answer):
            raise ValueError(f"the task's answer is {answer}; write the answer as text or a finite number")
        if isinstance(answer, Integral):
            return str(int(answer))
        exact = answer if isinstance(answer, Decimal) else Decimal(repr(float(answer)))
        text = format(exact, "f")
        return text.rstrip("0").rstrip(".") if "." in text else text
    shown = "null" if answer is None else f"{answer!r:.80}, of the type {type(answer).__name__}"
    raise ValueError(f"the task's answer is {shown}; write the answer as text or a number")


def mathematical_answer_text(answer: Any) -> str:
    """`answer_text` without a trailing period, which is refused, as is the text NaN."""
    text = answer_text(answer)
    if text.strip().lower() in ("nan", "none", "null"):
        raise ValueError(f"the task's answer is {text.strip()!r}; write the answer as text or a number")
    if _NUMBER_WITH_PERIOD.fullmatch(text.strip()):
        raise ValueError(f"the task's answer {text!r} ends in a period; write it without the period")
    return text


_BARE_BOX = re.compile(r"\\boxed[ \t]*+([^\s${}\\][^\s${}]*|\\[^\s$]+)")
_BRACE = re.compile(r"(?<!\\)[{}]")
_ANSWER_LINE = re.compile(r"(?i:answer)\**+\s*:(.+)")
_MAX_SEARCHED_CHARS = 8000
"""Length of the end of a response that `flexible` searches."""
_ANSWER_IS = re.compile(r"(?i:answer)\**+\s*+(?:is|are|:|=)\s*+:?")
_FORMULA = re.compile(
    r"\$\$([^$]+)\$\$|(?<!\\)\$((?:\\\$|[^$\n])+?)(?<!\\)\$"
    r"|\\\[((?:(?!\\[\[\]]).)+)\\\]|\\\(((?:(?!\\[()]).)+)\\\)",
    re.DOTALL,
)
_JOINT = re.compile(r"\s*+(?:,(?:\s*+(?:and|or))?|and|or)\s*")
_PLAIN_NUMBER = re.compile(
    r"(?<![\w.^{])[-−+]?[$€£¥]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?<=\d)(?:e[+-]?\d+)?"
    r"(?:\s?[/^:*+-]\s?\d+(?:\.\d+)?)*(?:\s?(?:%|\\%))?"
)
_SPACE = re.compile(r"\s+")
_KEPT_SPACE = re.compile(r"(?<=[\w,]) (?=\w)")
_FONT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
_OPEN, _CLOSE = "<answer>", "</answer>"


def last_boxed(text: str) -> str | None:
    r"""Content of the last `\boxed{...}` or `\fbox{...}`, with balanced braces; None if there is none.

    Without any of these, the word after the last `\boxed` without braces.
    """
    start = max(text.rfind("\\boxed{"), text.rfind("\\fbox{"))
    if start < 0:
        bare = text.rfind("\\boxed")
        found = None if bare < 0 else _BARE_BOX.match(text, bare)
        return None if found is None else found[1]
    opening = text.index("{", start)
    depth = 0
    for brace in _BRACE.finditer(text, opening):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return text[opening + 1 : brace.start()]
    return None


def stated_answer(text: str) -> str | None:
    r"""Content of the last `\boxed{...}`, else the rest of the line after the last `Answer:`; None without both."""
    inside = last_boxed(text)
    if inside is None:
        lines = _ANSWER_LINE.findall(text)
        inside = lines[-1].lstrip("$* ").rstrip("$*. ") if lines else None
    return inside


def answers_in_text(text: str) -> list[str]:
    """Answers that the end of a text may state: after the last `answer is`, else its last formula or number.

    Formulas that only commas, `and` or `or` separate are one list.
    """
    text = text[-_MAX_SEARCHED_CHARS:]
    for found in reversed(list(_ANSWER_IS.finditer(text))):
        line = text[found.end() :].lstrip(" *\n").split("\n", 1)[0]
        answers = _first_answers(line)
        if answers:
            has_digit = any(each.isdigit() for answer in answers for each in answer)
            return answers if has_digit else [*answers, *_last_answer(text)]
    return _last_answer(text)


def _last_answer(text: str) -> list[str]:
    formulas = list(_FORMULA.finditer(text))
    numbers = list(_PLAIN_NUMBER.finditer(_FORMULA.sub(lambda each: " " * len(each[0]), text)))
    numbers = [number for number in numbers if any(each.isdigit() for each in number[0])]
    if formulas and (not numbers or formulas[-1].end() > numbers[-1].end()):
        return [_joined(text, formulas)]
    return [numbers[-1][0]] if numbers else []


def _first_answers(line: str) -> list[str]:
    formulas = list(_FORMULA.finditer(line))
    if formulas:
        first = [formulas[0]]
        for following in formulas[1:]:
            if not _JOINT.fullmatch(line[first[-1].end() : following.start()]):
                break
            first.append(following)
        return [_joined(line, first)]
    whole = line.strip().rstrip("*. ")
    number = _PLAIN_NUMBER.search(line)
    answers = [whole] if whole and len(whole) < 100 else []
    if number is not None and any(each.isdigit() for each in number[0]):
        answers.append(number[0])
    return answers


def _joined(text: str, formulas: list[re.Match[str]]) -> str:
    """The last formula, with those before it that only a comma, `and` or `or` separates."""
    parts = [_content(formulas[-1])]
    for position in range(len(formulas) - 1, 0, -1):
        between = text[formulas[position - 1].end() : formulas[position].start()]
        if not _JOINT.fullmatch(between):
            break
        parts.append(_content(formulas[position - 1]))
    return ", ".join(reversed(parts))


def _content(formula: re.Match[str]) -> str:
    return next(group for group in formula.groups() if group is not None)


def is_same_text(one: str, other: str) -> bool:
    """Whether two answers differ only in spaces without a meaning: `4 2` is not `42`, and `1, 234` is not `1,234`."""
    return _without_spaces(one) == _without_spaces(other)


def _without_spaces(text: str) -> str:
    text = _SPACE.sub(" ", text.strip())
    kept = _KEPT_SPACE.sub("\0", text)
    return kept.replace(" ", "").replace("\0", " ")


def plain_text(latex: str) -> str:
    """An answer without fonts, formula borders, sizes and trailing periods, for the comparison of texts."""
    text = _FONT.sub(r"\1", latex.strip().strip("$"))
    text = re.sub(r"\\(?:left|right)(?![a-zA-Z])|\\[,;:! ]", "", text).replace(r"\dfrac", r"\frac")
    return _without_spaces(text.strip().rstrip(".").replace("**", ""))


def last_tagged(text: str) -> str | None:
    """Content of the last `<answer>...</answer>`, from the first opening tag after the previous closing tag.

    None if there is none. The time is linear in the text, also with many opening tags.
    """
    end = text.rfind(_CLOSE)
    while end >= 0:
        before = text.rfind(_CLOSE, 0, end)
        start = text.find(_OPEN, max(before, 0), end)
        if start >= 0:
            return text[start + len(_OPEN) : end]
        end = before
    return None
