"""A rollout as it is shown: its messages, tool calls, images, and its tokens with colors."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from strop.config.paths import existing_path
from strop.data.images.messages import content_text
from strop.runs.reader import RunData
from strop.workers.json_text import parse_json

Coloring = Literal["logprob", "advantage"]
_LOWEST_LOGPROB = -5.0
"""Log-prob from which on a token has the full color."""


@dataclass(frozen=True, slots=True)
class ShownMessage:
    """One message of a conversation."""

    role: str
    text: str
    calls: tuple[tuple[str, str], ...]
    """Name and arguments of each tool call."""


@dataclass(frozen=True, slots=True)
class ShownToken:
    """One sampled token."""

    text: str
    title: str
    """Log-prob and advantage, as a tooltip."""
    color: str
    """Color of the background in CSS; empty for none."""


def response_messages(row: Mapping[str, Any]) -> list[ShownMessage]:
    """The messages after the prompt; a response in one turn is one message of the assistant."""
    if not row.get("messages"):
        return [ShownMessage("assistant", str(row["text"]), ())]
    return [_message(message) for message in parse_json(row["messages"])]


def _message(message: Mapping[str, Any]) -> ShownMessage:
    content = content_text(message.get("content"))
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, indent=1)
    calls = tuple(_call(call) for call in message.get("tool_calls") or ())
    role = str(message.get("role", ""))
    name = message.get("name")
    return ShownMessage(f"{role} {name}" if name else role, text, calls)


def _call(call: Any) -> tuple[str, str]:
    function = call.get("function", call) if isinstance(call, dict) else {"name": str(call)}
    arguments = function.get("arguments", "")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False, indent=1)
    return str(function.get("name", "")), arguments


def shown_tokens(row: Mapping[str, Any], data: RunData, coloring: Coloring) -> list[ShownToken]:
    """The sampled tokens of a rollout with their colors; none where the run did not record them."""
    ids = row.get("token_ids")
    if not ids:
        return []
    logprobs = row.get("token_logprobs") or [None] * len(ids)
    advantages = row.get("token_advantages") or [None] * len(ids)
    largest = max((abs(value) for value in advantages if value is not None), default=0.0) or 1.0
    return [
        ShownToken(text, _title(token, logprob, advantage), _color(coloring, logprob, advantage, largest))
        for text, token, logprob, advantage in zip(
            _pieces(ids, _tokenizer_file(data)), ids, logprobs, advantages, strict=True
        )
    ]


def _title(token: int, logprob: float | None, advantage: float | None) -> str:
    parts = [f"token {token}"]
    parts += [] if logprob is None else [f"log-prob {logprob:.3f}"]
    parts += [] if advantage is None else [f"advantage {advantage:+.3f}"]
    return ", ".join(parts)


def _color(coloring: Coloring, logprob: float | None, advantage: float | None, largest: float) -> str:
    if coloring == "logprob":
        if logprob is None:
            return ""
        return f"rgb(217 130 43 / {0.75 * min(logprob / _LOWEST_LOGPROB, 1.0):.2f})" if logprob < 0 else ""
    if advantage is None or advantage == 0:
        return ""
    tone = "58 157 120" if advantage > 0 else "207 92 75"
    return f"rgb({tone} / {0.12 + 0.6 * abs(advantage) / largest:.2f})"


def _pieces(ids: Sequence[int], tokenizer: str | None) -> list[str]:
    """Text of each token; its id where there is no tokenizer file.

    A token can be a part of a character: the text of the tokens up to it tells what it adds.
    """
    if tokenizer is None:
        return [f"{token} " for token in ids]
    loaded = _tokenizer(tokenizer)
    pieces, begin, shown = [], 0, ""
    for end in range(1, len(ids) + 1):
        text = loaded.decode(list(ids[begin:end]), skip_special_tokens=False)
        pieces.append(text[len(shown) :] if not text.endswith("\ufffd") else "")
        if not text.endswith("\ufffd"):
            shown = text
            if end - begin > 32:
                begin, shown = end, ""
    return pieces


def _tokenizer_file(data: RunData) -> str | None:
    """The tokenizer's file of a run: that of its trained model, or of the model that it starts from."""
    model = data.configuration().get("model") or {}
    named = [str(model[key]) for key in ("tokenizer", "path") if isinstance(model.get(key), str)]
    folders = [data.folder.model, *filter(None, map(existing_path, named))]
    files = [folder / "tokenizer.json" for folder in folders]
    return next((str(file) for file in files if file.is_file()), None)


@lru_cache(maxsize=8)
def _tokenizer(file: str) -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(Path(file)))
