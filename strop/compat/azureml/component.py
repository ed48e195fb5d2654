"""AzureML components: their typed inputs and outputs, the model folders that inputs name, and the command line
(`--input value`, `--input=value`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from strop.compat.ledger.key_mapping import (
    UNSET,
    ForeignValues,
    KeyConverter,
    KeyMapping,
    KeyOwnerHint,
    Ledger,
    no_key_owner,
)
from strop.config.load.loader import ComponentOutput
from strop.config.load.yaml_file import read_yaml
from strop.config.paths import existing_path
from strop.config.redact import redacted_repr
from strop.errors import ConfigError, Fault, FaultKind
from strop.printable import closest

InputType = Literal["string", "boolean", "integer", "number", "uri_file", "uri_folder"]
"""AzureML's input types."""
_BOOLEANS = {"true": True, "false": False}
_DESCRIPTIONS = {"boolean": "true or false", "integer": "an integer", "number": "a number"}


def _boolean(text: str) -> bool:
    return _BOOLEANS[text.strip().lower()]


_PARSERS: Mapping[str, Callable[[str], Any]] = {"boolean": _boolean, "integer": int, "number": float}


@dataclass(frozen=True, slots=True)
class ComponentInput:
    """One input of a component, with the ledger row that describes it."""

    type: InputType
    row: KeyMapping
    """Row under the input's own name, with the documented default."""
    key: str
    """Key in the ledger that reads the input: verl's key where the input stands for one, else the input's
    name."""
    required: bool = False
    enum: tuple[str, ...] = ()
    """Accepted texts; empty accepts all."""
    convert: Callable[[str], Any] | None = None
    """Parser for text that encodes another value, such as a list; None parses by `type`."""
    also: tuple[str, ...] = ()
    """Further accepted texts, which the component's documentation does not list."""

    @property
    def name(self) -> str:
        """Name of the input; AzureML passes it as `--name`."""
        return self.row.key

    @property
    def optional(self) -> bool:
        """Whether the input may be omitted, as the column of its documentation says."""
        return not self.required

    def read(self, text: str) -> Any:
        """Parse the text of the input. Raises ConfigError for text that is not of the input's type."""
        got = f"got {redacted_repr(text, self.name)}."
        if self.enum and text not in (*self.enum, *self.also):
            raise ConfigError(f"--{self.name} must be {' or '.join(self.enum)}, {got}")
        if self.convert is not None:
            return self.convert(text)
        if self.type not in _PARSERS:
            return text
        try:
            return _PARSERS[self.type](text)
        except (ValueError, KeyError):
            raise ConfigError(f"--{self.name} must be {_DESCRIPTIONS[self.type]}, {got}") from None

    def accepts(self, value: Any) -> bool:
        """Whether some text of the input parses to this value."""
        try:
            return bool(self.read(to_argument(value)) == value)
        except ConfigError:
            return False


def to_argument(value: Any) -> str:
    """A value as AzureML passes it; a list is written in brackets."""
    if isinstance(value, list):
        return f"[{','.join(map(str, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class Component:
    """One AzureML component: its inputs, its outputs, and how Strop reads them."""

    name: str
    azureml_name: str
    """Name of the component in AzureML."""
    inputs: tuple[ComponentInput, ...]
    outputs: tuple[ComponentOutput, ...]
    read_ledger: Ledger
    """Ledger that reads the inputs by their keys; it may have further keys that no input sets."""
    run_folder_key: str
    """Key of `read_ledger` that sets the run folder."""
    input_names: Mapping[str, str] = field(default_factory=dict)
    """Input name of each `read_ledger` key that has another name as an input."""
    serving_engine: str = ""
    """Engine of a component without an input for it, where the job asks for GPUs; empty if an input names it."""
    further: tuple[ComponentInput, ...] = ()
    """Inputs in common use that the component's documentation, and so its file, does not have."""

    @property
    def accepted(self) -> tuple[ComponentInput, ...]:
        """All inputs of the command line."""
        return (*self.inputs, *self.further)

    @property
    def ledger(self) -> Ledger:
        """Rows of the inputs in the order of the component's documentation, as `strop keys` prints them."""
        return Ledger(self.name, tuple(part.row for part in self.inputs))


def component_input(
    input_type: InputType,
    row: KeyMapping,
    *,
    required: bool = False,
    enum: tuple[str, ...] = (),
    convert: Callable[[str], Any] | None = None,
    also: tuple[str, ...] = (),
) -> ComponentInput:
    """An input that is read under its own name."""
    return ComponentInput(input_type, row, row.key, required, enum, convert, also)


_MODELS = ("model", "data/model")
"""Folders in which MLflow's transformers flavor and AzureML's registry keep the weights."""
_TOKENIZERS = ("components/tokenizer", "data/tokenizer")


def model_folder_converter(key: str) -> KeyConverter:
    """Converter of a model input: a Hugging Face folder, an MLflow model, or an output of the import
    component with either inside."""

    def read(foreign: ForeignValues) -> Mapping[str, Any]:
        path = foreign[key]
        if path is None:
            return {}
        try:
            model, tokenizer = find_model(Path(str(path)))
        except ConfigError as error:
            raise foreign.error_for(key, str(error)) from None
        settings = {"model.path": str(model)}
        return settings | ({"model.tokenizer": str(tokenizer)} if tokenizer else {})

    return KeyConverter(read, lambda run: {key: run.model.path})


def find_model(folder: Path) -> tuple[Path, Path | None]:
    """The folder of the weights, and the tokenizer's folder if it is a separate one. A missing folder is
    returned unchanged, and the later check of the run reports it. Raises ConfigError for a folder with no
    model or several."""
    if existing_path(folder) is None or not folder.is_dir() or (folder / "config.json").is_file():
        return folder, None
    if (folder / "MLmodel").is_file():
        return _mlflow(folder)
    inside = [
        child
        for child in sorted(folder.iterdir())
        if child.is_dir() and any((child / name).is_file() for name in ("config.json", "MLmodel"))
    ]
    if len(inside) != 1:
        found = ", ".join(child.name for child in inside) or "none"
        raise ConfigError(
            f"{folder} is not a model: it needs a config.json (Hugging Face) or an MLmodel file (MLflow), or "
            f"exactly one subfolder with either; subfolders with either: {found}."
        )
    return find_model(inside[0])


def _mlflow(folder: Path) -> tuple[Path, Path | None]:
    flavor = read_yaml(folder / "MLmodel").get(("flavors", "transformers"))
    binary = flavor.get("model_binary") if isinstance(flavor, dict) else None
    models = [name for name in (binary, *_MODELS) if isinstance(name, str)]
    model = next((folder / name for name in models if (folder / name / "config.json").is_file()), None)
    if model is None:
        raise ConfigError(
            f"{folder} is an MLflow model without transformers weights: there is no config.json in "
            f"{' or '.join(dict.fromkeys(models))}."
        )
    tokenizer = next((folder / name for name in _TOKENIZERS if (folder / name).is_dir()), None)
    return model, tokenizer


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
