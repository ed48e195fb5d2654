"""Atomic file writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from strop.workers.atomic_write import atomic_path, atomic_write


def test_a_file_is_replaced_and_no_temporary_file_is_left(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for content in ("{}\n", "größer\n"):
        atomic_write(path, content)
        assert path.read_text(encoding="utf-8") == content
    assert list(tmp_path.iterdir()) == [path]


def test_permissions_hold_although_an_older_temporary_file_had_others(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    temporary = tmp_path / ".secret.tmp"
    temporary.write_text("interrupted")
    atomic_write(path, "token", mode=0o600)
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_old_content_stays_after_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    with pytest.raises(OSError, match="full"), atomic_path(path) as temporary:
        temporary.write_text("ne")
        raise OSError("the disk is full")
    assert path.read_text() == "old"
