"""Every refusal of a key says what to write instead."""

from __future__ import annotations

import re

import pytest

from strop.dialects.registry import LEDGERS

_INSTRUCTIONS = (
    "write leave remove run set sort use pass add name train export convert start merge multiply clip sum"
)
_SAYS = re.compile(rf"\b(?:{'|'.join(_INSTRUCTIONS.split())})\b", re.IGNORECASE)


@pytest.mark.parametrize("dialect", LEDGERS)
def test_a_refusal_says_what_to_write(dialect: str) -> None:
    refused = {row.key: row.note for row in LEDGERS[dialect].rows if row.disposition == "refused"}
    assert {key: note for key, note in refused.items() if not _SAYS.search(note)} == {}
