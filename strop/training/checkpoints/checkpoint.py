"""Checkpoints on disk: written to a temporary folder, checked, renamed into place, and pruned.

    checkpoints/
      step-000010/  manifest.json and the files of the run
      step-000020/
      .step-000030.1f0c93ab.tmp/  incomplete; never resumed from, removed by the next write
      .step-000020.old/  replaced by another checkpoint of its step; put back by `restore` after a kill

A folder named `step-*` is complete, since it gets that name in one rename after all its files are on disk.
Its manifest holds the size and CRC-32 of each file, so that later damage is detected.
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
from strop.protocols import FileChecksum
from strop.training.checkpoints.file_writer import crc32, fsync_and_checksum
from strop.workers.files import fsync_path, replace_folder, restore_folders
from strop.workers.json_text import parse_json

MANIFEST_FILE = "manifest.json"
_NAME = re.compile(r"step-(\d{6,})")


def folder_for_step(root: Path, step: int) -> Path:
    """Folder of the checkpoint of a step."""
    return root / f"step-{step:06d}"


@dataclass(frozen=True, slots=True)
class PendingCheckpoint:
    """A checkpoint during its write."""

    root: Path
    """Folder of all checkpoints of the run."""
    step: int
    folder: Path
    """Temporary folder of its files."""


def begin(root: Path, step: int) -> PendingCheckpoint:
    """Create the temporary folder of a checkpoint, and remove those of interrupted writes.

    Raises:
        CheckpointError: the folder cannot be created.
    """
    # A random name: a process of a killed run may still be writing to its own folder.
    draft = PendingCheckpoint(root, step, root / f".step-{step:06d}.{secrets.token_hex(4)}.tmp")
    with _checkpoint_errors(draft):
        root.mkdir(parents=True, exist_ok=True)
        restore(root)
        _remove_leftovers(root)
        draft.folder.mkdir()
    return draft


def commit(
    draft: PendingCheckpoint,
    fill: Callable[[Path], Mapping[str, FileChecksum]],
    *,
    keep: int | None,
    best: int | None = None,
) -> Path:
    """Write the checkpoint, and rename it into place; `latest` finds it from then on.

    Args:
        draft: from `begin`.
        fill: writes the files into the given folder, and returns size and checksum of those that it has
            synced to disk itself.
        keep: number of newest checkpoints that are kept; None keeps all. Checkpoints of later steps are
            always deleted, since the run has gone back to an earlier one.
        best: step whose checkpoint is never deleted; it counts towards `keep`, except that with `keep` 1
            both this one and the new one remain.

    Raises:
        CheckpointError: the files cannot be written, for example because the disk is full. Older
            checkpoints remain, and no incomplete one does.
    """
    final = folder_for_step(draft.root, draft.step)
    try:
        with _checkpoint_errors(draft):
            _seal(draft, fill(draft.folder))
            replace_folder(draft.folder, final)
    finally:
        shutil.rmtree(draft.folder, ignore_errors=True)
    _prune(draft.root, draft.step, keep, best)
    return final


def restore(root: Path) -> None:
    """Put back a checkpoint whose replacement was interrupted. Only the process that writes checkpoints may call it."""
    restore_folders(root, "step-*")


def verify(folder: Path) -> None:
    """Read and check every file of a checkpoint. Raises `CheckpointError` for a missing or damaged file."""
    for name, (size, checksum) in _read_manifest(folder).items():
        path = folder / name
        try:
            found = path.stat().st_size
            if found != size:
                raise CheckpointError(
                    f"The checkpoint {folder} is damaged: {name} has {found} bytes instead of {size}."
                )
            if crc32(path) != checksum:
                raise CheckpointError(f"The checkpoint {folder} is damaged: the checksum of {name} is wrong.")
        except (
            FileNotFoundError,
            NotADirectoryError,
            IsADirectoryError,
        ):  # also while the run deletes an old checkpoint
            raise CheckpointError(f"The checkpoint {folder} lacks the file {name}.") from None


def latest(root: Path) -> tuple[Path | None, tuple[str, ...]]:
    """The newest complete checkpoint, and a message for each newer one that is damaged."""
    skipped = []
    for folder in reversed(folders(root)):
        try:
            verify(folder)
        except CheckpointError as error:
            skipped.append(f"{error} It is skipped.")
        else:
            return folder, tuple(skipped)
    return None, tuple(skipped)


def step_of(path: Path) -> int:
    """The step of a checkpoint's folder. Raises `CheckpointError` for any other folder."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise CheckpointError(
            f"{path} is not a checkpoint: the folder of a checkpoint is named by its step, such as step-000020."
        )
    return int(match[1])


