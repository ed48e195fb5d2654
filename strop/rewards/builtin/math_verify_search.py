"""Search of math-verify (github.com/huggingface/Math-Verify) for answers, with bounded work."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import Any

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

from strop.rewards.builtin.math_limits import MAX_CHARS, check_expression, check_latex
from strop.rewards.graders import SizeLimitError

_EXTRACTION = (LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig())
_FORMULA_BORDER = re.compile(r"(\$+|\\[()\[\]])")
_MAX_SEARCHED_CHARS = 8000
"""Length of the end of a response that is searched; the work is quadratic in it."""

# math-verify warns that its own time limits are off. They use SIGALRM, which works in a main thread only; the
# limit of `execution/worker.py` works in any thread.
logging.getLogger("math_verify").setLevel(logging.ERROR)


def parse_boxed(latex: str, max_chars: int) -> list[Any]:
    """An answer as math-verify parses it. Raises SizeLimitError for one beyond the limits."""
    check_latex(latex, max_chars)
    found = list(parse(f"\\boxed{{{latex}}}", _EXTRACTION, parsing_timeout=None))
    for each in found:
        check_expression(each)
    return found


def answers_in_text(text: str) -> list[Any]:
    """Answers that math-verify finds in the end of a text; formulas beyond the limits are left out."""
    return checked_answers(text, _EXTRACTION)


def checked_answers(
    text: str, extraction: Sequence[LatexExtractionConfig | ExprExtractionConfig]
) -> list[Any]:
    """Answers of the given kinds that math-verify finds in the end of a text.

    Formulas beyond the limits are left out. Raises SizeLimitError for an answer beyond them.
    """
    pieces = _FORMULA_BORDER.split(text[-_MAX_SEARCHED_CHARS:])
    if len(pieces) > 1 or "^" in text or "**" in text:
        pieces = [_harmless(piece) for piece in pieces]
    found = list(parse("".join(pieces), extraction, parsing_timeout=None))
    for each in found:
        check_expression(each)
    return found


def _harmless(piece: str) -> str:
    """The text between two borders of formulas, or a space if it has a formula that exceeds a limit."""
    is_prose = piece.count(" ") > len(piece) / 50
    try:
        check_latex(piece, _MAX_SEARCHED_CHARS if is_prose else MAX_CHARS)
    except SizeLimitError:
        return " "
    return piece
