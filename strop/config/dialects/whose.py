"""Whose key it is, when it is not this configuration's."""

from __future__ import annotations

from collections.abc import Iterator

from strop.config.dialects import LEDGERS
from strop.config.draft import split
from strop.config.schema.walk import all_keys

RUN_FILE = "strop"
"""What a run file is called where a dialect's name may stand."""


def whose(dotted: str, not_of: str, *, by_last_name: bool = True) -> str:
    """` It is a key of ...`, for a key that other configurations have; nothing where none has.

    `not_of` is the dialect in which it was written. `by_last_name` finds a key that stands elsewhere there.
    """
    owners = list(_owners(dotted, not_of))
    if owners:
        rows = [row for name in owners if name in LEDGERS and (row := LEDGERS[name].find_own(dotted))]
        ours = next((row.ours[0] for row in rows if row.ours), None) if not_of == RUN_FILE else None
        names = ", ".join("Strop's run file" if name == RUN_FILE else name for name in owners)
        return f" It is a key of {names}{f'; here that is {ours}' if ours else ''}."
    return _elsewhere(split(dotted)[-1], not_of) if by_last_name else ""


def _owners(dotted: str, not_of: str) -> Iterator[str]:
    if not_of != RUN_FILE and "." in dotted and dotted in all_keys():
        yield RUN_FILE
    for name, ledger in LEDGERS.items():
        if name != not_of and (ledger.find_own(dotted) or ledger.is_section(dotted)):
            yield name


def _elsewhere(last: str, not_of: str) -> str:
    found = ((n, row.theirs) for n, ledger in LEDGERS.items() if n != not_of for row in ledger.rows)
    near = next((f"{name} has {key}" for name, key in found if split(key)[-1] == last), None)
    return f" In other configurations, {near}." if near else ""
