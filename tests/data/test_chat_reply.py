"""Parsers of replies by name, on the published formats of each family."""

from __future__ import annotations

import json
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strop.data.encoding.reply import (
    ChatReplyParser,
    ReasoningParser,
    ToolCall,
    ToolCallFormat,
    ends_in_reasoning,
    parse_reply,
    split_reasoning,
    tool_call_format,
)
from tests.workflows.conftest import TOOLS_TEMPLATE

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


XML = "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"
CALLS, CALL = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"


@pytest.mark.parametrize(
    ("form", "text", "content"),
    [
        ("hermes", f"A.\n<tool_call>\n{ADD_JSON}\n</tool_call>\n<tool_call>{SUB_JSON}</tool_call>", "A."),
        ("qwen3_coder", f"First.\n{XML}", "First."),
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
        ("hermes", "<think>a</think><tool_call>add(1)</tool_call>", "not JSON"),
        ("hermes", f"<tool_call>{ADD_JSON}</tool_call> <tool_call>add(1)</tool_call>", "not JSON"),
        ("mistral", f"[TOOL_CALLS] [{ADD_JSON}", "not JSON"),
        ("mistral", "[TOOL_CALLS] [5]", "a call must be"),
        ("mistral", "[TOOL_CALLS]add", "name[ARGS]"),
        ("mistral", '[TOOL_CALLS]add[ARGS]{"a": ', "arguments are not JSON"),
        ("deepseek", f"{CALLS}add{CALL}", "a name and JSON arguments"),
        ("deepseek", f"{CALLS}add<｜tool▁sep｜>{{", "arguments are not JSON"),
    ],
)
def test_malformed_calls_have_an_error_and_stay_in_the_content_of_a_chat_reply(form, text, fault):
    calls = parse_reply(text, form, TOOLS).calls
    assert fault in (calls[-1].parse_error or "")
    reply = ChatReplyParser(form).parse(text, TOOLS, None)
    assert (reply.content, reply.calls) == (text, ())


@pytest.mark.parametrize("text", ["No call here.", "A list: [1, 2] and an object: {}.", ""])
@pytest.mark.parametrize("form", get_args(ToolCallFormat))
def test_text_without_a_call_is_content(form, text):
    assert parse_reply(text, form, TOOLS) == parse_reply(text, "hermes")
    assert not parse_reply(text, form).calls


@given(st.text(), st.sampled_from(get_args(ToolCallFormat)), st.sampled_from(get_args(ReasoningParser)))
def test_no_text_raises(text, form, reasoning):
    for mark in ("", "[TOOL_CALLS]", CALLS, '{"name":', "<tool_call>"):
        ChatReplyParser(form, reasoning).parse(mark + text, TOOLS, None)
        if form != "gpt_oss":
            assert parse_reply(mark + text, form, TOOLS, in_reasoning=True).calls == ()


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
    cut = ChatReplyParser("auto", "qwen3").parse(f"<tool_call>{ADD_JSON}", TOOLS, None, in_reasoning=True)
    assert (cut.reasoning, cut.content, cut.calls) == (f"<tool_call>{ADD_JSON}", "", ())
    unasked = ChatReplyParser("hermes", "qwen3").parse(text, (), None)
    assert unasked.content == f"<tool_call>\n{ADD_JSON}\n</tool_call>"


def in_format(form: ToolCallFormat, *, name: str = "add", a: int = 1) -> str:
    """A call in the marks of a format."""
    arguments = json.dumps({"a": a})
    return {
        "hermes": f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>',
        "qwen3_coder": f"<tool_call><function={name}><parameter=a>{a}</parameter></function></tool_call>",
        "mistral": f"[TOOL_CALLS]{name}[ARGS]{arguments}",
        "deepseek": f"{CALLS}{name}<｜tool▁sep｜>{arguments}{CALL}<｜tool▁calls▁end｜>",
        "llama3_json": f'<|python_tag|>{{"name": "{name}", "parameters": {arguments}}}',
        "json": f'{{"name": "{name}", "arguments": {arguments}}}',
    }[form]


MARKED = sorted(set(get_args(ToolCallFormat)) - {"gpt_oss"})


@pytest.mark.parametrize("form", MARKED)
@pytest.mark.parametrize(
    ("before", "is_open", "executed"),
    [
        ("<think>Perhaps {}.</think>\n", False, True),
        ("\n<think>\nPerhaps\n{}\n</think>\n\n", False, True),
        ("[THINK]{}[/THINK]", False, True),
        ("<seed:think>{}</seed:think>", False, True),
        ("Perhaps {} then.\n</think>\n", False, True),  # the opening mark is in the prompt
        ("Perhaps {} then.\n</think>\n", True, True),
        ("<think>a</think>\n<think>b {}</think>\n", False, True),
        ("Perhaps {}, and then ", True, False),
        ("<think>Perhaps {}, and then ", False, False),
        ("[THINK]Perhaps {}\n", False, False),
        ("<think>", False, False),
    ],
)
def test_a_call_in_the_reasoning_is_no_call(form, before, is_open, executed):
    text = before.replace("{}", in_format(form, name="sub")) + in_format(form)
    reply = parse_reply(text, form, TOOLS, in_reasoning=is_open)
    assert reply.calls == ((ADD,) if executed else ())
    assert reply.content == (before.replace("{}", in_format(form, name="sub")).strip() if executed else text)


