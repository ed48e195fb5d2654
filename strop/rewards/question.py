"""What a judge is asked about an answer, and what its reply says."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined, Template, TemplateError

from strop.config.schema.judge import Judge
from strop.errors import RewardError
from strop.types import Rollout, Task

_LONGEST_QUOTE = 200


class Question:
    """A judge's prompt, and the pattern of its scores."""

    def __init__(self, section: Judge) -> None:
        """Raises RewardError for a prompt or a pattern that cannot be used."""
        self._section = section
        self._template = _template(section)
        self._pattern = _pattern(section)

    def body(self, task: Task, rollout: Rollout) -> dict[str, Any] | str:
        """The request in OpenAI's terms, or what is wrong with the task."""
        asked = [message["content"] for message in task.messages if message["role"] == "user"]
        names = {
            "conversation": (*task.messages, *rollout.said),
            **task.extra,
            "prompt": task.messages,
            "question": asked[-1] if asked else "",
            "completion": rollout.text,
            "answer": task.answer,
            "source": task.source,
        }
        try:
            text = self._template.render(names)
        except TemplateError as error:
            return f"could not be asked: its prompt says {error}; a task has {', '.join(sorted(names))}"
        return {
            "model": self._section.model,
            "messages": [{"role": "user", "content": text}],
            "temperature": self._section.temperature,
            "max_tokens": self._section.max_tokens,
        }

    def read(self, reply: str) -> float | str:
        """The last score in a reply, from 0 to 1, or why there is none."""
        found = self._pattern.findall(reply)
        if not found:
            return f"gave no score: nothing in its reply is like {self._section.pattern!r}: {_quoted(reply)}"
        worst, best = self._section.worst, self._section.best
        try:
            score = (float(found[-1]) - worst) / (best - worst)
        except ValueError:
            score = math.nan
        if not 0 <= score <= 1:
            return (
                f"gave the score {found[-1]}, which is not between {worst:g} and {best:g}: {_quoted(reply)}"
            )
        return score


def _template(section: Judge) -> Template:
    text = section.prompt
    if text.endswith(".jinja"):
        path = Path(text).expanduser()
        if not path.is_file():
            raise RewardError(f"reward {section.name!r}: there is no file {path} for the judge's prompt.")
        text = path.read_text(encoding="utf-8")
    try:
        return Environment(undefined=StrictUndefined, trim_blocks=True).from_string(text)
    except TemplateError as error:
        raise RewardError(
            f"reward {section.name!r}: the judge's prompt is no Jinja text: {error}."
        ) from error


def _pattern(section: Judge) -> re.Pattern[str]:
    try:
        pattern = re.compile(section.pattern, re.IGNORECASE)
    except re.error as error:
        raise RewardError(f"reward {section.name!r}: `pattern` is no regular expression: {error}.") from error
    if pattern.groups != 1:
        raise RewardError(
            f"reward {section.name!r}: `pattern` has {pattern.groups} groups; it needs one, round the score, "
            r"such as Score: (\d+)."
        )
    return pattern


def _quoted(text: str) -> str:
    return repr(text if len(text) <= _LONGEST_QUOTE else f"...{text[-_LONGEST_QUOTE:]}")
