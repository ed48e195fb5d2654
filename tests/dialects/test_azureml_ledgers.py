"""Tests that each component's ledger equals its seed page: order, type, default, enum and optional of every
input."""

from __future__ import annotations

from collections import Counter

import pytest

from strop.config.load.config_tree import ConfigTree, Source, split_key
from strop.config.schema.walk import all_keys
from strop.dialects.azureml.component import Component
from strop.dialects.azureml.components import COMPONENTS
from strop.dialects.ledger.foreign import ForeignConfig
from strop.dialects.ledger.key_mapping import UNSET
from strop.dialects.registry import ledger_of

from .azureml_page import PAGES, page_copy, page_tables

FIELDS = set(all_keys())
EACH = pytest.mark.parametrize("component", COMPONENTS.values(), ids=COMPONENTS)


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.skipif(not all(page.exists() for page in PAGES.values()), reason="the pages are not here")
def test_copy_equals_page(name: str) -> None:
    assert page_copy(name) == page_tables(PAGES[name].read_text())


@EACH
def test_inputs_of_the_page_in_order(component: Component) -> None:
    page = page_copy(component.name)
    assert ledger_of(component.azureml_name) is ledger_of(component.name)
    assert [row.key for row in ledger_of(component.name).rows] == list(page["inputs"])
    assert {output.name: output.type for output in component.outputs} == page["outputs"]


@EACH
def test_type_default_optional_and_enum_equal_the_page(component: Component) -> None:
    page = page_copy(component.name)["inputs"]
    for given in component.inputs:
        said = page[given.name]
        assert (given.type, given.optional, list(given.enum)) == (
            said["type"],
            said["optional"],
            said["enum"],
        ), given.name
        text = said["default"]
        default = UNSET if text is None else given.read(text) if text else ""
        assert given.row.default == default, given.name
        assert type(given.row.default) is type(default), given.name


@EACH
def test_every_row_explains_its_disposition(component: Component) -> None:
    for row in component.ledger.rows:
        match row.disposition:
            case "mapped":
                assert row.fields or row.note, row.key
                assert len(row.fields) < 2 or row.read, row.key
            case "placement" | "refused":
                assert row.note and row.supported, row.key
            case "accepted without effect":
                assert row.note and not row.fields, row.key
        for field in row.fields:
            assert ".".join(part for part in field.split(".") if not part.isdigit()) in FIELDS, row.key


@EACH
def test_few_inputs_have_no_effect(component: Component) -> None:
    dispositions = Counter(row.disposition for row in component.ledger.rows)
    assert dispositions["accepted without effect"] * 20 <= dispositions.total()


@EACH
def test_every_default_has_the_key_type(component: Component) -> None:
    tree = ConfigTree()
    for given in component.inputs:
        if given.required and given.row.default is UNSET:
            tree.set(split_key(given.key), "x", Source("override", given.name))
    foreign = ForeignConfig(component.read_ledger, tree)
    for given in component.inputs:
        if given.row.default is not UNSET:
            assert given.row.value_type.accepts(foreign[given.key]), given.name
