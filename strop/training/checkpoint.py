"""Checkpoints on disk: written beside, checked, renamed into place, and pruned.

    checkpoints/
      step-000010/  manifest.json, and what the run put there
      step-000020/
      .step-000030.1f0c93ab.tmp/  being written; never resumed from, removed by the next write

A folder named `step-*` is whole, for it gets that name in one rename after everything in it is on
disk. Its manifest holds each file's size and CRC-32, so that later damage is noticed.
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from safetensors import SafetensorError

from strop.errors import CheckpointError
from strop.protocols import WrittenFile
from strop.training.writing import crc32, seal, sync

MANIFEST = "manifest.json"
_NAME = re.compile(r"step-(\d{6,})")


def folder_of(root: Path, step: int) -> Path:
    """Where the checkpoint of a step is, or would be."""
    return root / f"step-{step:06d}"


@dataclass(frozen=True, slots=True)
class Draft:
    """A checkpoint that is being written."""

    root: Path
    """The folder of all checkpoints of the run."""
    step: int
    folder: Path
    """Where its files go, for the time being."""


def begin(root: Path, step: int) -> Draft:
    """Make the folder that a checkpoint is written in; what is left of unfinished ones goes.

    Raises:
        CheckpointError: the disk may not be written.
    """
    # A name of its own: a process of a run that was killed may still be writing what it began.
    draft = Draft(root, step, root / f".step-{step:06d}.{secrets.token_hex(4)}.tmp")
    with _told(draft):
        root.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(root)
        draft.folder.mkdir()
    return draft


def finish(
    draft: Draft,
    fill: Callable[[Path], Mapping[str, WrittenFile]],
    *,
    keep: int | None,
    best: int | None = None,
) -> Path:
    """Write the checkpoint, which `latest` gives from then on.

    Args:
        draft: from `begin`.
        fill: puts the files into the folder that it is given, and says what those are that it has brought
            to the disk itself.
        keep: delete all but so many of the newest; None keeps all. Checkpoints of later steps are
            of a course that the run has gone back from, and go in any case.
        best: a step whose checkpoint is never deleted, and counts among `keep`. With the one of
            `step` there may be two where `keep` is 1.

    Raises:
        CheckpointError: the disk is full, say, or may not be written. Older checkpoints stay and
            nothing half-written does.
    """
    final = folder_of(draft.root, draft.step)
    try:
        with _told(draft):
            _seal(draft, fill(draft.folder))
            _rename(draft.folder, final)
    finally:
        shutil.rmtree(draft.folder, ignore_errors=True)
    _prune(draft.root, draft.step, keep, best)
    return final


def verify(folder: Path) -> None:
    """Read every file of a checkpoint. Raises `CheckpointError` that says what is missing or damaged."""
    for name, (size, checksum) in _read_manifest(folder).items():
        path = folder / name
        if not path.is_file():
            raise CheckpointError(f"The checkpoint {folder} lacks the file {name}.")
        found = path.stat().st_size
        if found != size:
            raise CheckpointError(f"The checkpoint {folder} is damaged: {name} has {found} bytes of {size}.")
        if crc32(path) != checksum:
            raise CheckpointError(f"The checkpoint {folder} is damaged: the checksum of {name} is wrong.")


def latest(root: Path) -> tuple[Path | None, tuple[str, ...]]:
    """The newest checkpoint that is whole, and a sentence for each newer one that is not."""
    passed_over = []
    for folder in reversed(folders(root)):
        try:
            verify(folder)
        except CheckpointError as error:
            passed_over.append(f"{error} It is passed over.")
        else:
            return folder, tuple(passed_over)
    return None, tuple(passed_over)


def step_of(path: Path) -> int:
    """The step that a checkpoint's folder is of. Raises `CheckpointError` for any other folder."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise CheckpointError(f"{path} is no checkpoint: those are named step-000020, after their step.")
    return int(match[1])


