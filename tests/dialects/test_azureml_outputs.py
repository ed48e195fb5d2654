"""Tests of hard links and copies in a component's outputs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from strop.dialects.azureml.outputs import link_or_copy


def test_file_is_hard_linked(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    link_or_copy(str(tmp_path / "a"), str(tmp_path / "b"))
    assert (tmp_path / "a").samefile(tmp_path / "b")


def test_file_is_copied_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: str, target: str) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", refuse)
    (tmp_path / "a").write_text("x")
    link_or_copy(str(tmp_path / "a"), str(tmp_path / "b"))
    assert (tmp_path / "b").read_text() == "x" and not (tmp_path / "a").samefile(tmp_path / "b")
