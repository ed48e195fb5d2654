"""The policy of a run's folder, for its evaluation, generation, export and conversations, wherever the folder is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from strop.config.load.loader import LoadedRun, load_run
from strop.config.load.schema_faults import KeyOwner, unknown_owner
from strop.config.paths import existing_path
from strop.config.schema.algorithm import ReinforceConfig
from strop.config.schema.run import Run
from strop.errors import ModelError
from strop.runs.folder import RunFolder


def load_policy_run(
    folder: RunFolder,
    overrides: Sequence[str] = (),
    *,
    here: bool = False,
    key_owner: KeyOwner = unknown_owner,
) -> LoadedRun:
    """The configuration of a folder's run, with which its checkpoints can be loaded: where the model that it started
    from is not on this machine, architecture and tokenizer are those of the model that the run has written.

    Raises ModelError where that model is needed, because the checkpoints have an adapter only.
    """
    loaded = load_run(folder.path, overrides, here=here, key_owner=key_owner)
    return replace(loaded, run=_with_own_model(loaded.run, folder))


def _with_own_model(run: Run, folder: RunFolder) -> Run:
    model = run.model
    if not (folder.model / "config.json").is_file():
        return run
    template = run.data.chat_template
    if template not in ("tokenizer", "none") and "\n" not in template and existing_path(template) is None:
        run = run.model_copy(update={"data": run.data.model_copy(update={"chat_template": "tokenizer"})})
    if existing_path(model.path) is not None or _is_on_hub(model.path):
        return run
    if model.lora is not None:
        raise ModelError(
            f"{folder.path}: the checkpoints of this run have an adapter to the model {model.path}, and there is no "
            f"such folder here. Write model.path=FOLDER with that model, or put it where the run file names it. "
            f"{folder.model} has the trained model, with the adapter merged."
        )
    own = model.model_copy(update={"path": str(folder.model), "tokenizer": None})
    return run.model_copy(update={"model": own})


def _is_on_hub(path: str) -> bool:
    """Whether a path that does not exist here is a name of the Hub, `owner/name`."""
    return path.count("/") == 1 and not path.startswith((".", "/", "~"))


def policy_only(run: Run) -> Run:
    """The run with an algorithm that has no reference model and no teachers, for evaluation and export."""
    if run.algorithm.is_offline:
        return run
    return run.model_copy(update={"algorithm": ReinforceConfig()})
