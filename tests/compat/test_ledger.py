"""Tests of what all readers share: interpolations resolved as OmegaConf does, and the defaults of a ledger."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from omegaconf import OmegaConf

from strop.compat.ledger.key_mapping import ForeignValues, Ledger, mapped, unless, written_by
from strop.compat.ledger.reader import ForeignConfig, apply_converters
from strop.compat.ledger.writer import config_tree_from_values
from strop.compat.registry import LEDGERS
from strop.config.load.config_tree import UnresolvedError, resolve_interpolations

_VALUES: dict[str, Any] = {
    "number": 3,
    "share": 1e-6,
    "yes": True,
    "none": None,
    "text": "a b",
    "items": [1, {"name": "${text}"}, "${number}"],
    "section": {"inner": {"here": "${number}"}, "0": "zero"},
    "chain": "${section.inner.here}",
}


@pytest.mark.parametrize(
    "text",
    [
        *(
            "${number}",
            "${share}",
            "${yes}",
            "${none}",
            "${text}",
            "${chain}",
            "${section.0}",
            "${items.1.name}",
        ),
        *("${items}", "${section}", "${section.inner}", "${items.2}", "${items.002}", "${items[1].name}"),
        *(
            "a/${text}/${number}",
            "${yes}${none}${share}",
            "${chain}:",
            "{${number}}",
            "é\n${text}",
            "50 ${items}",
        ),
        *(
            "${oc.env:WORD}",
            "${oc.env:WORD}/x",
            "${oc.env:NONE,7}",
            "${oc.env:NONE,null}",
            "${oc.env:REFERENCE}",
        ),
        *("${oc.env:NONE,a b}-${oc.env:WORD}", "${oc.env:WORD}/${text}", "${oc.env:NONE,${number}}"),
        *(
            "\\${number}",
            "\\\\${number}",
            "$",
            "$${number}",
            "a\\b",
            "\\",
            "${ number }",
            "${oc.decode:'[1, 2]'}",
        ),
        *("${oc.select:nowhere,5}", "${oc.select:text}", "${.number}", "${section.${oc.env:KEY}.here}"),
    ],
)
@pytest.mark.parametrize("inside", [False, True])
def test_interpolations_give_what_omegaconf_gives(
    text: str, inside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"WORD": "12", "REFERENCE": "${number}", "KEY": "inner"}.items():
        monkeypatch.setenv(name, value)
    values = _VALUES | ({"outer": {"number": 4, "value": text}} if inside else {"value": text})
    resolved = resolve_interpolations(values, ".".join)
    expected = OmegaConf.to_container(OmegaConf.create(values), resolve=True, throw_on_missing=True)
    assert repr(resolved) == repr(expected)
    assert values["items"][2] == "${number}"


@pytest.mark.parametrize(
    "values, keys",
    [
        ({"a": "${b}"}, "a"),
        ({"a": {"b": "${c.d}/x"}, "c": {"d": "${nowhere}"}}, "a.b"),
        ({"a": "${b}", "b": "???"}, "a"),
        ({"a": 1, "b": ["x", {"c": "???"}]}, "b.1.c"),
        ({"a": "${oc.env:NONE}"}, "a"),
        ({"a": "${b.c}", "b": None}, "a"),
        ({"a": "${b.3}", "b": [1]}, "a"),
        ({"a": "x${", "b": "${oc.env:NONE}"}, "a"),
    ],
)
def test_value_that_cannot_be_resolved_is_named(values: dict[str, Any], keys: str) -> None:
    with pytest.raises(UnresolvedError) as caught:
        resolve_interpolations(values, ".".join)
    assert ".".join(caught.value.keys) == keys


@pytest.mark.parametrize("dialect", LEDGERS)
def test_defaults_of_a_ledger_are_a_copy(dialect: str) -> None:
    changed = LEDGERS[dialect].defaults()
    before = str(changed)
    for section in [*changed.values(), changed]:
        if isinstance(section, dict | list):
            section.clear()
    assert str(LEDGERS[dialect].defaults()) == before


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, {}),
        ({"steps": 5}, {}),
        ({"on": True}, {"trainer.duration": "3 steps"}),
        ({"on": True, "steps": 5}, {"trainer.duration": "5 steps"}),
        ({"on": True, "kind": "other"}, {}),
    ],
)
def test_keys_without_effect_decide_nothing(values: dict[str, Any], expected: dict[str, Any]) -> None:
    """A converter is not called where its switch is off, nor where all of its keys are inactive."""

    @written_by(lambda run: {}, off={"on": False})
    def read(foreign: ForeignValues) -> dict[str, Any]:
        return {"trainer.duration": f"{foreign['steps']} steps"}

    row = partial(mapped, read=read, inactive=unless("kind", "own"))
    rows = (mapped("kind", "own"), row("on", False, "trainer.duration"), row("steps", 3, "trainer.duration"))
    tree = apply_converters(ForeignConfig(Ledger("tool", rows), config_tree_from_values(values)))
    assert {key: tree.get(tuple(key.split("."))) for key in expected} == expected
    assert bool(tree.values) is bool(expected)
