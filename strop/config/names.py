"""Names that become files or folders: one path component of a fixed alphabet."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, WithJsonSchema

MAX_NAME_LENGTH = 100
NAME_PATTERN = "^[A-Za-z0-9_]([A-Za-z0-9 ._+=,@-]*[A-Za-z0-9_+=,@-])?$"
NAME_RULE = (
    f"write at most {MAX_NAME_LENGTH} characters: letters (a-z), digits, spaces and . _ - + = , @, with a letter, "
    "a digit or _ at the start, and no space or dot at the end"
)
_NAME = re.compile(NAME_PATTERN)
_SHOWN_CHARACTERS = 40


def check_file_name(name: object) -> str:
    """Return a name that can be a file or folder name. Raises ValueError for any other value."""
    if not isinstance(name, str):
        raise ValueError(f"expected a name, got {name!r}; {NAME_RULE}")
    if len(name) <= MAX_NAME_LENGTH and _NAME.fullmatch(name):
        return name
    shown = repr(name[:_SHOWN_CHARACTERS]) + ("..." if len(name) > _SHOWN_CHARACTERS else "")
    raise ValueError(f"{shown} ({len(name)} characters) cannot be the name of a file or folder; {NAME_RULE}")


FileName = Annotated[
    str,
    AfterValidator(check_file_name),
    WithJsonSchema({"type": "string", "pattern": NAME_PATTERN, "maxLength": MAX_NAME_LENGTH}),
]
"""Name that becomes a file or folder."""
