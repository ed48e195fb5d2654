"""Upper bounds on the length of a chat prompt, without rendering or encoding it, where they can be proved.

The template is rendered once per sequence of roles, with contents that cannot be read: any operation whose result
depends on a content's text raises. A rendering that succeeds shows that all contents with these roles are rendered
along the same path, with the same text around them and each content as often.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, NoReturn

from strop.printable import encodable
from strop.types import Message

if TYPE_CHECKING:
    import jinja2
    from transformers import PreTrainedTokenizerBase


_TRUE_TESTS = frozenset({"defined", "iterable", "sequence", "string"})
_FALSE_TESTS = frozenset(
    {"boolean", "false", "float", "integer", "mapping", "none", "number", "true", "undefined"}
)
"""Tests of a value's type only, by their result for text."""
_TEXT_FILTERS = frozenset({"default", "d", "string", "trim"})
"""Filters that return a text as it is, or without white space at its ends."""
_STATEMENTS = frozenset({"Assign", "Break", "Continue", "ExprStmt", "For", "If", "Output", "With"})
"""Statements whose output goes into the prompt only; a macro's, for one, can be read again by the template."""
_NFC_GROWTH = 3
"""Largest factor by which NFC lengthens a text in UTF-8 (Unicode Standard Annex 15, section 12.1)."""


class _ContentRead(BaseException):
    """The template's result depends on the text of a content."""


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise _ContentRead


class _Opaque:
    """A text that can be concatenated, stripped and written, but not read."""

    __slots__ = ("_parts",)

    def __init__(self, parts: tuple[str | int, ...]) -> None:
        """`parts` are constant texts, and the numbers of messages whose contents are written."""
        self._parts = parts

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":
            return str  # templates ask `is string`
        if name in ("strip", "lstrip", "rstrip"):
            return lambda: self  # strips nothing: the bound is one from above
        raise _ContentRead

    def __add__(self, other: Any) -> _Opaque:
        return _Opaque((*parts_of(self), *parts_of(other)))

    def __radd__(self, other: Any) -> _Opaque:
        return _Opaque((*parts_of(other), *parts_of(self)))

    __bool__ = __len__ = __iter__ = __contains__ = __getitem__ = __hash__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __str__ = __repr__ = __format__ = __int__ = __float__ = __index__ = __complex__ = _refuse
    __mod__ = __rmod__ = __mul__ = __rmul__ = _refuse


def parts_of(value: Any) -> tuple[str | int, ...]:
    """The parts of a text; a plain text has one."""
    if type(value) is _Opaque:
        parts: tuple[str | int, ...] = object.__getattribute__(value, "_parts")
        return parts
    if type(value) is not str:
        raise _ContentRead
    return (value,)


@dataclass(frozen=True, slots=True)
class RenderedLength:
    """Largest length of the prompts with one sequence of roles."""

    fixed_bytes: int
    """Bytes of UTF-8 around the contents."""
    fixed_is_ascii: bool
    times: tuple[int, ...]
    """Number of times that each message's content is written, and last the text that starts the answer."""


class TemplateBound:
    """`RenderedLength` of messages with a role and a text each, by their roles."""

    def __init__(self, template: str, variables: Mapping[str, Any]) -> None:
        """`template` is the Jinja text; `variables` are all variables that it gets besides the messages."""
        self._template = _opaque_template(template, self._write)
        self._variables = variables
        self._lengths: dict[tuple[str, ...], RenderedLength | None] = {}
        self._written: list[str | int] = []

    def __call__(self, roles: tuple[str, ...]) -> RenderedLength | None:
        """The largest length; None where there is no proof, or no text around the contents."""
        if self._template is None:
            return None
        if roles not in self._lengths:
            self._lengths[roles] = self._render(self._template, roles)
        return self._lengths[roles]

    def _write(self, value: Any) -> Any:
        """Jinja's `finalize`: called with each value before it is written into the prompt."""
        if type(value) is not _Opaque:
            return value
        self._written += parts_of(value)
        return ""

    def _render(self, template: jinja2.Template, roles: tuple[str, ...]) -> RenderedLength | None:
        self._written = []
        messages = [{"role": role, "content": _Opaque((number,))} for number, role in enumerate(roles)]
        try:
            around = template.render(
                messages=messages, tools=None, documents=None, add_generation_prompt=True, **self._variables
            )
        except (_ContentRead, Exception):  # noqa: BLE001  (the template is the user's code; it is rendered in full then)
            return None
        constants = around + "".join(part for part in self._written if isinstance(part, str))
        if not around or encodable(constants) != constants:
            return None
        times = (*(self._written.count(number) for number in range(len(roles))), 1)
        return RenderedLength(len(constants.encode()), constants.isascii(), times)


