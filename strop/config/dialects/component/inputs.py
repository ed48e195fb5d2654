"""What an AzureML component is given: inputs with types, as text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from strop.config.dialects.row import Row
from strop.config.dialects.theirs import Ledger
from strop.config.redact import brief
from strop.errors import ConfigError

Type = Literal["string", "boolean", "integer", "number", "uri_file", "uri_folder"]
"""AzureML's names of what an input holds."""
Holds = Literal["run", "model", "mlflow"]
"""`run` is the run's own folder, with its checkpoints; at the end `model` gets the trained model, and
`mlflow` that as an MLflow model with the checkpoints."""

_BOOLEANS = {"true": True, "false": False}
_WORDS = {"boolean": "true or false", "integer": "a whole number", "number": "a number"}


def _boolean(text: str) -> bool:
    return _BOOLEANS[text.strip().lower()]


_READERS: Mapping[str, Callable[[str], Any]] = {"boolean": _boolean, "integer": int, "number": float}


@dataclass(frozen=True, slots=True)
class Input:
    """One input of a component, and the row that says what becomes of it."""

    type: Type
    row: Row
    """Under the input's own name, with its page's default."""
    key: str
    """What the ledger that reads it calls it: verl's key where the input is one, else its own name."""
    required: bool = False
    enum: tuple[str, ...] = ()
    convert: Callable[[str], Any] | None = None
    """For text that stands for something else, such as a list."""

    @property
    def name(self) -> str:
        """As AzureML passes it, `--name`."""
        return self.row.theirs

    @property
    def optional(self) -> bool:
        """Whether it may be left out, as the page's column says."""
        return not self.required

    def read(self, text: str) -> Any:
        """The value that the text stands for. Raises ConfigError where it stands for none of its type."""
        if self.enum and text not in self.enum:
            raise ConfigError(f"--{self.name} is {' or '.join(self.enum)}, got {brief(text, self.name)}.")
        if self.convert is not None:
            return self.convert(text)
        if self.type not in _READERS:
            return text
        try:
            return _READERS[self.type](text)
        except (ValueError, KeyError):
            raise ConfigError(
                f"--{self.name} is {_WORDS[self.type]}, got {brief(text, self.name)}."
            ) from None

    def takes(self, value: Any) -> bool:
        """Whether there is a text that stands for the value."""
        try:
            return bool(self.read(text_of(value)) == value)
        except ConfigError:
            return False


def text_of(value: Any) -> str:
    """A value as AzureML passes it; a list in brackets."""
    if isinstance(value, list):
        return f"[{','.join(map(str, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True, slots=True)
class Output:
    """One folder that a component fills."""

    name: str
    type: Literal["uri_folder", "mlflow_model"]
    holds: Holds


@dataclass(frozen=True)
class Component:
    """One AzureML component: what it is given, what it fills, and how that is read."""

    name: str
    asset: str
    """What AzureML calls it."""
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    reading: Ledger
    """By the keys of the inputs; it may hold others, which nobody can write."""
    folder_key: str
    """Which key of `reading` is the run's folder."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Keys of `reading` that are inputs under another name."""

    @property
    def ledger(self) -> Ledger:
        """The page's rows in its order, as `strop keys` prints them."""
        return Ledger(self.name, tuple(given.row for given in self.inputs))


def own(
    type_: Type,
    row: Row,
    *,
    required: bool = False,
    enum: tuple[str, ...] = (),
    convert: Callable[[str], Any] | None = None,
) -> Input:
    """An input with a row of its own."""
    return Input(type_, row, row.theirs, required, enum, convert)