def folders(root: Path) -> list[Path]:
    """All checkpoints, oldest first."""
    there = root.iterdir() if root.is_dir() else ()
    return sorted((f for f in there if _NAME.fullmatch(f.name) and f.is_dir()), key=step_of)


def _seal(draft: Draft, written: Mapping[str, WrittenFile]) -> None:
    """Write the manifest, and see to it that all is on the disk and not only on its way there."""
    folder = draft.folder
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    absent = sorted(written.keys() - found.keys())
    if absent:
        raise CheckpointError(
            f"The checkpoint of step {draft.step} was written, and {', '.join(absent)} cannot be seen in "
            f"{draft.root} by the trainer's first rank. `output` must name a folder that all its nodes share."
        )
    files = {name: asdict(written.get(name) or seal(path)) for name, path in sorted(found.items())}
    manifest = folder / MANIFEST
    manifest.write_text(json.dumps({"step": draft.step, "files": files}, indent=1) + "\n")
    for path in (manifest, *(p for p in folder.rglob("*") if p.is_dir()), folder):
        sync(path)


def _read_manifest(folder: Path) -> dict[str, tuple[int, str]]:
    """The size and checksum of each file."""
    try:
        files = json.loads((folder / MANIFEST).read_bytes())["files"]
        return {name: (entry["bytes"], entry["crc32"]) for name, entry in files.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"The checkpoint {folder} has no readable {MANIFEST} ({error}).") from error


def _rename(beside: Path, final: Path) -> None:
    if final.exists():
        # The same step again: the run came back to it from an earlier checkpoint, because this
        # one is damaged. A folder cannot be renamed onto another.
        old = beside.with_name(f".{final.name}.old.tmp")
        final.rename(old)
        beside.rename(final)
        shutil.rmtree(old)
    else:
        beside.rename(final)
    sync(final.parent)


def _prune(root: Path, step: int, keep: int | None, best: int | None) -> None:
    steps = [step_of(folder) for folder in folders(root)]
    stay = {number for number in steps if number <= step}
    if keep is not None:
        others = sorted(stay - {step, best})
        surplus = max(0, len(stay) - keep)
        stay -= set(others[:surplus])
    for folder in (folder_of(root, number) for number in steps if number not in stay):
        # Renamed first, so that a kill in the middle leaves nothing that looks like a checkpoint.
        doomed = folder.with_name(f".{folder.name}.tmp")
        folder.rename(doomed)
        shutil.rmtree(doomed)


def _remove_leftovers(root: Path) -> None:
    for folder in root.glob(".step-*.tmp"):
        shutil.rmtree(folder)


@contextmanager
def _told(draft: Draft) -> Iterator[None]:
    """Say of a failed write what it means."""
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:
        reason = why_not_written(error)
        if reason is None:
            raise
        raise CheckpointError(_cannot_write(draft, reason)) from error


def why_not_written(error: Exception) -> str | None:
    """What a failed write says, in the words of Python, safetensors or torch; None for anything else."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if isinstance(error, SafetensorError):
        return str(error)
    # torch.save says of a full disk: RuntimeError, "[enforce fail at inline_container.cc:672] ..."
    return f"torch.save failed, {error}" if "inline_container" in str(error) else None


def _cannot_write(draft: Draft, reason: str) -> str:
    root = draft.root
    older = folders(root)
    left = f"The last one before it, {older[-1].name}, is untouched" if older else "There is none before it"
    place = next(folder for folder in (root, *root.parents) if folder.exists())
    free = shutil.disk_usage(place).free / 1e6
    return (
        f"The checkpoint of step {draft.step} could not be written to {root}: {reason} ({free:,.0f} MB were "
        f"free). {left}, and nothing half-written is left. Make room on that disk, lower `checkpoint.keep`, "
        "or move `output` to where you may write; then the same command goes on from the last checkpoint."
    )
