"""Where a run starts: from nothing, or from a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from strop.config.load import differences, load_run
from strop.config.schema import Run
from strop.errors import CheckpointError, RunFolderError
from strop.run.folder import RunFolder, RunState
from strop.run.second_place import SecondPlace
from strop.training import checkpoint


@dataclass(frozen=True, slots=True)
class Start:
    """Where a run starts."""

    state: RunState
    checkpoint: Path | None
    """None: from the model as it is."""
    notes: tuple[str, ...]
    """What a user should know of the choice."""


def find_start(run: Run, folder: RunFolder) -> Start:
    """Follow `resume`. Raises `RunFolderError` where the folder holds a run of another configuration,
    and `CheckpointError` where the path that was named holds nothing to go on from."""
    second = SecondPlace.of(run)
    if second is not None:
        second.claim(run)
    if run.resume == "auto":
        return _last_good(run, folder, second)
    old = folder.set_aside_old()
    notes = (f"What was in {folder.path} stands in {old} now.",) if old else ()
    if run.resume == "never":
        return Start(RunState(), None, notes)
    named = Path(run.resume).expanduser()
    if old is not None and named.is_relative_to(folder.path):
        named = old / named.relative_to(folder.path)
    found = _named(named)
    return Start(RunState.load(found), found, (*notes, f"Resuming from {found}."))


def _last_good(run: Run, folder: RunFolder, second: SecondPlace | None) -> Start:
    fetched = None
    if second is not None and checkpoint.latest(folder.checkpoints)[0] is None:
        fetched = second.fetch(folder)
    if not folder.run_file.exists():
        return Start(RunState(), None, ())
    changed = differences(load_run(folder.run_file).run, run)
    if changed:
        raise RunFolderError(
            f"The run folder {folder.path} was made by a different configuration: {'; '.join(changed)}. "
            "Name another folder (by `name`, or a component's output), or write `resume: never` to set the "
            "old one aside and start anew."
        )
    found, passed_over = checkpoint.latest(folder.checkpoints)
    if found is None:
        return Start(RunState(), None, passed_over)
    state = RunState.load(found)
    notes = (*((fetched,) if fetched else ()), *passed_over)
    return Start(state, found, (*notes, f"Resuming after step {state.step}, from {found}."))


def _named(path: Path) -> Path:
    """A checkpoint itself, or a run folder's last good one."""
    root = path / "checkpoints"
    if root.is_dir():
        found, passed_over = checkpoint.latest(root)
        if found is None:
            reasons = " ".join(passed_over) or "It holds none."
            raise CheckpointError(f"resume: no good checkpoint in {root}. {reasons}")
        return found
    if not path.is_dir():
        raise CheckpointError(
            f"resume: {path} is not there. Name a checkpoint folder (.../checkpoints/step-000020), "
            "a run folder, `auto` or `never`."
        )
    checkpoint.verify(path)
    return path
