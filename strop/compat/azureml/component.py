"""Description of an AzureML component: its typed inputs, its outputs, and the ledger that reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from strop.compat.ledger.key_mapping import KeyMapping
from strop.compat.ledger.table import Ledger
from strop.config.load.job import ComponentOutput
from strop.config.redact import redacted_repr
from strop.errors import ConfigError

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
    """Row under the input's own name, with the seed page's default."""
    key: str
    """Key in the ledger that reads the input: verl's key where the input stands for one, else the input's
    name."""
    required: bool = False
    enum: tuple[str, ...] = ()
    """Accepted texts; empty accepts all."""
    convert: Callable[[str], Any] | None = None
    """Parser for text that encodes another value, such as a list; None parses by `type`."""
    also: tuple[str, ...] = ()
    """Further accepted texts, which the seed page does not list."""

    @property
    def name(self) -> str:
        """Name of the input; AzureML passes it as `--name`."""
        return self.row.key

    @property
    def optional(self) -> bool:
        """Whether the input may be omitted, as the seed page's column says."""
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
    """Inputs in common use that the seed page, and so the component's file, does not have."""

    @property
    def accepted(self) -> tuple[ComponentInput, ...]:
        """All inputs of the command line."""
        return (*self.inputs, *self.further)

    @property
    def ledger(self) -> Ledger:
        """Rows of the inputs in the seed page's order, as `strop keys` prints them."""
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
