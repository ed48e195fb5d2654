"""Ledger rows of Trinity's parsers of replies, which have vLLM's names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.compat.ledger.key_mapping import (
    ForeignValues,
    KeyMapping,
    mapped,
    written_by,
)
from strop.compat.ledger.value_types import STRING, nullable
from strop.config.schema import Run

_MODEL = "explorer.rollout_model"
_TOOL_CALLS: Mapping[str | None, str] = {
    None: "auto",
    "hermes": "hermes",
    "llama3_json": "llama3_json",
    "llama4_json": "llama3_json",
    "qwen3_coder": "qwen3_coder",
    "qwen3_xml": "qwen3_coder",
    "mistral": "mistral",
    "deepseek_v3": "deepseek",
    "deepseek_v31": "deepseek",
    "openai": "gpt_oss",
}
"""Strop's parser of tool calls by vLLM's name; the first name of a parser is written."""
_REASONING: Mapping[str | None, str] = {None: "none", "deepseek_r1": "deepseek_r1", "qwen3": "qwen3"}


def _parser_row(key: str, field: str, parsers: Mapping[str | None, str], null: str) -> KeyMapping:
    foreign_key, where = f"{_MODEL}.{key}", f"rollout.endpoint.{field}"

    def write(run: Run) -> Mapping[str, Any]:
        chosen = getattr(run.rollout.endpoint, field)
        return {foreign_key: next((name for name, parser in parsers.items() if parser == chosen), None)}

    @written_by(write)
    def read(foreign: ForeignValues) -> Mapping[str, Any]:
        name = foreign[foreign_key]
        if name not in parsers:
            known = ", ".join(str(each) for each in parsers if each is not None)
            raise foreign.error_for(
                foreign_key, f"{foreign_key} is {name}, a parser that Strop does not have; it has {known}."
            )
        return {where: parsers[name]}

    return mapped(foreign_key, None, where, read=read, value_type=nullable(STRING), note=null)


PARSERS = (
    _parser_row(
        "tool_call_parser",
        "tool_call_parser",
        _TOOL_CALLS,
        "null means the format of the model's chat template",
    ),
    _parser_row(
        "reasoning_parser",
        "reasoning_parser",
        _REASONING,
        "null leaves the reasoning in the text of a response",
    ),
)
