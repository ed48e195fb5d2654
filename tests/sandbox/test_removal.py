"""Removal of folders: very deep ones, links, and folders that remain."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from strop.sandbox import local as removal
from strop.sandbox.local import FolderRemover, remove_folder


def test_deep_folders_files_and_links(tmp_path, monkeypatch):
    outside = tmp_path / "outside"
    (outside / "kept").mkdir(parents=True)
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for _ in range(1500):
        Path("d").mkdir()
        Path("e").mkdir(0)
        os.chdir("d")
        Path("file").touch()
    Path("link").symlink_to(outside)
    remove_folder(str(folder))
    assert [path.name for path in tmp_path.iterdir()] == ["outside"] and (outside / "kept").exists()


def test_a_folder_that_remains_is_named_once_and_removed_later(tmp_path, monkeypatch, caplog):
    first, second, third = folders = [tmp_path / name for name in "abc"]
    for folder in folders:
        (folder / "inner").mkdir(parents=True)
    remover, remove = FolderRemover(), removal.remove_folder

    def refuse(path, *options):
        if path == str(first):
            raise OSError("busy")
        remove(path, *options)

    monkeypatch.setattr(removal, "remove_folder", refuse)
    monkeypatch.setattr(removal, "_PAUSE_SECONDS", 0.0)
    with caplog.at_level(logging.WARNING):
        remover.remove(str(first))
        remover.remove(str(second))
    assert first.exists() and not second.exists()
    assert [record.getMessage() for record in caplog.records] == [
        f"The folder {first} of a program is not removed yet (busy); this is tried again after later programs."
    ]
    monkeypatch.setattr(removal, "remove_folder", remove)
    remover.remove(str(third))
    assert not first.exists() and not third.exists()


def test_the_time_of_a_removal_is_limited(tmp_path):
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    with pytest.raises(TimeoutError):
        remove_folder(str(tmp_path / "folder"), max_seconds=-1.0)
