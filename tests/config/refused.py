"""Tables of refused configurations: in each row changes, ` => `, and parts of the message that tells them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from strop.errors import ConfigError


def rows(table: str) -> list[Any]:
    """Parameters of the rows of a table: the list of changes, which ` & ` separates, and the message.

    A row is a line, and the indented lines after it.
    """
    lines = [line.split(" => ") for line in table.replace("\n    ", " ").strip().splitlines()]
    return [pytest.param(changes.split(" & "), message, id=changes[:60]) for changes, message in lines]


def has_parts(message: str, expected: str) -> bool:
    """Whether a message has the parts of the expected one, which ` ... ` separates, in their order."""
    return re.search(".*".join(map(re.escape, expected.split(" ... "))), message, re.DOTALL) is not None


def assert_refused(load: Callable[[], object], expected: str) -> str:
    """Assert that loading is refused with one printable paragraph that has the parts; returns the message."""
    with pytest.raises(ConfigError) as caught:
        load()
    message = str(caught.value)
    assert has_parts(message, expected), message
    assert message == message.strip() and message.replace("\n", "").isprintable()
    assert "\n\n" not in message and "Traceback" not in message
    return message
