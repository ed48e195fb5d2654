"""What verl's checkpoints hold, and what of them is taken back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.config.dialects.row import written_by
from strop.config.dialects.theirs import Theirs
from strop.config.schema import Run


def write_saved(run: Run) -> Mapping[str, Any]:
    """The parts of a checkpoint."""
    parts = {"model": True, "optimizer": run.checkpoint.optimizer, "extra": True}
    parts["hf_model"] = run.checkpoint.export
    at = "actor_rollout_ref.actor.checkpoint"
    saved = [name for name, kept in parts.items() if kept]
    resumed = run.checkpoint.resume_optimizer or not run.checkpoint.optimizer
    loaded = [name for name in saved if name != "hf_model" and (resumed or name != "optimizer")]
    return {f"{at}.save_contents": saved} | ({} if resumed else {f"{at}.load_contents": loaded})


@written_by(write_saved)
def saved(theirs: Theirs) -> Mapping[str, Any]:
    """The model and the states of the random numbers are always kept."""
    contents = theirs["actor_rollout_ref.actor.checkpoint.save_contents"]
    known = ("model", "optimizer", "extra", "hf_model")
    if "model" not in contents or any(part not in known for part in contents):
        raise theirs.fault(
            "actor_rollout_ref.actor.checkpoint.save_contents",
            f"save_contents is {contents}; it is made of {', '.join(known)}, and without 'model' there would "
            "be nothing to go on from.",
        )
    return {"checkpoint.optimizer": "optimizer" in contents, "checkpoint.export": "hf_model" in contents}


@written_by(write_saved)
def loaded(theirs: Theirs) -> Mapping[str, Any]:
    """What was not saved cannot be taken back; the model and the random numbers' states always are."""
    key = "actor_rollout_ref.actor.checkpoint"
    contents, kept = theirs[f"{key}.load_contents"], theirs[f"{key}.save_contents"]
    lacking = [part for part in contents if part not in kept]
    if lacking:
        raise theirs.fault(
            f"{key}.load_contents",
            f"load_contents names {', '.join(lacking)}, which save_contents lacks: {', '.join(kept)}.",
        )
    left_out = [part for part in ("model", "extra") if part in kept and part not in contents]
    if left_out:
        raise theirs.fault(
            f"{key}.load_contents",
            f"load_contents leaves out {' and '.join(left_out)}, which a run always goes on with; add it. To "
            "start anew from a model's weights, write its folder as actor_rollout_ref.model.path.",
        )
    return {"checkpoint.resume_optimizer": "optimizer" in contents}


def without_optimizer(theirs: Theirs) -> str | None:
    """What a reader should know of a run that keeps no optimizer, or does not take it back."""
    kept = "optimizer" in theirs["actor_rollout_ref.actor.checkpoint.save_contents"]
    return None if kept else "without the optimizer's state a stopped run cannot go on exactly as it was"
