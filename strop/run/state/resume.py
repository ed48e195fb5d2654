"""Start of a run: from the initial model, or from a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from strop.config.load.loader import load_run
from strop.config.resume_compatibility import resume_differences
from strop.config.schema import Run
from strop.errors import CheckpointError, RunFolderError
from strop.run.state.checkpoint_mirror import CheckpointMirror
from strop.run.state.run_state import RunState
from strop.runs.folder import RunFolder
from strop.training.checkpoints import checkpoint


@dataclass(frozen=True, slots=True)
class StartPoint:
    """State and checkpoint that a run starts from."""

    state: RunState
    checkpoint: Path | None
    """Checkpoint to load; None for the initial model."""
    notes: tuple[str, ...]
    """Messages for the user about the choice."""


def find_start(run: Run, folder: RunFolder) -> StartPoint:
    """Apply `resume`.

    Raises `RunFolderError` where the folder holds a run of another configuration, and `CheckpointError`
    where the path in `resume` holds no checkpoint.
    """
    mirror = CheckpointMirror.of(run)
    if mirror is not None:
        mirror.prepare(run)
    if run.resume == "auto":
        return _latest_checkpoint(run, folder, mirror)
    archived = folder.archive_existing()
    notes = (f"The former contents of {folder.path} were moved to {archived}.",) if archived else ()
    if run.resume == "never":
        return StartPoint(RunState(), None, notes)
    path = Path(run.resume).expanduser()
    if archived is not None and path.is_relative_to(folder.path):
        path = archived / path.relative_to(folder.path)
    found = _named_checkpoint(path)
    return StartPoint(RunState.load(found), found, (*notes, f"Resuming from {found}."))


def _latest_checkpoint(run: Run, folder: RunFolder, mirror: CheckpointMirror | None) -> StartPoint:
    fetched = None
    if mirror is not None and checkpoint.latest(folder.checkpoints)[0] is None:
        fetched = mirror.fetch(folder)
    if not folder.run_file.exists():
        return StartPoint(RunState(), None, ())
    changed = resume_differences(load_run(folder.run_file).run, run)
    if changed:
        raise RunFolderError(
            f"The run folder {folder.path} was made by a different configuration: {'; '.join(changed)}. "
            "Name another folder (by `name`, or a component's output), or write `resume: never` to archive "
            "the old folder and start from the beginning."
        )
    found, skipped = checkpoint.latest(folder.checkpoints)
    if found is None:
        return StartPoint(RunState(), None, skipped)
    state = RunState.load(found)
    notes = (*((fetched,) if fetched else ()), *skipped)
    return StartPoint(state, found, (*notes, f"Resuming after step {state.step}, from {found}."))


def _named_checkpoint(path: Path) -> Path:
    """A checkpoint's folder itself, or a run folder's last good checkpoint."""
    root = path / "checkpoints"
    if root.is_dir():
        found, skipped = checkpoint.latest(root)
        if found is None:
            reasons = " ".join(skipped) or "It holds none."
            raise CheckpointError(f"resume: no good checkpoint in {root}. {reasons}")
        return found
    if not path.is_dir():
        raise CheckpointError(
            f"resume: {path} does not exist. Name a checkpoint folder (.../checkpoints/step-000020), "
            "a run folder, `auto` or `never`."
        )
    checkpoint.verify(path)
    return path
