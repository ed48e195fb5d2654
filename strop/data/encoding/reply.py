"""A reply's parts: the text of its tokens, its reasoning, its tool calls, and the reply that a client receives.

Special tokens that belong to an answer are text, those that end a turn are not.

A tokenizer may hold the tags of an answer, such as <think>, <answer> and <tool_call>, as special tokens. Rewards,
parsers of tool calls, tables and pages read them, so `skip_special_tokens`, with which other tools decode, is not used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from strop.data.encoding.chat_template import PromptEncoder
from strop.errors import DataError
from strop.types import BoolArray, IntArray, Message
from strop.workers.json_text import parse_json, parse_prefix

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


REASONING_MARKS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("◁think▷", "◁/think▷"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
)
"""Opening and closing mark: DeepSeek-R1, Qwen3 and most other models; Magistral; Seed-OSS; Kimi-VL; Command A."""

ReasoningParser = Literal["none", "deepseek_r1", "qwen3"]
"""`deepseek_r1`: everything before </think>, whose opening tag may be in the prompt; without </think> the whole reply.
`qwen3`: the text between <think> and </think>, whose opening tag may be in the prompt; a reply without tags has no
reasoning. `none`: reasoning stays in the content."""

_CLOSING = dict(REASONING_MARKS)
OPENING_MARK = "|".join(re.escape(mark) for mark in _CLOSING)
"""Regular expression of the opening marks."""
_BEGINNING = re.compile(rf"\s*({OPENING_MARK})")
_ANY_CLOSING = re.compile("|".join(re.escape(mark) for mark in _CLOSING.values()))
_LAST_OPENING = re.compile(rf"(?:{OPENING_MARK})(?!.*(?:{OPENING_MARK}))", re.DOTALL)
_TEXT = "strop-text-7be320"
"""Placeholder of the contents in a rendering, to find what the template writes around them."""
_USER: Message = {"role": "user", "content": _TEXT}
_ASSISTANT: Message = {"role": "assistant", "content": _TEXT}
ToolCallFormat = Literal["hermes", "json", "llama3_json", "qwen3_coder", "mistral", "deepseek", "gpt_oss"]
"""`hermes`: JSON inside <tool_call> tags, the format of Hermes, Qwen2.5 and Qwen3; `llama3_json` or `json`: only
JSON, the format of Llama 3; `qwen3_coder`: <function=name> and <parameter=name> inside <tool_call> tags, the format
of Qwen3-Coder and Qwen3.5; `mistral`: [TOOL_CALLS] before a list of JSON objects, or before each name with [ARGS]
before its arguments; `deepseek`: the tokens of DeepSeek-V3 and V3.1 around each name and its JSON; `gpt_oss`: messages
to functions.name in the Harmony format of gpt-oss, with its special tokens."""
_FUNCTION = re.compile(r"\s*<function=([^>\s]+)>(.*?)(?:</function>\s*|$)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^<>\s]+)>\n?(.*?)\n?(?:</parameter>|(?=<parameter=)|$)", re.DOTALL)
_FUNCTION_END = re.compile(r"</function>\s*</tool_call>")
_HARMONY = re.compile(r"<\|(start|channel|constrain|message|call|end|return)\|>")
"""A special token of the Harmony format (cookbook.openai.com/articles/openai-harmony)."""
_RECIPIENT = re.compile(r"to=functions\.(\S+)")
_MISTRAL_CALL = re.compile(r"([^\s\[{]+)\s*+(?:\[CALL_ID\][^\[{]*+)?(?:\[ARGS\])?\s*+(\{.*)", re.DOTALL)
_MISTRAL_NAME = re.compile(r"[^\s\[{]+\s*(?:\[CALL_ID\][^\[]*)?(?:\[ARGS\]\s*|(?=\{))")
_MISTRAL_LIST = re.compile(r'\s*\[\s*\{(?=.*"name"\s*:)(?=.*"arguments"\s*:)', re.DOTALL)
_DEEPSEEK_CALL = re.compile(r"<｜tool▁call▁begin｜>(.*?)(?:<｜tool▁call▁end｜>|$)", re.DOTALL)
_DEEPSEEK_V3 = re.compile(r"function<｜tool▁sep｜>([^\n]+)\n```json\n(.*?)\n?```\s*", re.DOTALL)
_DEEPSEEK_V31 = re.compile(r"([^<\n]+)<｜tool▁sep｜>(.*)", re.DOTALL)
_NAMED = re.compile(r'"name"\s*:\s*(?:"([^"]*)")?')
_ARGUMENTS = re.compile(r'"(?:arguments|parameters)"\s*:')
_QUOTES = "\"'\u201c\u201d\u2018\u2019\u00ab\u00bb"
_LONGEST_QUOTE = 200


def first_content(text: str, *, is_open: bool) -> int:
    """Position after the reasoning with which a reply begins; the end of the text where it is not closed.

    `is_open` says that the prompt opens it. A closing mark without its opening mark closes reasoning, too.
    """
    position = 0
    if (found := _ANY_CLOSING.search(text)) is not None:
        opening = next(mark for mark, closing in REASONING_MARKS if closing == found[0])
        if is_open or opening not in text[: found.start()]:
            position = found.end()
    elif is_open:
        return len(text)
    while (mark := _BEGINNING.match(text, position)) is not None:
        position = reasoning_end(text, mark.start(1), mark[1]) or len(text)
    return position


def reasoning_end(text: str, start: int, mark: str) -> int | None:
    """Position after the reasoning that a mark opens at `start`; None for a mention of the mark.

    Reasoning that is not closed extends to the end of the text. Its mark stands at the beginning of a line, or the text
    ends with it; in the middle of a sentence it is a mention.
    """
    inside = start + len(mark)
    end = text.find(_CLOSING[mark], inside)
    if end >= 0:
        return end + len(_CLOSING[mark])
    line = text[text.rfind("\n", 0, start) + 1 : start]
    return len(text) if not line.strip() or not text[inside:].strip() else None


def ends_in_reasoning(reply_start: str) -> bool:
    """Whether the text with which a prompt begins a reply leaves reasoning open."""
    found = _LAST_OPENING.search(reply_start)
    if found is None or _CLOSING[found[0]] in reply_start[found.end() :]:
        return False
    return reasoning_end(reply_start, found.start(), found[0]) is not None


def split_reasoning(text: str, parser: ReasoningParser, *, is_open: bool = False) -> tuple[str | None, str]:
    """Reasoning and content of a reply. A reply that ends within its reasoning has no content.

    `is_open` says that the prompt opens the reasoning.
    """
    if parser == "none":
        return None, text
    opening, tag, opened = text.partition("<think>")
    has_tag = bool(tag) and not opening.strip()
    inside = opened if has_tag else text
    reasoning, end, content = inside.partition("</think>")
    if parser == "qwen3" and not (is_open or has_tag or end):
        return None, text
    return reasoning.strip("\n") or None, content.lstrip("\n") if end else ""


class ReplyDecoder:
    """Decodes the replies of one model."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, prompts: PromptEncoder, eos_ids: Iterable[int] = ()
    ) -> None:
        """`prompts` has the chat template of the replies; `eos_ids` are the end tokens of the model's files."""
        self._tokenizer = tokenizer
        self._eos_ids = frozenset(eos_ids)
        self._prompts = prompts
        if prompts.template is None and tokenizer.chat_template:
            # Without a template in the prompts, a model that was trained with one still ends its turns by its mark.
            self._prompts = PromptEncoder(tokenizer, "tokenizer")

    def decode(self, ids: IntArray, sampled: BoolArray | None = None) -> str:
        """The text of the tokens of a reply.

        Without its end tokens: those of the model, the mark with which the chat template ends a turn, the
        tokenizer's own end, beginning and padding tokens. All others are text, also a token that begins another turn.

        `sampled` [L] marks the replies in the tokens after a prompt; what the template writes between them comes
        without the special tokens of its headers.
        """
        ends, tokens = self._ends, ids.tolist()
        if sampled is None:
            # np.isin takes 50 us for a short reply.
            kept = [token for token in tokens if token not in ends]
        else:
            dropped, pairs = ends | self._headers, zip(tokens, sampled.tolist(), strict=True)
            kept = [token for token, own in pairs if token not in (ends if own else dropped)]
        return str(self._tokenizer.decode(kept, skip_special_tokens=False))

    def decode_content(self, ids: IntArray) -> str:
        """The text of a reply as the content of a message that the template renders again.

        Without the special tokens of its headers, which would begin another turn there, and which gpt-oss's template
        refuses.
        """
        return self.decode(ids, np.zeros(len(ids), bool))

    def reply_start(self, prompt_ids: IntArray) -> str:
        """The text with which a prompt begins the reply after it: what follows its last end token or header."""
        marks = np.flatnonzero(np.isin(prompt_ids, [*self._ends, *self._headers]))
        return self.decode(prompt_ids[marks[-1] + 1 :] if len(marks) else prompt_ids)

    @cached_property
    def _ends(self) -> frozenset[int]:
        tokenizer = self._tokenizer
        own = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id)
        _, found, after = self._render(_USER, _ASSISTANT).rpartition(_TEXT)
        mark = self._added_tokens(after) if found else []
        return self._eos_ids.union((token for token in own if token is not None), mark)

    @cached_property
    def _headers(self) -> frozenset[int]:
        """Special tokens that the template writes before and after messages, without the marks of reasoning."""
        special = {token for token, added in self._tokenizer.added_tokens_decoder.items() if added.special}
        written = self._added_tokens(self._render(_USER, _ASSISTANT, _USER))
        reasoning = {self._tokenizer.convert_tokens_to_ids(mark) for pair in REASONING_MARKS for mark in pair}
        return frozenset(special & {*written} - reasoning)

    def _added_tokens(self, text: str) -> list[int]:
        """Tokens of a text that the tokenizer holds as added tokens."""
        ids: list[int] = self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        added = self._tokenizer.added_tokens_decoder
        return [token for token in ids if token in added]

    def _render(self, *messages: Message) -> str:
        """Rendered messages; empty without a template, and for one that takes no such conversation, whose ends are
        those of the model."""
        if self._prompts.template is None:
            return ""
        try:
            return self._prompts.render("The chat template", messages, (), prompt=False)
        except DataError:
            return ""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call of a reply."""

    name: str
    arguments: Mapping[str, Any]
    parse_error: str | None = None
    """Why the call could not be parsed, as a message for the model; None for a valid call."""


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """A reply, split into its content and its tool calls."""

    content: str
    calls: tuple[ToolCall, ...]


@dataclass(frozen=True, slots=True)
class _Found:
    """The calls after one mark of a format."""

    end: int
    """Position after them in the reply."""
    calls: Sequence[ToolCall]
    has_form: bool = True
    """Whether what follows the mark begins as a call does; otherwise the mark may be a mention."""


@dataclass(frozen=True, slots=True)
class _Marked:
    """A format whose calls follow a mark."""

    mark: str
    read: Callable[[str, int, Sequence[Mapping[str, Any]]], _Found]
    """Reads the calls of a reply after a mark that ends at a position; gets the descriptions of the tools."""


def tool_call_format(template: str | None) -> ToolCallFormat:
    """The format in which a chat template writes tool calls."""
    text = template or ""
    if "<|channel|>" in text:
        return "gpt_oss"
    if "<tool_call>" in text:
        return "qwen3_coder" if "<function=" in text else "hermes"
    if "[TOOL_CALLS]" in text:
        return "mistral"
    return "deepseek" if "<｜tool▁calls▁begin｜>" in text else "json"


def parse_reply(
    text: str, form: ToolCallFormat, tools: Sequence[Mapping[str, Any]] = (), *, in_reasoning: bool = False
) -> ParsedReply:
    """Split a reply with its special tokens into content and tool calls. Never raises: a call that cannot be parsed
    has a `parse_error`.

    The reasoning stays in the content, except that of `gpt_oss`. `tools` are the descriptions of the tools, from which
    `qwen3_coder` takes the types of arguments. `in_reasoning` says that the prompt opens the reply's reasoning.
    """
    if form == "gpt_oss":
        return _parse_harmony(text)
    marked = _FORMATS[form]
    event = re.compile(rf"(?P<code>`+)|(?P<reasoning>{OPENING_MARK})|{re.escape(marked.mark)}")
    position = kept = prose = first_content(text, is_open=in_reasoning)
    if (found := _without_mark(text, position, form, tools)) is not None:
        return ParsedReply(text[:position].strip(), tuple(found))
    content = text[:position]
    calls: list[ToolCall] = []
    while (mark := event.search(text, position)) is not None:
        if mark["code"]:
            position = _code_end(text, mark.end(), mark["code"])
        elif mark["reasoning"]:
            end = reasoning_end(text, mark.start(), mark[0])
            position, prose = (mark.end(), prose) if end is None else (end, end)
        else:
            call = marked.read(text, mark.end(), tools)
            if _is_mention(text, prose, mark.start(), call):
                position = mark.end()
                continue
            calls += call.calls
            content += text[kept : mark.start()]
            position = kept = prose = call.end
    return ParsedReply((content + text[kept:]).strip(), tuple(calls)) if calls else ParsedReply(text, ())


def _code_end(text: str, start: int, fence: str) -> int:
    """Position after the code that a run of backticks opens before `start`: a block, or a span within a line; `start`
    where nothing closes it."""
    if len(fence) < 3:
        line = text.find("\n", start)
        close = text.find("`", start, len(text) if line < 0 else line)
        return close + len(fence) if close > start and text.startswith(fence, close) else start
    close = text.find(fence, start)
    shorter = text.find("```", start) if close < 0 else -1
    return max(close + len(fence) if close >= 0 else 0, shorter + 3 if shorter >= 0 else 0, start)


def _is_mention(text: str, prose: int, start: int, call: _Found) -> bool:
    """Whether a mark at `start`, with what was read after it, mentions a call in a sentence or in quotation marks.

    `prose` is the position after the last call or reasoning.
    """
    if not call.calls:
        return True
    before = text[max(prose, text.rfind("\n", 0, start) + 1) : start]
    after = text[call.end :].partition("\n")[0]
    if before[-1:] in _QUOTES and after[:1] in _QUOTES and before and after:
        return True
    if not before.strip() or all(each.parse_error is None for each in call.calls):
        return False
    return not call.has_form or bool(after.strip())


def _without_mark(
    text: str, start: int, form: ToolCallFormat, tools: Sequence[Mapping[str, Any]]
) -> list[ToolCall] | None:
    """Calls that are the whole content, without a mark; None if there are none."""
    content = text[start:].strip()
    if form == "mistral" and _MISTRAL_LIST.match(content):
        return _read_mistral(content)
    if form in ("json", "llama3_json") and content.startswith("{") and (named := _NAMED.search(content)):
        known = {tool.get("function", tool).get("name") for tool in tools}
        if (
            _ARGUMENTS.search(content) or named[1] in known
        ):  # an object that is an answer may have a name, too
            calls, end = _read_objects(content)
            return [*calls, _read(content[end:])] if content[end:].strip() else calls
    return None


def _after_hermes(text: str, start: int, tools: Sequence[Mapping[str, Any]]) -> _Found:
    inside, end = _tagged(text, start, _json_end(text, start))
    return _Found(end, [_read(inside)], inside.lstrip()[:1] in ("{", "["))


def _after_qwen3_coder(text: str, start: int, tools: Sequence[Mapping[str, Any]]) -> _Found:
    has_form = text[start:].lstrip().startswith("<function=")
    function_end = _FUNCTION_END.search(text, start) if has_form else None
    following = text.find("<tool_call>", start)
    if function_end is not None and (following < 0 or function_end.start() < following):
        inside, end = text[start : function_end.end() - len("</tool_call>")], function_end.end()
    else:
        inside, end = _tagged(text, start, start)
    return _Found(end, [_read_tagged(inside, tools)], has_form)


def _tagged(text: str, start: int, search_from: int) -> tuple[str, int]:
    """The text inside a tag, and the position after its closing tag, which may be missing."""
    close, following = text.find("</tool_call>", search_from), text.find("<tool_call>", search_from)
    if close >= 0 and (following < 0 or close < following):
        return text[start:close], close + len("</tool_call>")
    end = len(text) if following < 0 else following
    return text[start:end], end


def _after_mistral(text: str, start: int, tools: Sequence[Mapping[str, Any]]) -> _Found:
    first = start + len(text[start:]) - len(text[start:].lstrip())
    name = _MISTRAL_NAME.match(text, first)
    value = first if name is None else name.end()
    end = _json_end(text, value)
    if end == value:
        following = text.find("[TOOL_CALLS]", start)
        end = len(text) if following < 0 else following
    has_form = name is not None or text.startswith("[", first)
    return _Found(end, _read_mistral(text[start:end].strip()), has_form)


def _after_deepseek(text: str, start: int, tools: Sequence[Mapping[str, Any]]) -> _Found:
    inside, mark, _ = text[start:].partition("<｜tool▁calls▁end｜>")
    found = _DEEPSEEK_CALL.findall(inside)
    has_form = inside.lstrip().startswith("<｜tool▁call▁begin｜>")
    return _Found(start + len(inside) + len(mark), [*map(_read_deepseek, found)], has_form)


def _after_llama3(text: str, start: int, tools: Sequence[Mapping[str, Any]]) -> _Found:
    """The token before code stands before calls, too."""
    inside = text[start:].lstrip()
    if not inside.startswith("{") or _NAMED.search(inside) is None:
        return _Found(start, ())
    calls, end = _read_objects(inside)
    return _Found(len(text) - len(inside) + end, calls)


_FORMATS: Mapping[ToolCallFormat, _Marked] = {
    "hermes": _Marked("<tool_call>", _after_hermes),
    "qwen3_coder": _Marked("<tool_call>", _after_qwen3_coder),
    "mistral": _Marked("[TOOL_CALLS]", _after_mistral),
    "deepseek": _Marked("<｜tool▁calls▁begin｜>", _after_deepseek),
    "llama3_json": _Marked("<|python_tag|>", _after_llama3),
    "json": _Marked("<|python_tag|>", _after_llama3),
}


def _json_end(text: str, start: int) -> int:
    """Position after a JSON value, whose texts may hold a mark; `start` if there is none."""
    first = start + len(text[start:]) - len(text[start:].lstrip())
    try:
        return parse_prefix(text, first)[1]
    except ValueError:
        return start


def _parse_harmony(text: str) -> ParsedReply:
    """The calls and the content of a reply of gpt-oss; its channel `analysis`, the reasoning, is neither."""
    content, calls = [], []
    for header, channel, message in _harmony_messages(text):
        recipient = _RECIPIENT.search(f"{header} {channel}")
        if recipient is not None:
            calls.append(_with_arguments(recipient[1], message))
        elif not channel.startswith("analysis"):
            content.append(message)
    return ParsedReply("\n".join(content) if content or calls else text, tuple(calls))


def _harmony_messages(text: str) -> Iterator[tuple[str, str, str]]:
    """Role with recipient, channel with recipient, and content of each message."""
    first, *pieces = _HARMONY.split(text)
    header, channel, content = first.rpartition("<")[2], "", None
    for token, after in zip(pieces[::2], pieces[1::2], strict=True):
        if content is not None and token not in ("call", "end", "return", "start"):
            content += f"<|{token}|>{after}"
            continue
        if content is not None:
            yield header, channel, content
        if token == "message":
            content = after
        elif token == "channel":
            channel = after.rpartition("<")[2]
        elif token != "constrain":
            header, channel, content = after.rpartition("<")[2], "", None
    if content is not None:
        yield header, channel, content.removesuffix("\n")


def _read_objects(text: str) -> tuple[list[ToolCall], int]:
    """JSON objects, separated by semicolons, and the position after the last."""
    calls: list[ToolCall] = []
    start = 0
    while True:
        try:
            value, end = parse_prefix(text, start)
        except ValueError:
            return [*calls, _read(text[start:])], len(text)
        calls.append(_to_call(value, text[start:end]))
        rest = text[end:].lstrip()
        if not rest.startswith(";") or not rest[1:].strip():
            return calls, end
        start = len(text) - len(rest[1:].lstrip())


def _read_mistral(text: str) -> list[ToolCall]:
    if text.startswith("["):
        try:
            return [_to_call(value, text) for value in parse_json(text)]
        except ValueError as error:
            return [_not_json(text, error)]
    found = _MISTRAL_CALL.fullmatch(text)
    if found is None:
        return [ToolCall("", {}, f"a call must be name[ARGS]{{...}}, not {_quoted(text)}")]
    return [_with_arguments(*found.groups())]


def _read_deepseek(text: str) -> ToolCall:
    found = _DEEPSEEK_V3.fullmatch(text) or _DEEPSEEK_V31.fullmatch(text)
    if found is None:
        return ToolCall("", {}, f"a call must have a name and JSON arguments, not {_quoted(text)}")
    return _with_arguments(*found.groups())


def _read(text: str) -> ToolCall:
    try:
        return _to_call(parse_json(text), text)
    except ValueError as error:
        return _not_json(text, error)


def _not_json(text: str, error: Exception) -> ToolCall:
    return ToolCall("", {}, f"this is not JSON ({error}): {_quoted(text)}")


def _to_call(value: Any, text: str) -> ToolCall:
    name = value.get("name") if isinstance(value, dict) else None
    if not isinstance(name, str):
        return ToolCall("", {}, f'a call must be {{"name": ..., "arguments": {{...}}}}, not {_quoted(text)}')
    return _with_arguments(name, value.get("arguments", value.get("parameters", {})))


def _with_arguments(name: str, arguments: Any) -> ToolCall:
    """The call of a tool with arguments as an object, or as its JSON text."""
    if isinstance(arguments, str):
        try:
            arguments = parse_json(arguments)
        except ValueError:
            return ToolCall(name, {}, f"its arguments are not JSON: {_quoted(arguments)}")
    if not isinstance(arguments, dict):
        return ToolCall(name, {}, f"its arguments are not an object: {_quoted(json.dumps(arguments))}")
    return ToolCall(name, arguments)


def _read_tagged(text: str, tools: Sequence[Mapping[str, Any]]) -> ToolCall:
    found = _FUNCTION.fullmatch(text)
    if found is None:
        return ToolCall("", {}, f"a call must be <function=name>...</function>, not {_quoted(text)}")
    name, inside = found.groups()
    types = _parameter_types(name, tools)
    return ToolCall(name, {key: _typed(value, types.get(key)) for key, value in _PARAMETER.findall(inside)})


def _parameter_types(name: str, tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """JSON type of each parameter of a tool; empty for an unknown tool."""
    for tool in tools:
        function = tool.get("function", tool)
        if function.get("name") == name:
            properties = (function.get("parameters") or {}).get("properties") or {}
            return {key: value.get("type") for key, value in properties.items()}
    return {}


def _typed(text: str, json_type: Any) -> Any:
    """The value of a parameter: the text itself for text and unknown types, otherwise JSON where it is valid."""
    if json_type in (None, "string"):
        return text
    try:
        return parse_json(text)
    except ValueError:
        return {"true": True, "false": False, "none": None}.get(text.strip().lower(), text)


def _quoted(text: str) -> str:
    text = text.strip()
    return text if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]}..."


@dataclass(frozen=True, slots=True)
class ChatReply:
    """A reply, split into its parts."""

    reasoning: str | None
    """Reasoning before the content; None if the parser found none."""
    content: str
    calls: tuple[ToolCall, ...]


@dataclass(frozen=True, slots=True)
class ChatReplyParser:
    """The parsers of `rollout.endpoint`."""

    tool_calls: Literal["auto"] | ToolCallFormat = "auto"
    """Format of tool calls; `auto` is that of the chat template."""
    reasoning: ReasoningParser = "none"

    def parse(
        self, text: str, tools: Sequence[Any], template: str | None, *, in_reasoning: bool = False
    ) -> ChatReply:
        """Parse a reply. Without tools, or if a call cannot be parsed, calls stay in the content.

        `in_reasoning` says that the prompt opens the reply's reasoning.
        """
        reasoning, content = split_reasoning(text, self.reasoning, is_open=in_reasoning)
        if tools:
            form = tool_call_format(template) if self.tool_calls == "auto" else self.tool_calls
            is_open = in_reasoning and self.reasoning == "none"
            reply = parse_reply(content, form, tools, in_reasoning=is_open)
            if all(call.parse_error is None for call in reply.calls):
                return ChatReply(reasoning, reply.content, reply.calls)
        return ChatReply(reasoning, content, ())
