"""Inputs that are verl's keys under another name: what they mean is said in verl's ledger, once."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from strop.config.dialects.component.inputs import Component, Input, Output, Type
from strop.config.dialects.row import Row, one_of
from strop.config.dialects.theirs import Ledger
from strop.config.dialects.verl import LEDGER as VERL

_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.\w+)+")


def verl(
    name: str,
    type_: Type,
    default: Any,
    key: str,
    *,
    required: bool = False,
    enum: tuple[str, ...] = (),
    convert: Callable[[str], Any] | None = None,
    row: Row | None = None,
    note: str | None = None,
) -> Input:
    """An input that is `key` of verl's, or, with a `row` of its own, takes that key's place."""
    found = row or VERL.find(key)
    assert found is not None, key
    kind = one_of(*enum) if enum else found.kind
    note = found.note if note is None else note
    ours = replace(
        found, theirs=name, default=default, kind=kind, note=note, stated=True, on_page=True, deprecated=""
    )
    return Input(type_, ours, key, required, enum, convert)


def component(
    name: str,
    asset: str,
    inputs: tuple[Input, ...],
    outputs: tuple[Output, ...],
    *,
    unsaid: Mapping[str, Any],
) -> Component:
    """A component whose inputs are verl's keys. `unsaid` are defaults of keys that are no inputs, where
    the component differs from verl; all other keys have verl's."""
    by_key = {given.key: given.row for given in inputs}
    names = {given.key: given.name for given in inputs if given.key != given.name}
    rows = tuple(
        replace(by_key[row.theirs], theirs=row.theirs)
        if row.theirs in by_key
        else replace(row, default=unsaid.get(row.theirs, row.default), stated=False)
        for row in VERL.rows
    )
    others = tuple(row for key, row in by_key.items() if VERL.find(key) is None)
    shown = tuple(
        replace(given, row=replace(given.row, note=rename(given.row.note, names))) for given in inputs
    )
    return Component(
        name, asset, shown, outputs, Ledger(name, rows + others), "trainer.default_local_dir", names
    )


def rename(text: str, names: Mapping[str, str]) -> str:
    """The text with every key called by its input's name."""
    return _DOTTED.sub(lambda found: names.get(found[0], found[0]), text)
