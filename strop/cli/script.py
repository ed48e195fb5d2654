"""`strop train script.py`: run a script, or a notebook that trains with TRL, and train where it calls `train()`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from strop import api
from strop.cli.actions import change_recorded, run_job
from strop.compat.registry import key_owner_hint
from strop.compat.trl.script.run import run_trl_script
from strop.config.load.loader import Job
from strop.run.entry.start import RunResult
from strop.runs.folder import RunFolder


def train_script(path: Path, arguments: Sequence[str], *, here: bool, changes: Sequence[str]) -> None:
    """Run a script with its arguments; `changes` are the values of `--change` for its runs.

    Raises what the script's run raises.
    """

    def start(job: Job) -> RunResult:
        change_recorded(job, changes)
        return run_job(job)

    run_trl_script(
        path,
        arguments,
        here=here,
        changes=[each for each in changes if "=" in each],
        key_owner=key_owner_hint,
        start=start,
        evaluate=_evaluate,
    )


def _evaluate(job: Job, folder: Path | None) -> dict[str, float]:
    """Evaluate with the last checkpoint of a run folder, or with the initial model."""
    from strop.run.entry.evaluate import last_checkpoint

    checkpoint = None if folder is None else last_checkpoint(RunFolder(folder))
    return api.evaluate(job.loaded, checkpoint=checkpoint)
