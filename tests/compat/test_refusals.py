"""Refused keys and values: the exact message of each, by the tables in the folder `keys`, and that it says what to
write instead."""

from __future__ import annotations

import re

import pytest

from strop.compat.registry import LEDGERS
from strop.errors import ConfigError

from .key_tables import Row, rows

_INSTRUCTIONS = (
    "write leave remove run set sort use pass add name train export convert start merge multiply clip sum"
)
_SAYS = re.compile(rf"\b(?:{'|'.join(_INSTRUCTIONS.split())})\b", re.IGNORECASE)


@rows("refused")
def test_message_of_a_refusal(row: Row) -> None:
    with pytest.raises(ConfigError) as caught:
        row.read()
    assert str(caught.value) == row.expected


@pytest.mark.parametrize("dialect", LEDGERS)
def test_a_refusal_says_what_to_write(dialect: str) -> None:
    refused = {row.key: row.note for row in LEDGERS[dialect].rows if row.disposition == "refused"}
    assert {key: note for key, note in refused.items() if not _SAYS.search(note)} == {}