@pytest.mark.parametrize("form", sorted({*MARKED} - {"json"}))
@pytest.mark.parametrize(
    "text",
    [
        "One writes `{}` for that.",
        "An example:\n```\n{}\n```\nThat is all.",
        "An example:\n```xml\n{}\n{}\n```",
        'The form is "{}".',
        "The form is \u201c{}\u201d.",
    ],
)
def test_a_quoted_call_is_no_call(form, text):
    text = text.replace("{}", in_format(form))
    assert parse_reply(text, form, TOOLS).calls == ()


@pytest.mark.parametrize(
    ("form", "text", "calls"),
    [
        ("hermes", "A call stands in <tool_call> and </tool_call>.", ()),
        ("hermes", "I use <tool_call>...</tool_call> for it.", ()),
        ("hermes", f"I use <tool_call> for it.\n<tool_call>{ADD_JSON}</tool_call>", (ADD,)),
        ("hermes", f"So: <tool_call>{ADD_JSON}</tool_call> follows.", (ADD,)),
        ("hermes", f"`x` and ``` and\n<tool_call>{ADD_JSON}</tool_call>", (ADD,)),
        ("hermes", f"The tag <think> is not used.\n<tool_call>{ADD_JSON}</tool_call>", (ADD,)),
        ("hermes", f"<tool_call>{ADD_JSON}\n<tool_call>{SUB_JSON}", (ADD, SUB)),
        ("qwen3_coder", f"I use <tool_call> for it.\n{XML}", (ADD,)),
        ("qwen3_coder", f"I write <tool_call>...</tool_call> now.\n{XML}", (ADD,)),
        ("mistral", "The token [TOOL_CALLS] begins a call.", ()),
        ("deepseek", "The token <｜tool▁calls▁begin｜> begins calls.", ()),
        ("llama3_json", f"I add.<|python_tag|>{ADD_JSON}", (ADD,)),
        ("llama3_json", "<|python_tag|>print(1)", ()),
        ("json", '{"name": "Ann", "age": 3}', ()),
        ("json", '{"name": "add"}', (ToolCall("add", {}),)),
        ("mistral", '[{"name": "Ann"}, {"name": "Bob"}]', ()),
    ],
)
def test_a_mention_is_no_call(form, text, calls):
    assert parse_reply(text, form, TOOLS).calls == calls


@pytest.mark.parametrize(
    ("form", "text", "value"),
    [
        ("hermes", '<tool_call>{"name": "add", "arguments": {"a": V}}</tool_call>', "</tool_call><think>```"),
        ("mistral", '[TOOL_CALLS]add[ARGS]{"a": V}', "[TOOL_CALLS] `x` [THINK]"),
        ("mistral", '[TOOL_CALLS] [{"name": "add", "arguments": {"a": V}}]', "[TOOL_CALLS]"),
        ("deepseek", f'{CALLS}add<｜tool▁sep｜>{{"a": V}}{CALL}', "```json <think>"),
    ],
)
def test_arguments_may_hold_marks(form, text, value):
    assert parse_reply(text.replace("V", json.dumps(value)), form).calls == (ToolCall("add", {"a": value}),)


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("assistant\n<think>\n", True),
        ("<think>", True),
        ("Assistant: Let me solve this. <think>", True),
        ("assistant\n<think>\nOkay, so", True),
        ("[THINK]", True),
        ("assistant\n<think>\n\n</think>\n\n", False),
        ("Think inside <think> first.\nassistant\n", False),
        ("assistant\n", False),
        ("", False),
    ],
)
def test_a_prompt_that_ends_in_reasoning(start, expected):
    assert ends_in_reasoning(start) is expected


def test_plain_json_is_a_call_if_the_template_has_no_tags():
    assert tool_call_format("{{ messages }}") == tool_call_format(None) == "json"
    assert tool_call_format(TOOLS_TEMPLATE.read_text()) == "hermes"
    assert tool_call_format("{{ '[TOOL_CALLS]' }}") == "mistral"
    assert tool_call_format("{{ '<｜tool▁calls▁begin｜>' }}") == "deepseek"
    reply = parse_reply('{"name": "add", "parameters": {"a": 1}}', "json")
    assert reply.calls == (ToolCall("add", {"a": 1}),)
    assert parse_reply('The object {"name": "add"} is JSON.', "json").calls == ()
    assert parse_reply('{"a": 1}', "json").calls == ()


def test_arguments_may_be_json_text():
    text = json.dumps({"name": "add", "arguments": json.dumps({"a": 1})})
    assert parse_reply(text, "json").calls == (ToolCall("add", {"a": 1}),)


HARMONY = (
    '<|channel|>analysis<|message|>I need to=functions.add {"a": 9}<|end|>'
    "<|start|>assistant<|channel|>commentary<|message|>Adding.<|end|>"
    '<|start|>assistant<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 1}<|call|>'
    '<|start|>assistant to=functions.sub<|channel|>commentary json<|message|>{"b": 2}<|call|>'
)


def test_calls_of_gpt_oss():
    """Forms of a call, and of the reasoning, that the Harmony page shows."""
    reply = parse_reply(HARMONY, "gpt_oss")
    assert reply.content == "Adding."
    assert reply.calls == (ToolCall("add", {"a": 1}), ToolCall("sub", {"b": 2}))
    answer = "<|channel|>final<|message|>It is 3.<|return|>"
    assert parse_reply(answer, "gpt_oss").content == "It is 3."
    assert parse_reply(answer, "gpt_oss").calls == ()
    (broken,) = parse_reply("<|channel|>commentary to=functions.add<|message|>{<|call|>", "gpt_oss").calls
    assert "not JSON" in str(broken.parse_error)
    assert tool_call_format("<|start|>assistant<|channel|>analysis<|message|>") == "gpt_oss"
