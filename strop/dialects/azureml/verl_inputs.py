"""Component inputs that stand for verl's keys: rows and ledgers derived from verl's ledger."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from strop.dialects.azureml.component import Component, ComponentInput, InputType
from strop.dialects.job import ComponentOutput
from strop.dialects.ledger.key_mapping import KeyMapping
from strop.dialects.ledger.table import Ledger
from strop.dialects.ledger.value_types import one_of
from strop.dialects.verl.ppo_trainer import LEDGER as VERL

_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.\w+)+")


def verl_input(
    name: str,
    input_type: InputType,
    default: Any,
    key: str,
    *,
    required: bool = False,
    enum: tuple[str, ...] = (),
    convert: Callable[[str], Any] | None = None,
    row: KeyMapping | None = None,
    note: str | None = None,
) -> ComponentInput:
    """An input that stands for verl's `key`; `row` replaces verl's row for it."""
    found = row or VERL.find(key)
    assert found is not None, key
    value_type = one_of(*enum) if enum else found.value_type
    note = found.note if note is None else note
    row = replace(
        found,
        key=name,
        default=default,
        value_type=value_type,
        note=note,
        default_stated=True,
        on_page=True,
        deprecated="",
    )
    return ComponentInput(input_type, row, key, required, enum, convert)


def verl_component(
    name: str,
    azureml_name: str,
    inputs: tuple[ComponentInput, ...],
    outputs: tuple[ComponentOutput, ...],
    *,
    default_overrides: Mapping[str, Any],
) -> Component:
    """A component whose inputs stand for verl's keys. Keys that are no inputs have verl's defaults, unless
    `default_overrides` has another default for the component."""
    by_key = {part.key: part.row for part in inputs}
    names = {part.key: part.name for part in inputs if part.key != part.name}
    rows = tuple(
        replace(by_key[row.key], key=row.key)
        if row.key in by_key
        else replace(row, default=default_overrides.get(row.key, row.default), default_stated=False)
        for row in VERL.rows
    )
    others = tuple(row for key, row in by_key.items() if VERL.find(key) is None)
    shown = tuple(
        replace(part, row=replace(part.row, note=rename_keys(part.row.note, names))) for part in inputs
    )
    return Component(
        name, azureml_name, shown, outputs, Ledger(name, rows + others), "trainer.default_local_dir", names
    )


def rename_keys(text: str, names: Mapping[str, str]) -> str:
    """The text with the input's name in place of every verl key."""
    return _DOTTED.sub(lambda found: names.get(found[0], found[0]), text)
