"""Each ledger equals its seed page: keys and their order, defaults, types, and what becomes of every key."""

from __future__ import annotations

from collections import Counter

import pytest

from strop.compat.azureml.component import Component
from strop.compat.azureml.reader import COMPONENTS
from strop.compat.ledger.key_mapping import UNSET, Ledger
from strop.compat.ledger.reader import ForeignConfig
from strop.compat.registry import LEDGERS, ledger_of
from strop.config.load.config_tree import ConfigTree, Source, split_key
from strop.config.schema.run import all_keys
from strop.errors import ConfigError

from .pages import PAGES, SEEDS, page_copy, read_page

FIELDS = set(all_keys())
LEDGER = pytest.mark.parametrize("ledger", [LEDGERS[name] for name in PAGES], ids=PAGES)
COMPONENT = pytest.mark.parametrize("component", COMPONENTS.values(), ids=COMPONENTS)


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.skipif(not SEEDS.exists(), reason="the pages are not in ../shared")
def test_copy_equals_page(name: str) -> None:
    assert page_copy(name) == read_page(name)


@LEDGER
def test_no_key_has_two_rows(ledger: Ledger) -> None:
    assert [key for key, count in Counter(row.key for row in ledger.rows).items() if count > 1] == []


@LEDGER
def test_every_row_explains_its_disposition(ledger: Ledger) -> None:
    for row in ledger.rows:
        match row.disposition:
            case "mapped":
                assert row.fields or (row.note and not ledger.dialect.startswith("verl")), row.key
                assert len(row.fields) < 2 or row.read, row.key
            case "placement" | "refused":
                assert row.note and row.supported, row.key
            case "accepted without effect":
                assert row.note and not row.fields, row.key


@LEDGER
def test_fields_exist_in_the_run_file(ledger: Ledger) -> None:
    named = {field for row in ledger.rows for field in row.fields}
    if ledger.dialect == "verl-eval":
        return  # It has fields of its own.
    assert {".".join(part for part in field.split(".") if not part.isdigit()) for field in named} <= FIELDS


@LEDGER
def test_few_keys_have_no_effect(ledger: Ledger) -> None:
    dispositions = Counter(row.disposition for row in ledger.rows if row.on_page)
    allowed = 0 if ledger.dialect in ("verl-eval", "verl-sft") else dispositions.total() / 20
    assert dispositions["accepted without effect"] <= allowed


@pytest.mark.parametrize("name", ["verl", "trinity", *COMPONENTS])
def test_every_default_has_the_key_type(name: str) -> None:
    ledger, tree = LEDGERS[name], ConfigTree()
    if name == "trinity":
        tree.set(split_key("model.model_path"), "m", Source("python", "test"))
    if name in COMPONENTS:
        ledger = COMPONENTS[name].read_ledger
        for given in COMPONENTS[name].inputs:
            if given.required and given.row.default is UNSET:
                tree.set(split_key(given.key), "x", Source("override", given.name))
    foreign = ForeignConfig(ledger, tree)
    for row in ledger.rows:
        if row.default is not UNSET and not row.is_repeated:
            assert row.value_type.accepts(foreign[row.key]), row.key


@pytest.mark.parametrize("dialect", ["verl", "verl-eval", "verl-sft"])
def test_verls_keys_and_defaults_are_those_of_the_page(dialect: str) -> None:
    rows = [row for row in LEDGERS[dialect].rows if row.on_page and row.key != "critic.*"]  # only in prose
    assert sorted(row.key for row in rows) == sorted(page_copy(dialect))
    assert {row.key: row.default for row in rows if row.default is not UNSET} == page_copy(dialect)
    assert all(row.on_page == row.default_stated for row in LEDGERS[dialect].rows)


def test_trinitys_rows_have_the_names_of_the_page() -> None:
    on_page = [row for row in LEDGERS["trinity"].rows if row.on_page]
    inside = {name for row in on_page for name in split_key(row.key)}
    assert [name for name in page_copy("trinity") if name not in inside] == []
    known = {*page_copy("trinity"), "*"}
    assert [row.key for row in on_page if split_key(row.key)[-1] not in known] == []


@COMPONENT
def test_inputs_of_a_component_in_the_order_of_the_page(component: Component) -> None:
    page = page_copy(component.name)
    assert ledger_of(component.azureml_name) is ledger_of(component.name)
    assert [row.key for row in ledger_of(component.name).rows] == list(page["inputs"])
    assert {output.name: output.type for output in component.outputs} == page["outputs"]


@COMPONENT
def test_type_default_optional_and_enum_equal_the_page(component: Component) -> None:
    page = page_copy(component.name)["inputs"]
    for given in component.inputs:
        said = page[given.name]
        found = (given.type, given.optional, list(given.enum))
        assert found == (said["type"], said["optional"], said["enum"]), given.name
        text = said["default"]
        default = UNSET if text is None else given.read(text) if text else ""
        assert given.row.default == default, given.name
        assert type(given.row.default) is type(default), given.name


def test_ledgers_are_found_by_name() -> None:
    assert ledger_of("verl") is LEDGERS["verl"]
    with pytest.raises(ConfigError, match="did you mean 'verl'"):
        ledger_of("verll")
