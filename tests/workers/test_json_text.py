"""Text that is no JSON object, however it is damaged, is a `ValueError` with a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from strop.workers.json_text import parse_json, parse_object, parse_prefix, read_object


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (b"", "Expecting value"),
        (b'{"a": ', "Expecting value"),
        (b"\xff\xfe\xfd", "utf"),
        (b"[" * 100_000, "it nests too deeply"),
        (b'{"a":' * 100_000, "it nests too deeply"),
        (b"9" * 5000, "integer string conversion"),
        (b"[1]", "it is a JSON list, not an object"),
        (b"null", "it is a JSON null, not an object"),
        (b" " * 100 + b"{}", "it is larger than 100 bytes"),
    ],
)
def test_a_fault_is_a_value_error(tmp_path: Path, text: bytes, fault: str) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(text)
    with pytest.raises(ValueError, match=fault):
        read_object(
            path, max_bytes=None if fault.startswith("it nests") else 100 if len(text) < 1000 else 5000
        )


def test_a_prefix_that_nests_too_deeply_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="it nests too deeply"):
        parse_prefix("x" + '{"a":' * 100_000, 1)


def test_values_are_parsed(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text('{"a": [1]}', encoding="utf-8")
    assert parse_json("[1, null]") == [1, None]
    assert parse_prefix('x {"a": [1]} y', 2) == ({"a": [1]}, 12)
    assert parse_object(b'{"a": [1]}') == read_object(path, max_bytes=10) == {"a": [1]}
