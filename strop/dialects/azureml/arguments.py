"""Command line of an AzureML component (`--input value`, `--input=value`), parsed into inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from strop.config.suggest import did_you_mean
from strop.dialects.azureml.component import Component, ComponentInput
from strop.dialects.job import ComponentOutput
from strop.dialects.ledger.key_mapping import UNSET
from strop.dialects.ledger.table import KeyOwnerHint, no_key_owner
from strop.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ComponentArguments:
    """The parsed command line of a component."""

    inputs: tuple[ComponentInput, ...]
    values: Mapping[str, str]
    """Text of each input, by the input's name."""
    outputs: tuple[tuple[ComponentOutput, str], ...]
    """Outputs that are named, each with its folder."""


def parse_arguments(
    component: Component, arguments: Sequence[str], *, key_owner: KeyOwnerHint = no_key_owner
) -> ComponentArguments:
    """Parse a component's command line. AzureML passes an omitted optional input as an empty value.

    Raises ConfigError for an unknown input, an input that is given twice, and a missing required input.
    """
    texts: dict[str, str] = {}
    known = [*(part.name for part in component.accepted), *(part.name for part in component.outputs)]
    for name, text in _split_arguments(arguments):
        if name not in known:
            hint = did_you_mean(name, known) or "."
            owner = key_owner(name, component.name)
            raise ConfigError(
                f"{component.name} has no input --{name}{hint}{owner} Run `strop keys {component.name}` for "
                "the list of inputs."
            )
        if name in texts:
            raise ConfigError(f"--{name} is given twice: {texts[name]!r} and {text!r}.")
        texts[name] = text
    texts = {name: text for name, text in texts.items() if text != ""}
    missing = [f"--{part.name}" for part in component.inputs if _is_missing(part, texts)]
    if missing:
        raise ConfigError(f"{component.name} requires {', '.join(missing)}; write {missing[0]} VALUE.")
    inputs = tuple(part for part in component.accepted if part.name in texts)
    _refuse_contradictions(inputs, texts)
    outputs = tuple((part, texts[part.name]) for part in component.outputs if part.name in texts)
    return ComponentArguments(inputs, texts, outputs)


def _is_missing(part: ComponentInput, texts: Mapping[str, str]) -> bool:
    return part.required and part.row.default is UNSET and part.name not in texts


def _split_arguments(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if not argument.startswith("--") or argument == "--":
            raise ConfigError(
                f"{argument!r} has no input name before it; write inputs as --name value or --name=value."
            )
        name, equals, text = argument[2:].partition("=")
        if not equals:
            text = rest.pop(0) if rest and not rest[0].startswith("--") else ""
        yield name, text


def _refuse_contradictions(inputs: Sequence[ComponentInput], texts: Mapping[str, str]) -> None:
    """Raise ConfigError where two inputs set the same key to different values."""
    by_key: dict[str, ComponentInput] = {}
    for part in inputs:
        other = by_key.setdefault(part.key, part)
        if part is not other and part.read(texts[part.name]) != other.read(texts[other.name]):
            raise ConfigError(
                f"--{other.name}={texts[other.name]} and --{part.name}={texts[part.name]} set the same "
                "option "
                "to different values; write one of them, or the same value for both."
            )
