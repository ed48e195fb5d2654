"""Start of a run: from the initial model, or from a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from strop.config.redact import redact
from strop.config.schema.run import Run, leaves
from strop.config.semantic_diff import recorded_differences
from strop.errors import CheckpointError, ConfigError, RunFolderError, see_troubleshooting
from strop.run.state.checkpoint_mirror import CheckpointMirror
from strop.run.state.identity import Identity, identity_differences, is_learned_from, read_identity
from strop.run.state.run_state import RunState
from strop.runs.folder import RunFolder, reporting_write_errors
from strop.runs.metrics_file import recorded_steps
from strop.runs.sessions import last_checkpoint_step, read_sessions
from strop.training.checkpoints import checkpoint
from strop.workers.files import restore_folder

_WORD = re.compile(r"[A-Za-z][\w./-]*")
"""A text that an override takes without quotes."""


@dataclass(frozen=True, slots=True)
class StartPoint:
    """State and checkpoint that a run starts from."""

    state: RunState
    checkpoint: Path | None
    """Checkpoint to load; None for the initial model."""
    notes: tuple[str, ...]
    """Messages for the user about the choice."""


def find_start(run: Run, folder: RunFolder, identity: Identity | None) -> StartPoint:
    """Apply `resume`. The caller holds the lock of the folder, where interrupted replacements are restored first.

    Raises `RunFolderError` where the folder holds a run of another configuration, or of other data or code than
    `identity` (None: not compared), or lacks the configuration; `CheckpointError` where the path in `resume` holds no
    checkpoint, or the run has lost its checkpoints.
    """
    with reporting_write_errors(folder.path):
        restore_folder(folder.model)
        checkpoint.restore(folder.checkpoints)
    mirror = CheckpointMirror.of(run)
    if mirror is not None:
        mirror.prepare(run)
    if run.resume == "auto":
        return _latest_checkpoint(run, folder, mirror, identity)
    archived = folder.archive_existing(_inputs(run, folder))
    notes = (f"The former contents of {folder.path} were moved to {archived}.",) if archived else ()
    if run.resume == "never":
        return StartPoint(RunState(), None, notes)
    path = Path(run.resume).expanduser()
    if archived is not None and path.is_relative_to(folder.path):
        path = archived / path.relative_to(folder.path)
    found = _named_checkpoint(path)
    return StartPoint(RunState.load(found), found, (*notes, f"Resuming from {found}."))


def _inputs(run: Run, folder: RunFolder) -> list[Path]:
    """Data and a model from Python that the run reads from its own folder."""
    named = [leaf.value for leaf in leaves(run) if leaf.keys[-1] == "path" and isinstance(leaf.value, str)]
    own = (folder.path / "inputs").absolute()
    found = {path for path in map(Path, named) if path.absolute().is_relative_to(own) and path.exists()}
    record = folder.path / "inputs" / "python.json"
    return [*sorted(found), *([record] if record.is_file() else [])]


def check_start(run: Run, folder: RunFolder, identity: Identity | None) -> StartPoint:
    """Choose like `find_start` in the folder as it is; changes nothing, and does not read `checkpoint.mirror`.

    Raises what `find_start` raises for the folder, and for the path in `resume`.
    """
    if run.resume == "auto":
        return _latest_checkpoint(run, folder, None, identity)
    if run.resume == "never":
        return StartPoint(RunState(), None, ())
    found = _named_checkpoint(Path(run.resume).expanduser())
    return StartPoint(RunState.load(found), found, (f"Resuming from {found}.",))


def _latest_checkpoint(
    run: Run, folder: RunFolder, mirror: CheckpointMirror | None, identity: Identity | None
) -> StartPoint:
    fetched = None
    if mirror is not None and checkpoint.latest(folder.checkpoints)[0] is None:
        fetched = mirror.fetch(folder)
    found, skipped = checkpoint.latest(folder.checkpoints)
    changed = _recorded_differences(folder, run, found)
    if changed is None:
        return StartPoint(RunState(), None, ())
    contents: list[str] = []
    news: list[str] = []
    is_explorer = folder.path.name == "explorer"  # which has no checkpoints
    if identity is not None and (found is not None or is_explorer):  # else the run starts from the beginning
        recorded = read_identity(folder.path) or (read_identity(found) if found else None)
        contents = identity_differences(recorded or {}, identity)
        if recorded is None:
            news.append(
                "An earlier version started this run and recorded no identity of its data and code, so none is "
                "compared."
            )
    changed += [each for each in contents if is_learned_from(run, each)]
    if changed:
        accept = " ".join(f"--change {_as_change(each.partition(' ')[0], run)}" for each in changed)
        raise RunFolderError(
            f"The run folder {folder.path} was made by a different configuration: {'; '.join(changed)}. "
            f"To continue with what changed, add to the command: {accept}. Otherwise restore it, name another "
            "folder (by `name`, or a component's output), or write `resume: never` to archive the old "
            "folder and start from the beginning. "
            f"{see_troubleshooting('a-run-does-not-resume')}"
        )
    news += [f"{each}: evaluations before and after this step are of different data." for each in contents]
    if found is None:
        _require_no_checkpoint_lost(folder, skipped)
        return StartPoint(RunState(), None, tuple(news))
    state = RunState.load(found)
    notes = (*((fetched,) if fetched else ()), *skipped, *news)
    return StartPoint(state, found, (*notes, f"Resuming after step {state.step}, from {found}."))


def _as_change(field: str, run: Run) -> str:
    """A field as `--change` has it: with its value where that is short, so that the run file may stay as it is."""
    value = next((leaf.value for leaf in leaves(run) if ".".join(leaf.keys) == field), None)
    if isinstance(value, str) and not _WORD.fullmatch(value):
        value = None
    if not isinstance(value, str | int | float) or redact(value, field.rpartition(".")[2]) != value:
        return field
    return f"{field}={str(value).lower() if isinstance(value, bool) else value}"


def _recorded_differences(folder: RunFolder, run: Run, newest: Path | None) -> list[str] | None:
    """The differences from the configuration of the folder's run; None for a new folder.

    Raises `RunFolderError` where that is missing or damaged although the run has done steps.
    """
    file = folder.run_file
    if not file.exists():
        if (
            newest is None
            and not checkpoint.folders(folder.checkpoints)
            and not recorded_steps(folder.metrics)
        ):
            return None
        reason = "is missing, although the folder has checkpoints or metrics of a run"
    else:
        try:
            return recorded_differences(file, run)
        except (ConfigError, OSError, ValueError) as error:
            reason = f"cannot be read ({error})"
    raise RunFolderError(
        f"{file} {reason}, so it is not known whether the run can be resumed. {_restore_hint(folder, newest)} To "
        "start from the beginning, write `resume: never`, which archives the folder."
    )


def _restore_hint(folder: RunFolder, newest: Path | None) -> str:
    copies = [folder.path.parent / folder.run_file.name] if folder.path.name == "explorer" else []
    if newest is not None:
        copies.append(newest / folder.run_file.name)
    for copy in copies:
        if copy.is_file():
            return f"To resume, restore the file: `cp '{copy}' '{folder.run_file}'`."
    return "To resume, restore the file from a backup."


def _require_no_checkpoint_lost(folder: RunFolder, skipped: Sequence[str]) -> None:
    """Raise `CheckpointError` where a checkpoint was complete, and no good one is left."""
    try:
        step = last_checkpoint_step(read_sessions(folder.path))
    except RunFolderError:
        step = recorded_steps(folder.metrics)
    if not skipped and step == 0:
        return
    found = " ".join(skipped) or f"The checkpoint of step {step} was complete, and is gone."
    raise CheckpointError(
        f"The run in {folder.path} has lost its checkpoints: {found} Restore {folder.checkpoints} from a backup; or "
        "write `resume: never` to archive the folder and start from the beginning. "
        f"{see_troubleshooting('a-run-does-not-resume')}"
    )


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