def plain_roles(messages: Sequence[Message]) -> tuple[str, ...] | None:
    """The roles of messages that have a role and a text each, and nothing else; None for others."""
    for message in messages:
        if len(message) != 2 or type(message["content"]) is not str:
            return None
    return tuple([message["role"] for message in messages])


def _opaque_template(template: str, write: Callable[[Any], Any]) -> jinja2.Template | None:
    """The template as transformers compiles it, for opaque contents; None for one that could read what it wrote."""
    from jinja2 import nodes
    from transformers.utils import chat_template_utils

    compiled: Any = chat_template_utils._compile_jinja_template
    environment = compiled(template).environment.overlay(finalize=write)
    tree = environment.parse(template)
    statements = {type(node).__name__ for node in tree.find_all(nodes.Stmt)}
    if not statements <= _STATEMENTS or any(loop.recursive for loop in tree.find_all(nodes.For)):
        return None
    environment.filters = {name: _text_only(name, each) for name, each in environment.filters.items()}
    environment.tests = {name: _type_only(name, each) for name, each in environment.tests.items()}
    environment.globals = {**environment.globals, "strftime_now": _refuse}  # its length changes with time
    result: jinja2.Template = environment.from_string(template)
    return result


def _text_only(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that refuses opaque texts, unless it returns them."""

    @wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        opaque = [value for value in (*args, *kwargs.values()) if type(value) is _Opaque]
        if not opaque:
            return function(*args, **kwargs)
        only_first = len(opaque) == 1 and opaque[0] is args[0] and len(args) <= 2 and not kwargs
        if name in _TEXT_FILTERS and only_first:
            return opaque[0]
        raise _ContentRead

    return checked


def _type_only(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A test that refuses opaque texts, unless its result is that of any text."""

    @wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if all(type(value) is not _Opaque for value in (*args, *kwargs.values())):
            return function(*args, **kwargs)
        if name not in _TRUE_TESTS | _FALSE_TESTS or len(args) != 1:
            raise _ContentRead
        return name in _TRUE_TESTS

    return checked


class TokenBound:
    """Bound for byte-level BPE (GPT-2, Llama 3, Qwen, SmolLM): at most one token per byte of UTF-8.

    Byte-level BPE begins with one symbol per byte, and merges symbols; a special token in the text replaces at least
    one byte. Only the normalizer, a prefix space and the tokens that are added around the text can add to that.
    """

    def __init__(self, growth: int, added: int) -> None:
        self._growth = growth
        self._added = added

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, *, adds_special_tokens: bool) -> TokenBound | None:
        """The bound of a tokenizer; None where there is no proof."""
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            return None
        # Parts of the tokenizer, since parsing all of it takes 0.1 to 0.5 s for 49,000 tokens.
        normalizer, pre_tokenizer = (
            None if part is None else json.loads(part.__getstate__())
            for part in (backend.normalizer, backend.pre_tokenizer)
        )
        if normalizer is not None and normalizer.get("type") != "NFC":
            return None
        if type(backend.model).__name__ != "BPE" or not _is_byte_level(pre_tokenizer):
            return None
        # Templates write special tokens themselves; a post-processor adds tokens only where it is asked to.
        added = tokenizer.num_special_tokens_to_add() if adds_special_tokens else 0
        return cls(1 if normalizer is None else _NFC_GROWTH, added)

    def __call__(self, text: str) -> int:
        """A number of tokens that the text does not exceed."""
        if text.isascii():
            return self.of_length(len(text), is_ascii=True)
        return self.of_length(len(text.encode("utf-8", "surrogatepass")), is_ascii=False)

    def of_length(self, num_bytes: int, *, is_ascii: bool) -> int:
        """A number of tokens that no text of at most `num_bytes` bytes of UTF-8 exceeds; NFC keeps ASCII as it is."""
        return num_bytes * (1 if is_ascii else self._growth) + self._added


def _is_byte_level(pre_tokenizer: Mapping[str, Any] | None) -> bool:
    """Whether the text is split into pieces and these are written as bytes, without a prefix space."""
    steps = [] if pre_tokenizer is None else pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    kinds = [step.get("type") for step in steps]
    prefixed = any(step.get("add_prefix_space") for step in steps)
    return (
        "ByteLevel" in kinds and {*kinds} <= {"ByteLevel", "Split", "Digits", "Punctuation"} and not prefixed
    )
