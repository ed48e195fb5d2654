"""Overrides in Hydra's grammar (`a.b=1`, `+a.b=1`, `++a.b=1`, `~a.b`), parsed by Hydra's parser."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING

from strop.config.load.config_tree import ConfigTree, KeyPath, Source, split_key
from strop.config.redact import redact_override
from strop.errors import ConfigError, Fault, FaultKind

if TYPE_CHECKING:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import Override

_MAX_CHARACTERS = 20_000
_MAX_DEPTH = 30
_MAX_SHOWN = 200
"""Maximum number of characters of an override in a message."""
_HOME = re.compile(r"(?<![^\[{,:\s])~[\w.-]*/[^\[\]{},:\s]*")
"""A path in the home folder, as a value or as an item of a list or a mapping."""
IsKnown = Callable[[KeyPath], bool]
"""Returns whether the schema has a key, so that it has a default even if it is not written."""


def parse_overrides(texts: Sequence[str], *, groups: bool = False) -> list[Override]:
    """Parse overrides. Raises ConfigError for syntax errors, for a sweep over several values, and, unless
    `groups` is true, for a config group or a package."""
    faults: list[Fault] = []
    overrides = parse_valid_overrides(texts, faults, groups=groups)
    if faults:
        raise ConfigError(*faults)
    return overrides


def parse_valid_overrides(
    texts: Sequence[str], faults: list[Fault], *, groups: bool = False
) -> list[Override]:
    """Parse overrides; what `parse_overrides` raises is appended to `faults`, and the override left out."""
    overrides = []
    for index, text in enumerate(texts):
        try:
            if _is_word(text):
                raise ConfigError(_stray_word(texts, index))
            overrides.append(_parse(text, groups=groups))
        except ConfigError as error:
            faults += error.faults
    return overrides


def _is_word(text: str) -> bool:
    return "=" not in text and not text.startswith("~")


def _stray_word(texts: Sequence[str], index: int) -> str:
    """The fault of a word without '=', with the quotes that are missing if it follows an override."""
    shown = (
        f"override {texts[index][:_MAX_SHOWN]!r}: there is no '=' in it. An override is written key=value."
    )
    first = next((n for n in range(index, -1, -1) if not _is_word(texts[n])), None)
    if first is None or texts[first].startswith("~"):
        return shown
    last = next((n for n in range(index, len(texts)) if not _is_word(texts[n])), len(texts))
    whole = redact_override(" ".join(texts[first:last]))[:_MAX_SHOWN]
    return f"{shown} If it belongs to the value before it, quote the whole: {shlex.quote(whole)}."


def _parse(text: str, *, groups: bool) -> Override:
    from hydra.errors import HydraException

    shown = f"override {redact_override(text)[:_MAX_SHOWN]!r}"
    if len(text) > _MAX_CHARACTERS or _depth(text) > _MAX_DEPTH:
        raise ConfigError(
            f"{shown}: too long or too deeply nested; the limits are {_MAX_CHARACTERS:,} characters and "
            f"{_MAX_DEPTH} brackets."
        )
    try:
        override = _parser().parse_override(_with_quoted_homes(text))
    except (HydraException, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"{shown}: cannot be parsed: {reason}. An override is written key=value; a value that contains "
            "spaces, '=', ',', '~' or quotes needs its own quotes: \"key='a, b'\"."
        ) from None
    if not groups and (override.package is not None or "/" in override.key_or_group):
        raise ConfigError(
            f"{shown}: config groups ('/') and packages ('@') are not supported; write a dotted key."
        )
    if override.is_sweep_override():
        raise ConfigError(
            f"{shown}: a sweep over several values is not supported; write one value, or a list in brackets."
        )
    return replace(override, input_line=text)


def _with_quoted_homes(text: str) -> str:
    """Quote the values of an override that begin with `~/` or `~user/`, for which Hydra's grammar needs quotes."""
    key, equals, value = text.partition("=")
    is_quoted = "'" in value or '"' in value
    return text if is_quoted else key + equals + _HOME.sub(r"'\g<0>'", value)


@cache
def _parser() -> OverridesParser:
    # Hydra's parser takes a tenth of a second of CPU to import.
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return OverridesParser.create()


def _depth(text: str) -> int:
    """Return the largest number of brackets that are open at one place."""
    steps = (1 if character in "[{(" else -(character in "]})") for character in text)
    return max(accumulate(steps), default=0)


def override_source(override: Override) -> Source:
    """The source of the values that an override sets: its text, with secrets redacted."""
    return Source("override", redact_override(override.input_line or "")[:_MAX_SHOWN])


def apply_override(
    tree: ConfigTree, override: Override, known: IsKnown, suggest: Callable[[str], str]
) -> None:
    """Apply one override to the tree. `suggest` returns "did you mean ...?" for an unknown key.

    Raises ConfigError where Hydra does: `a=` for a key that does not exist, `+a=` for a key that is
    already written, `~a` for a key that is not written.
    """
    source = override_source(override)
    text = source.location
    dotted = override.key_or_group
    keys = split_key(dotted)
    if override.is_delete():
        _delete(tree, keys, override, source)
        return
    if override.is_add() and not override.is_force_add() and tree.has(keys):
        where = tree.source(keys)
        raise ConfigError(
            f"{source}: {dotted} is already written ({where}), and + only adds keys; write {text[1:]}."
        )
    adds = override.is_add() or override.is_force_add()
    if not adds and not tree.has(keys) and not known(keys):
        raise ConfigError(
            Fault(
                FaultKind.UNKNOWN_KEY,
                f"{source}: there is no key {dotted}{suggest(dotted) or '; to add a new one, write +' + text}",
            )
        )
    tree.merge(keys, override.value(), source)


def _delete(tree: ConfigTree, keys: KeyPath, override: Override, source: Source) -> None:
    dotted = ".".join(keys)
    if not tree.has(keys):
        raise ConfigError(f"{source}: {dotted} is not written, so it cannot be removed.")
    expected = override.value()
    if expected is not None and tree.get(keys) != expected:
        raise ConfigError(
            f"{source}: {dotted} is {tree.get(keys)!r}, not {expected!r}, so it is not removed."
        )
    tree.delete(keys)
