"""The ledger has every key of the page, in its order, with its defaults; and the file beside is the page."""

from __future__ import annotations

from collections import Counter

import pytest

from strop.config.dialects import ledger_of
from strop.config.dialects.row import UNSET
from strop.config.dialects.theirs import Theirs
from strop.config.dialects.verl import LEDGER
from strop.config.draft import Draft
from strop.config.schema.walk import all_keys
from strop.errors import ConfigError

from .verl_page import OTHERS, PAGE, other_copy, other_keys, page_copy, page_keys

ONLY_IN_PROSE = "critic.*"
FIELDS = set(all_keys())


@pytest.mark.skipif(not PAGE.exists(), reason="the page is not beside the repository")
def test_the_copy_is_the_page() -> None:
    assert page_copy() == page_keys(PAGE.read_text())


def test_every_key_of_the_page_in_its_order() -> None:
    rows = [row.theirs for row in LEDGER.rows if row.on_page]
    assert [key for key in rows if key != ONLY_IN_PROSE] == list(page_copy())


def test_the_defaults_are_the_pages() -> None:
    stated = {row.theirs: row.default for row in LEDGER.rows if row.on_page and row.default is not UNSET}
    assert stated == page_copy()
    assert all(row.on_page == row.stated for row in LEDGER.rows)


def test_no_key_has_two_rows() -> None:
    assert [key for key, count in Counter(row.theirs for row in LEDGER.rows).items() if count > 1] == []


def test_every_row_says_what_becomes_of_its_key() -> None:
    for row in LEDGER.rows:
        match row.fate:
            case "mapped":
                assert row.ours, row.theirs
                assert len(row.ours) == 1 or row.read, row.theirs
            case "placement" | "refused":
                assert row.note and row.can, row.theirs
            case "accepted without effect":
                assert row.note and not row.ours, row.theirs


def test_its_fields_are_fields_of_the_run_file() -> None:
    for row in LEDGER.rows:
        for field in row.ours:
            assert ".".join(part for part in field.split(".") if not part.isdigit()) in FIELDS, row.theirs


def test_few_keys_are_without_effect() -> None:
    fates = Counter(row.fate for row in LEDGER.rows if row.on_page)
    assert fates["accepted without effect"] * 20 <= fates.total()


def test_every_default_is_of_its_own_kind() -> None:
    theirs = Theirs(LEDGER, Draft())
    for row in LEDGER.rows:
        if row.default is not UNSET:
            assert row.kind.fits(theirs[row.theirs]), row.theirs


def test_ledgers_are_found_by_name() -> None:
    assert ledger_of("verl") is LEDGER
    with pytest.raises(ConfigError, match="did you mean 'verl'"):
        ledger_of("verll")


@pytest.mark.parametrize("dialect", OTHERS)
def test_the_other_files_have_every_key_in_order_with_its_default(dialect: str) -> None:
    if PAGE.exists():
        assert other_copy(dialect) == other_keys(PAGE.read_text(), dialect)
    rows = [row for row in ledger_of(dialect).rows if row.on_page]
    assert {row.theirs: row.default for row in rows} == other_copy(dialect)
    assert [row.theirs for row in rows] == list(other_copy(dialect))
    assert all(row.fate != "accepted without effect" for row in rows)
