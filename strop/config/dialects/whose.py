"""Whose key it is, when it is not this configuration's."""

from __future__ import annotations

from strop.config.dialects import LEDGERS
from strop.config.schema.walk import all_keys


def whose(dotted: str, not_of: str) -> str:
    """` It is a key of ...`, for a key that other configurations have; nothing where none has.

    `not_of` is the dialect in which it was written, or `strop` for a run file.
    """
    field = ".".join(part for part in dotted.split(".") if not part.isdigit())
    of_run_files = not_of != "strop" and "." in field and field in set(all_keys())
    owners = [name for name, ledger in LEDGERS.items() if name != not_of and ledger.find_own(dotted)]
    names = ["Strop's run file"] * of_run_files + owners
    if not names:
        return ""
    rows = [row for name in owners if (row := LEDGERS[name].find_own(dotted))]
    ours = next((row.ours[0] for row in rows if row.ours), None) if not_of == "strop" else None
    return f" It is a key of {', '.join(names)}{f'; here that is {ours}' if ours else ''}."
