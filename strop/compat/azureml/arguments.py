"""Command line of an AzureML component (`--input value`, `--input=value`), parsed into inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from strop.compat.azureml.component import Component, ComponentInput
from strop.compat.ledger.key_mapping import UNSET
from strop.compat.ledger.table import KeyOwnerHint, no_key_owner
from strop.config.load.job import ComponentOutput
from strop.config.suggest import closest
from strop.errors import ConfigError, Fault, FaultKind


@dataclass(frozen=True, slots=True)
class ComponentArguments:
    """The parsed command line of a component."""

    inputs: tuple[ComponentInput, ...]
    values: Mapping[str, str]
    """Text of each input, by the input's name."""
    outputs: tuple[tuple[ComponentOutput, str], ...]
    """Outputs that are named, each with its folder."""
    faults: tuple[Fault, ...] = ()
    """Unknown, repeated and missing inputs."""
    doubtful: frozenset[str] = frozenset()
    """Inputs that these faults are about."""


def parse_arguments(
    component: Component, arguments: Sequence[str], *, key_owner: KeyOwnerHint = no_key_owner
) -> ComponentArguments:
    """Parse a component's command line. AzureML passes an omitted optional input as an empty value.

    The result has a fault for an unknown input, an input that is given twice, and a missing required input.
    Raises ConfigError for a text that follows no input's name.
    """
    texts: dict[str, str] = {}
    faults: list[Fault] = []
    doubtful: set[str] = set()
    known = [*(part.name for part in component.accepted), *(part.name for part in component.outputs)]
    for name, text in _split_arguments(arguments):
        if name not in known:
            near = closest(name, known)
            hint = f"; did you mean {near!r}?" if near else "."
            owner = key_owner(name, component.name)
            message = (
                f"{component.name} has no input --{name}{hint}{owner} Run `strop keys {component.name}` for "
                "the list of inputs."
            )
            faults.append(Fault(FaultKind.UNKNOWN_KEY, message))
            doubtful |= {near} if near else set()
            continue
        if name in texts:
            message = f"--{name} is given twice: {texts[name]!r} and {text!r}."
            faults.append(Fault(FaultKind.UNSUPPORTED, message))
            doubtful.add(name)
        texts[name] = text
    texts = {name: text for name, text in texts.items() if text != ""}
    missing = [
        f"--{part.name}"
        for part in component.inputs
        if _is_missing(part, texts) and part.name not in doubtful
    ]
    if missing:
        message = f"{component.name} requires {', '.join(missing)}; write {missing[0]} VALUE."
        faults.append(Fault(FaultKind.UNSUPPORTED, message))
        doubtful |= {name.removeprefix("--") for name in missing}
    inputs = tuple(part for part in component.accepted if part.name in texts)
    for part, message in _contradictions(inputs, texts):
        faults.append(Fault(FaultKind.UNSUPPORTED, message))
        doubtful.add(part.name)
    outputs = tuple((part, texts[part.name]) for part in component.outputs if part.name in texts)
    return ComponentArguments(inputs, texts, outputs, tuple(faults), frozenset(doubtful))


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


def _contradictions(
    inputs: Sequence[ComponentInput], texts: Mapping[str, str]
) -> Iterator[tuple[ComponentInput, str]]:
    """Inputs that set the same key as another one to a different value, each with a message."""
    by_key: dict[str, ComponentInput] = {}
    for part in inputs:
        other = by_key.setdefault(part.key, part)
        if part is other:
            continue
        try:
            differ = part.read(texts[part.name]) != other.read(texts[other.name])
        except ConfigError:
            continue  # The value that is not of its input's type is a fault of its own.
        if differ:
            yield (
                part,
                f"--{other.name}={texts[other.name]} and --{part.name}={texts[part.name]} set the same "
                "option to different values; write one of them, or the same value for both.",
            )
