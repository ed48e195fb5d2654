"""Strop's own questions to a language model about the quality and the difficulty of a row."""

from __future__ import annotations

_ROW = """\
{% for name, text in fields %}{{ name }}:
{{ text }}

{% endfor %}"""

_ANSWER = """\
Name in one sentence the main reason for your score. Then write one last line, "Score: n", where n is a number from 1
({lowest}) to 5 ({highest})."""

QUALITY = (
    "Judge the quality of an entry of a training set for language models: is it clear, correct, complete and free of "
    "noise?\n\n" + _ROW + _ANSWER.format(lowest="unusable", highest="excellent")
)
DIFFICULTY = (
    "Judge how difficult the task of an entry of a training set is for a language model: how much knowledge, how many "
    "steps and how much care does the right answer need?\n\n"
    + _ROW
    + _ANSWER.format(lowest="trivial", highest="for experts only")
)
SCORE_PROMPTS = {"quality": QUALITY, "difficulty": DIFFICULTY}
SCORE_PATTERN = r'"?[Ss]core"?\s*[:=][\s*"]*(-?\d+(?:\.\d+)?)'
"""Regular expression of a score in the reply."""
