"""Parsers of replies by name, on the published formats of each family."""

from __future__ import annotations

import json
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strop.data.encoding.chat_reply import ChatReplyParser, ReasoningParser, split_reasoning
from strop.data.encoding.tool_calls import ToolCall, ToolCallFormat, parse_reply

TOOLS = ({"function": {"name": "add", "parameters": {"properties": {"a": {"type": "number"}}}}},)
ADD, SUB = ToolCall("add", {"a": 1}), ToolCall("sub", {"b": [2, "x"]})
ADD_JSON = '{"name": "add", "arguments": {"a": 1}}'
SUB_JSON = '{"name": "sub", "arguments": {"b": [2, "x"]}}'
DEEPSEEK_V3 = (
    "<｜tool▁calls▁begin｜>"
    '<｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n{"a": 1}\n```<｜tool▁call▁end｜>\n'
    '<｜tool▁call▁begin｜>function<｜tool▁sep｜>sub\n```json\n{"b": [2, "x"]}\n```<｜tool▁call▁end｜>'
    "<｜tool▁calls▁end｜>"
)
DEEPSEEK_V31 = (
    '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜>'
    '<｜tool▁call▁begin｜>sub<｜tool▁sep｜>{"b": [2, "x"]}<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
)


@pytest.mark.parametrize(
    ("form", "text", "content"),
    [
        (
            "hermes",
            f"First.\n<tool_call>\n{ADD_JSON}\n</tool_call>\n<tool_call>{SUB_JSON}</tool_call>",
            "First.",
        ),
        (
            "qwen3_coder",
            "First.\n<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
            "First.",
        ),
        ("llama3_json", '{"name": "add", "parameters": {"a": 1}}', ""),
        ("llama3_json", f"<|python_tag|>{ADD_JSON}; {SUB_JSON}", ""),
        ("mistral", f"First. [TOOL_CALLS] [{ADD_JSON}, {SUB_JSON}]", "First."),
        ("mistral", f"[{ADD_JSON}]", ""),
        ("mistral", '[TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]sub[ARGS]{"b": [2, "x"]}', ""),
        ("mistral", '[TOOL_CALLS]add[CALL_ID]Xy1234567[ARGS]{"a": 1}', ""),
        ("mistral", '[TOOL_CALLS]add{"a": 1}', ""),
        ("deepseek", f"First.{DEEPSEEK_V3}", "First."),
        ("deepseek", DEEPSEEK_V31, ""),
    ],
)
def test_published_formats(form, text, content):
    reply = parse_reply(text, form, TOOLS)
    assert reply.content == content
    assert reply.calls == (ADD, SUB)[: len(reply.calls)] and len(reply.calls) == 1 + ("sub" in text)


@pytest.mark.parametrize(
    ("form", "text", "fault"),
    [
        ("llama3_json", '{"name": "add", "parameters": {"a": 1', "not JSON"),
        ("llama3_json", '{"name": "add", "parameters": [1]}', "not an object"),
        ("llama3_json", f"{ADD_JSON} and more", "not JSON"),
        ("mistral", f"[TOOL_CALLS] [{ADD_JSON}", "not JSON"),
        ("mistral", "[TOOL_CALLS] [5]", "a call must be"),
        ("mistral", "[TOOL_CALLS]add", "name[ARGS]"),
        ("mistral", '[TOOL_CALLS]add[ARGS]{"a": ', "arguments are not JSON"),
        (
            "deepseek",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁call▁end｜>",
            "a name and JSON arguments",
        ),
        (
            "deepseek",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{",
            "arguments are not JSON",
        ),
    ],
)
def test_malformed_calls_have_an_error_and_stay_in_the_content_of_a_chat_reply(form, text, fault):
    calls = parse_reply(text, form, TOOLS).calls
    assert fault in (calls[-1].parse_error or "")
    reply = ChatReplyParser(form).parse(text, TOOLS, None)
    assert (reply.content, reply.calls) == (text, ())


@pytest.mark.parametrize("form", get_args(ToolCallFormat))
def test_text_without_a_call_is_content(form):
    for text in ("No call here.", "A list: [1, 2] and an object: {}.", ""):
        assert (
            parse_reply(text, form, TOOLS) == parse_reply(text, "hermes")
            and not parse_reply(text, form).calls
        )


@given(st.text(), st.sampled_from(get_args(ToolCallFormat)), st.sampled_from(get_args(ReasoningParser)))
def test_no_text_raises(text, form, reasoning):
    for marked in (
        text,
        f"[TOOL_CALLS]{text}",
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{text}",
        f'{{"name":{text}',
    ):
        ChatReplyParser(form, reasoning).parse(marked, TOOLS, None)


@pytest.mark.parametrize(
    ("parser", "text", "expected"),
    [
        ("none", "<think>a</think>b", (None, "<think>a</think>b")),
        ("deepseek_r1", "<think>\na\n</think>\n\nb", ("a", "b")),
        ("deepseek_r1", "a</think>b", ("a", "b")),
        ("deepseek_r1", "a that ends here", ("a that ends here", "")),
        ("qwen3", "<think>\na\n</think>\n\nb", ("a", "b")),
        ("qwen3", "a\n</think>\n\nb", ("a", "b")),
        ("qwen3", "an answer without thinking", (None, "an answer without thinking")),
        ("qwen3", "<think>\na that ends here", ("a that ends here", "")),
        ("qwen3", "<think>\n\n</think>\n\nb", (None, "b")),
    ],
)
def test_reasoning(parser, text, expected):
    assert split_reasoning(text, parser) == expected


def test_calls_are_read_from_the_content_after_the_reasoning():
    inside = f"<think>I could <tool_call>{SUB_JSON}</tool_call></think>"
    text = f"{inside}\n<tool_call>\n{ADD_JSON}\n</tool_call>"
    reply = ChatReplyParser("auto", "qwen3").parse(text, TOOLS, "... <tool_call> ...")
    assert (reply.calls, reply.content) == ((ADD,), "")
    assert reply.reasoning == f"I could <tool_call>{SUB_JSON}</tool_call>"
    assert json.loads(ADD_JSON)["name"] == reply.calls[0].name
    unasked = ChatReplyParser("hermes", "qwen3").parse(text, (), None)
    assert unasked.content == f"<tool_call>\n{ADD_JSON}\n</tool_call>"


def test_auto_keeps_the_special_tokens_that_the_templates_format_needs():
    assert ChatReplyParser().keeps_special_tokens("<|start|>assistant<|channel|>analysis<|message|>")
    assert not ChatReplyParser().keeps_special_tokens("<tool_call>")
    assert not ChatReplyParser().keeps_special_tokens(None)
    assert ChatReplyParser(tool_calls="mistral").keeps_special_tokens(None)
