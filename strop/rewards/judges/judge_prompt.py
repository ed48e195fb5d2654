"""Prompt of a judge, and parsing of the score in its reply."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined, Template, TemplateError

from strop.config.schema.reward import JudgeConfig
from strop.data.images.messages import content_text
from strop.errors import RewardError
from strop.types import Rollout, Task

_MAX_QUOTE_CHARS = 200


class JudgePrompt:
    """A judge's prompt template, and the pattern of its scores."""

    def __init__(self, section: JudgeConfig) -> None:
        """Raises RewardError for an invalid prompt template or pattern."""
        self._section = section
        self._template = _load_template(section)
        self._pattern = _compile_pattern(section)

    def request_body(self, task: Task, rollout: Rollout) -> dict[str, Any] | str:
        """Body of the chat completions request; an error message if the task lacks a template variable."""
        prompt = [{**message, "content": content_text(message["content"])} for message in task.messages]
        user_texts = [message["content"] for message in prompt if message["role"] == "user"]
        variables = {
            "conversation": (*prompt, *rollout.response_messages),
            **task.extra,
            "prompt": prompt,
            "question": user_texts[-1] if user_texts else "",
            "completion": rollout.text,
            "answer": task.answer,
            "source": task.source,
        }
        try:
            text = self._template.render(variables)
        except TemplateError as error:
            return f"failed to render its prompt: {error}; the task has {', '.join(sorted(variables))}"
        return {
            "model": self._section.model,
            "messages": [{"role": "user", "content": text}],
            "temperature": self._section.temperature,
            "max_tokens": self._section.max_tokens,
        }

    def parse_score(self, reply: str) -> float | str:
        """Last score in a reply, scaled to 0..1; an error message if there is none."""
        found = self._pattern.findall(reply)
        if not found:
            return f"gave no score: nothing in its reply matches {self._section.pattern!r}: {_quoted(reply)}"
        lowest, highest = self._section.min_score, self._section.max_score
        try:
            score = (float(found[-1]) - lowest) / (highest - lowest)
        except ValueError:
            score = math.nan
        if not 0 <= score <= 1:
            return (
                f"gave the score {found[-1]}, which is not between {lowest:g} and {highest:g}: "
                f"{_quoted(reply)}"
            )
        return score


def _load_template(section: JudgeConfig) -> Template:
    text = section.prompt
    if text.endswith(".jinja"):
        path = Path(text).expanduser()
        if not path.is_file():
            raise RewardError(f"reward {section.name!r}: the prompt file {path} does not exist.")
        text = path.read_text(encoding="utf-8")
    try:
        return Environment(undefined=StrictUndefined, trim_blocks=True).from_string(text)
    except TemplateError as error:
        raise RewardError(
            f"reward {section.name!r}: the judge's prompt is not a valid Jinja template: {error}."
        ) from error


def _compile_pattern(section: JudgeConfig) -> re.Pattern[str]:
    try:
        pattern = re.compile(section.pattern, re.IGNORECASE)
    except re.error as error:
        raise RewardError(
            f"reward {section.name!r}: `pattern` is not a valid regular expression: {error}."
        ) from error
    if pattern.groups != 1:
        raise RewardError(
            f"reward {section.name!r}: `pattern` has {pattern.groups} groups; it needs one, around the score, "
            r"such as Score: (\d+)."
        )
    return pattern


def _quoted(text: str) -> str:
    return repr(text if len(text) <= _MAX_QUOTE_CHARS else f"...{text[-_MAX_QUOTE_CHARS:]}")
