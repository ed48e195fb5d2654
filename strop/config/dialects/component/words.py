"""`--input value --input=value` -> what was given, each by its input or output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from strop.config.dialects.component.inputs import Component, Input, Output
from strop.config.dialects.row import UNSET
from strop.config.suggest import did_you_mean
from strop.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Given:
    """A component's line."""

    inputs: tuple[Input, ...]
    texts: Mapping[str, str]
    """By the input's name."""
    outputs: tuple[tuple[Output, str], ...]
    """Each with its folder."""


def given_words(component: Component, words: Sequence[str]) -> Given:
    """Sort out a line. An input without a value, as AzureML passes one that is optional, counts as left out.

    Raises ConfigError for a word that is no input, one given twice, and a required one that is missing.
    """
    texts: dict[str, str] = {}
    known = [*(part.name for part in component.inputs), *(part.name for part in component.outputs)]
    for name, text in _pairs(words):
        if name not in known:
            raise ConfigError(f"{component.name} has no input --{name}{_hint(component, name, known)}")
        if name in texts:
            raise ConfigError(f"--{name} is given twice: {texts[name]!r} and {text!r}.")
        texts[name] = text
    texts = {name: text for name, text in texts.items() if text != ""}
    missing = [f"--{part.name}" for part in component.inputs if _is_missing(part, texts)]
    if missing:
        raise ConfigError(f"{component.name} needs {', '.join(missing)}; write {missing[0]} VALUE.")
    inputs = tuple(part for part in component.inputs if part.name in texts)
    _refuse_contradictions(inputs, texts)
    outputs = tuple((part, texts[part.name]) for part in component.outputs if part.name in texts)
    return Given(inputs, texts, outputs)


def _hint(component: Component, name: str, known: Sequence[str]) -> str:
    from strop.config.dialects.whose import whose  # it knows all dialects, this one too

    near = did_you_mean(name, known) or "."
    return f"{near}{whose(name, component.name)} `strop keys {component.name}` lists all."


def _is_missing(part: Input, texts: Mapping[str, str]) -> bool:
    return part.required and part.row.default is UNSET and part.name not in texts


def _pairs(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--") or word == "--":
            raise ConfigError(f"{word!r} stands alone; inputs are written --name value, or --name=value.")
        name, equals, text = word[2:].partition("=")
        if not equals:
            text = rest.pop(0) if rest and not rest[0].startswith("--") else ""
        yield name, text


def _refuse_contradictions(inputs: Sequence[Input], texts: Mapping[str, str]) -> None:
    by_key: dict[str, Input] = {}
    for part in inputs:
        other = by_key.setdefault(part.key, part)
        if part is not other and part.read(texts[part.name]) != other.read(texts[other.name]):
            raise ConfigError(
                f"--{other.name}={texts[other.name]} and --{part.name}={texts[part.name]} say the same thing "
                "differently; write one of them, or the same value."
            )
