"""Change of a run's configuration between two sessions, on request: the next session resumes with other settings."""

from __future__ import annotations

from collections.abc import Sequence

from strop.config.resume_compatibility import recorded_differences
from strop.config.save import folder_mode, save_resolved
from strop.config.schema import Run
from strop.errors import RunFolderError
from strop.run.state.run_state import RunState
from strop.runs.folder import RunFolder, reporting_write_errors
from strop.runs.lock import lock_run
from strop.runs.sessions import record_changes
from strop.training.checkpoints import checkpoint


def change_configuration(run: Run, keys: Sequence[str]) -> str:
    """Replace the configuration recorded in the folder of `run`, which differs from it in `keys` only.

    `keys` are dotted keys of the run file, or of sections of it. The differences become a part of the last session's
    record. Returns a sentence for the user. Raises `RunFolderError` where there is no checkpoint to continue from, or
    the run differs in another key too.
    """
    folder = RunFolder.of(run)
    with lock_run(folder, mode=run.mode, is_distributed=run.is_distributed, permissions=folder_mode(run)):
        found, _ = checkpoint.latest(folder.checkpoints)
        if found is None or not folder.run_file.is_file():
            raise RunFolderError(
                f"--change continues a run, and {folder.path} has no checkpoint of one. Write the values as overrides, "
                "without --change."
            )
        differences = recorded_differences(folder.run_file, run)
        others = [text for text in differences if not _is_named(text.partition(" ")[0], keys)]
        if others:
            raise RunFolderError(
                f"The run in {folder.path} differs from this configuration in more than --change names: "
                f"{'; '.join(others)}. Write --change for each of them, or restore its value."
            )
        if not differences:
            return f"--change: the run in {folder.path} has these values already."
        with reporting_write_errors(folder.path):
            record_changes(folder.path, differences)
            for each in (folder, folder.explorer):
                if each.run_file.is_file():
                    save_resolved(run, each.run_file)
    return f"Changed after step {RunState.load(found).step}: {'; '.join(differences)}."


def _is_named(field: str, keys: Sequence[str]) -> bool:
    return any(field == key or field.startswith(f"{key}.") for key in keys)
