"""Change of a run's configuration between two sessions, on request: the next session resumes with other settings."""

from __future__ import annotations

from collections.abc import Sequence

from strop.config.resume_compatibility import recorded_differences
from strop.config.save import folder_mode, save_resolved
from strop.config.schema import Run
from strop.errors import RunFolderError
from strop.python_rewards import PythonRewards
from strop.run.state.identity import (
    PYTHON_REWARD,
    identity_differences,
    is_learned_from,
    read_identity,
    run_identity,
    save_identity,
)
from strop.run.state.run_state import RunState
from strop.runs.folder import RunFolder, reporting_write_errors
from strop.runs.lock import lock_run
from strop.runs.sessions import record_changes
from strop.training.checkpoints import checkpoint


def change_configuration(run: Run, keys: Sequence[str], reward: PythonRewards | None = None) -> str:
    """Replace the configuration and the identity recorded in the folder of `run`, which differ from its own in `keys`
    only.

    `keys` are dotted keys of the run file, or of sections of it; `reward` for the function that Python passes. The
    differences become a part of the last session's record. Returns a sentence for the user. Raises `RunFolderError`
    where there is no checkpoint to continue from, or the run differs in another key too.
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
        now, identities = run_identity(run, reward), {}
        for each in (folder, folder.explorer):
            recorded = read_identity(each.path) or {}
            is_kept = (
                reward is None and PYTHON_REWARD in recorded
            )  # the next start passes a function, and compares it
            identities[each] = now | ({PYTHON_REWARD: recorded[PYTHON_REWARD]} if is_kept else {})
            differences += identity_differences(recorded, identities[each]) if recorded else []
        differences = list(dict.fromkeys(differences))
        others = [
            text
            for text in differences
            if not _is_named(text.partition(" ")[0], keys) and is_learned_from(run, text)
        ]
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
                    save_identity(identities[each], each.path)
    return f"Changed after step {RunState.load(found).step}: {'; '.join(differences)}."


def _is_named(field: str, keys: Sequence[str]) -> bool:
    return any(field == key or field.startswith(f"{key}.") for key in keys)
