"""The keys of each tool: the fields that they decide, and their notices, by the tables in the folder `keys`."""

from __future__ import annotations

import pytest

from .key_tables import Row, is_same, rows, value_of


@rows("mapped")
def test_keys_decide_fields(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STROP_TEST_COUNT", "6")
    loaded = row.read()
    found = {field: value_of(loaded, field) for field in row.expected}
    differ = {
        field: found[field] for field, value in row.expected.items() if not is_same(found[field], value)
    }
    assert differ == {}, row.expected


@rows("noted")
def test_keys_have_notices(row: Row) -> None:
    assert list(row.read().notes) == row.expected
