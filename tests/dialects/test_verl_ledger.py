"""Tests that verl's ledgers equal the seed pages (keys, order, defaults), and that the copies of the pages
are current."""

from __future__ import annotations

from collections import Counter

import pytest

from strop.config.load.config_tree import ConfigTree
from strop.config.schema.walk import all_keys
from strop.dialects.ledger.foreign import ForeignConfig
from strop.dialects.ledger.key_mapping import UNSET
from strop.dialects.registry import ledger_of
from strop.dialects.verl.ppo_trainer import LEDGER
from strop.errors import ConfigError

from .verl_page import OTHERS, PAGE, other_copy, other_keys, page_copy, page_keys

ONLY_IN_PROSE = "critic.*"
FIELDS = set(all_keys())


@pytest.mark.skipif(not PAGE.exists(), reason="the page is not in ../shared")
def test_copy_equals_page() -> None:
    assert page_copy() == page_keys(PAGE.read_text())


def test_keys_of_the_page_in_order() -> None:
    rows = [row.key for row in LEDGER.rows if row.on_page]
    assert [key for key in rows if key != ONLY_IN_PROSE] == list(page_copy())


def test_defaults_equal_the_page() -> None:
    stated = {row.key: row.default for row in LEDGER.rows if row.on_page and row.default is not UNSET}
    assert stated == page_copy()
    assert all(row.on_page == row.default_stated for row in LEDGER.rows)


def test_no_key_has_two_rows() -> None:
    assert [key for key, count in Counter(row.key for row in LEDGER.rows).items() if count > 1] == []


def test_every_row_explains_its_disposition() -> None:
    for row in LEDGER.rows:
        match row.disposition:
            case "mapped":
                assert row.fields, row.key
                assert len(row.fields) == 1 or row.read, row.key
            case "placement" | "refused":
                assert row.note and row.supported, row.key
            case "accepted without effect":
                assert row.note and not row.fields, row.key


def test_fields_exist_in_the_run_file() -> None:
    for row in LEDGER.rows:
        for field in row.fields:
            assert ".".join(part for part in field.split(".") if not part.isdigit()) in FIELDS, row.key


def test_few_keys_have_no_effect() -> None:
    dispositions = Counter(row.disposition for row in LEDGER.rows if row.on_page)
    assert dispositions["accepted without effect"] * 20 <= dispositions.total()


def test_every_default_has_the_key_type() -> None:
    foreign = ForeignConfig(LEDGER, ConfigTree())
    for row in LEDGER.rows:
        if row.default is not UNSET:
            assert row.value_type.accepts(foreign[row.key]), row.key


def test_ledgers_are_found_by_name() -> None:
    assert ledger_of("verl") is LEDGER
    with pytest.raises(ConfigError, match="did you mean 'verl'"):
        ledger_of("verll")


@pytest.mark.parametrize("dialect", OTHERS)
def test_the_other_files_have_every_key_in_order_with_its_default(dialect: str) -> None:
    if PAGE.exists():
        assert other_copy(dialect) == other_keys(PAGE.read_text(), dialect)
    rows = [row for row in ledger_of(dialect).rows if row.on_page]
    assert {row.key: row.default for row in rows} == other_copy(dialect)
    assert [row.key for row in rows] == list(other_copy(dialect))
    assert all(row.disposition != "accepted without effect" for row in rows)