def folders(root: Path) -> list[Path]:
    """All checkpoints, oldest first."""
    found = root.iterdir() if root.is_dir() else ()
    return sorted((f for f in found if _NAME.fullmatch(f.name) and f.is_dir()), key=step_of)


def _seal(draft: PendingCheckpoint, written: Mapping[str, FileChecksum]) -> None:
    """Write the manifest, and sync all files to disk."""
    folder = draft.folder
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    absent = sorted(written.keys() - found.keys())
    if absent:
        raise CheckpointError(
            f"The checkpoint of step {draft.step} was written, but the trainer's first rank does not see "
            f"{', '.join(absent)} in {draft.root}. `output` must be a folder on storage that all nodes share."
        )
    files = {
        name: asdict(written.get(name) or fsync_and_checksum(path)) for name, path in sorted(found.items())
    }
    manifest = folder / MANIFEST_FILE
    manifest.write_text(json.dumps({"step": draft.step, "files": files}, indent=1) + "\n")
    for path in (manifest, *(p for p in folder.rglob("*") if p.is_dir()), folder):
        fsync_path(path)


def _read_manifest(folder: Path) -> dict[str, tuple[int, str]]:
    """Size and checksum of each file."""
    try:
        files = parse_json((folder / MANIFEST_FILE).read_bytes())["files"]
        return {name: (entry["bytes"], entry["crc32"]) for name, entry in files.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"The checkpoint {folder} has no readable {MANIFEST_FILE} ({error})."
        ) from error


def _prune(root: Path, step: int, keep: int | None, best: int | None) -> None:
    steps = [step_of(folder) for folder in folders(root)]
    kept = {number for number in steps if number <= step}
    if keep is not None:
        others = sorted(kept - {step, best})
        surplus = max(0, len(kept) - keep)
        kept -= set(others[:surplus])
    for folder in (folder_for_step(root, number) for number in steps if number not in kept):
        # Renamed first, so that an interrupted deletion leaves no folder with the name of a checkpoint.
        doomed = folder.with_name(f".{folder.name}.tmp")
        folder.rename(doomed)
        shutil.rmtree(doomed)


def _remove_leftovers(root: Path) -> None:
    for folder in root.glob(".step-*.tmp"):
        shutil.rmtree(folder)


@contextmanager
def _checkpoint_errors(draft: PendingCheckpoint) -> Iterator[None]:
    """Turn the error of a failed write into a `CheckpointError`."""
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:
        reason = write_error_reason(error)
        if reason is None:
            raise
        raise CheckpointError(_cannot_write(draft, reason)) from error


def write_error_reason(error: Exception) -> str | None:
    """Message of a failed write by Python, safetensors or torch; None for any other error."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if isinstance(error, SafetensorError):
        return str(error)
    # torch.save's error for a full disk: RuntimeError, "[enforce fail at inline_container.cc:672] ..."
    return f"torch.save failed, {error}" if "inline_container" in str(error) else None


def _cannot_write(draft: PendingCheckpoint, reason: str) -> str:
    root = draft.root
    older = folders(root)
    left = f"The previous one, {older[-1].name}, is unchanged" if older else "There is no previous one"
    existing = next(folder for folder in (root, *root.parents) if folder.exists())
    free = shutil.disk_usage(existing).free / 1e6
    return (
        f"The checkpoint of step {draft.step} could not be written to {root}: {reason} ({free:,.0f} MB were "
        f"free). {left}, and no incomplete one remains. Free space on that disk, lower `checkpoint.keep`, or set "
        "`output` to a writable folder; then the same command continues from the last checkpoint."
    )
