"""The cache of datasets where several processes write the same entry at once, and where files of it are damaged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from strop.data.sources import cache
from strop.data.sources.cache import find_entry, new_entry


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STROP_CACHE", str(tmp_path))
    return tmp_path


def written(text: str) -> Path:
    """Folder of the entry `key` after a process has written it with a text."""
    with new_entry("key") as new:
        (new.folder / "rows").write_text(text)
    return new.entry


def test_the_entry_of_another_process_that_is_being_read_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes its place right before this process does, whatever this one has seen before."""
    rename, others = Path.rename, []

    def late(self: Path, target: Path) -> Path:
        if not others:
            others.append("begun")
            others.append(written("theirs").stat().st_ino)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", late)
    entry = written("ours")
    assert (entry.stat().st_ino, (entry / "rows").read_text()) == (others[1], "theirs")
    assert [path.name for path in entry.parent.iterdir()] == ["key"]


def test_an_entry_whose_deletion_was_interrupted_is_written_again(folder: Path) -> None:
    (folder / "key" / "rest").mkdir(parents=True)
    assert find_entry("key") is None
    assert sorted(path.name for path in written("ours").iterdir()) == ["entry.json", "facts.json", "rows"]


def test_nothing_is_removed_before_the_rename(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process may have completed the entry after this one has found none."""
    removed: list[Path] = []
    monkeypatch.setattr(cache.shutil, "rmtree", lambda path, **_: removed.append(path))
    written("ours")
    assert removed == []


@pytest.mark.parametrize("name", ["entry.json", "facts.json", "rows"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-1],
        lambda content: bytes(len(content)),
        lambda content: b"0" + content[1:],
        None,
    ],
    ids=["cut", "zeros", "a byte", "deleted"],
)
def test_an_entry_with_a_damaged_file_is_written_again(
    name: str, damage: Callable[[bytes], bytes] | None
) -> None:
    file = written("ours") / name
    valid = file.read_bytes()
    file.unlink()
    if damage is not None:
        file.write_bytes(damage(valid))
    assert find_entry("key") is None
    assert written("ours again") == file.parent
    assert find_entry("key") is not None
    assert (file.parent / "rows").read_text() == "ours again"
