"""Each component's ledger is its page: every input in its order, with type, default, enum and optional."""

from __future__ import annotations

from collections import Counter

import pytest

from strop.config.dialects import ledger_of
from strop.config.dialects.component import COMPONENTS, Component
from strop.config.dialects.row import UNSET
from strop.config.dialects.theirs import Theirs
from strop.config.draft import Draft, Source, split
from strop.config.schema.walk import all_keys

from .component_page import PAGES, page_copy, page_tables

FIELDS = set(all_keys())
EACH = pytest.mark.parametrize("component", COMPONENTS.values(), ids=COMPONENTS)


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.skipif(not all(page.exists() for page in PAGES.values()), reason="the pages are not here")
def test_the_copy_is_the_page(name: str) -> None:
    assert page_copy(name) == page_tables(PAGES[name].read_text())


@EACH
def test_every_input_of_the_page_in_its_order(component: Component) -> None:
    page = page_copy(component.name)
    assert ledger_of(component.asset) is ledger_of(component.name)
    assert [row.theirs for row in ledger_of(component.name).rows] == list(page["inputs"])
    assert {output.name: output.type for output in component.outputs} == page["outputs"]


@EACH
def test_type_default_optional_and_enum_are_the_pages(component: Component) -> None:
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
def test_every_row_says_what_becomes_of_its_input(component: Component) -> None:
    for row in component.ledger.rows:
        match row.fate:
            case "mapped":
                assert row.ours or row.note, row.theirs
                assert len(row.ours) < 2 or row.read, row.theirs
            case "placement" | "refused":
                assert row.note and row.can, row.theirs
            case "accepted without effect":
                assert row.note and not row.ours, row.theirs
        for field in row.ours:
            assert ".".join(part for part in field.split(".") if not part.isdigit()) in FIELDS, row.theirs


@EACH
def test_few_inputs_are_without_effect(component: Component) -> None:
    fates = Counter(row.fate for row in component.ledger.rows)
    assert fates["accepted without effect"] * 20 <= fates.total()


@EACH
def test_every_default_is_of_its_own_kind(component: Component) -> None:
    draft = Draft()
    for given in component.inputs:
        if given.required and given.row.default is UNSET:
            draft.set(split(given.key), "x", Source("override", given.name))
    theirs = Theirs(component.reading, draft)
    for given in component.inputs:
        if given.row.default is not UNSET:
            assert given.row.kind.fits(theirs[given.key]), given.name
