"""Converters of verl's checkpoint keys: what a checkpoint saves and what a resumed run loads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.compat.ledger.key_mapping import (
    UNSET,
    ForeignValues,
    KeyMapping,
    no_effect,
    refused,
    written_by,
)
from strop.compat.ledger.value_types import ANY
from strop.config.schema import Run


def write_checkpoint_contents(run: Run) -> Mapping[str, Any]:
    """Write the saved and the loaded parts of a checkpoint."""
    parts = {"model": True, "optimizer": run.checkpoint.save_optimizer, "extra": True}
    parts["hf_model"] = run.checkpoint.export
    at = "actor_rollout_ref.actor.checkpoint"
    saved = [name for name, kept in parts.items() if kept]
    resumed = run.checkpoint.resume_optimizer or not run.checkpoint.save_optimizer
    loaded = [name for name in saved if name != "hf_model" and (resumed or name != "optimizer")]
    return {f"{at}.save_contents": saved} | ({} if resumed else {f"{at}.load_contents": loaded})


@written_by(write_checkpoint_contents)
def saved_contents(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the saved parts; Strop always saves the model and the random number generator states. Weights in Hugging
    Face's format alone are a model, too."""
    contents = foreign["actor_rollout_ref.actor.checkpoint.save_contents"]
    known = ("model", "optimizer", "extra", "hf_model")
    if not {"model", "hf_model"} & set(contents) or any(part not in known for part in contents):
        raise foreign.error_for(
            "actor_rollout_ref.actor.checkpoint.save_contents",
            f"save_contents is {contents}; the supported parts are {', '.join(known)}, and resuming requires "
            "'model' or 'hf_model'.",
        )
    return {"checkpoint.save_optimizer": "optimizer" in contents, "checkpoint.export": "hf_model" in contents}


@written_by(write_checkpoint_contents)
def loaded_contents(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the loaded parts, which must have been saved; Strop always loads the model and the random number
    generator states (see without_extra)."""
    key = "actor_rollout_ref.actor.checkpoint"
    contents, kept = foreign[f"{key}.load_contents"], foreign[f"{key}.save_contents"]
    lacking = [part for part in contents if part not in kept]
    if lacking:
        raise foreign.error_for(
            f"{key}.load_contents",
            f"load_contents has {', '.join(lacking)}, which save_contents does not have: {', '.join(kept)}.",
        )
    if "model" in kept and "model" not in contents:
        raise foreign.error_for(
            f"{key}.load_contents",
            "load_contents has no model, which a resumed run always loads; add it. To start a new run from a model's "
            "weights, write the model's folder as actor_rollout_ref.model.path.",
        )
    return {"checkpoint.resume_optimizer": "optimizer" in contents}


def without_extra(foreign: ForeignValues) -> str | None:
    """Notice for a resumed run that restores more than its configuration asks for."""
    key = "actor_rollout_ref.actor.checkpoint"
    if "extra" in foreign[f"{key}.load_contents"] or "extra" not in foreign[f"{key}.save_contents"]:
        return None
    return (
        "load_contents has no extra, and a resumed run restores it nevertheless: the state of the random numbers and "
        "the position in the learning-rate schedule, which verl would start again"
    )


def without_optimizer(foreign: ForeignValues) -> str | None:
    """Notice for a run whose checkpoints have no optimizer state."""
    kept = "optimizer" in foreign["actor_rollout_ref.actor.checkpoint.save_contents"]
    return None if kept else "without the optimizer state, a resumed run differs from an uninterrupted one"


def checkpoint_contents_rows(section: str) -> tuple[KeyMapping, ...]:
    """Rows of a `checkpoint` section of SFT, whose checkpoints always have all of their parts."""
    whole = ["model", "optimizer", "extra"]
    why = "checkpoints always have the model, the optimizer's state and the run's state"
    return (
        *(
            refused(f"{section}.{name}", default, f"{why}; leave it at its default", supported=_is_whole)
            for name, default in (
                ("save_contents", whole),
                ("load_contents", f"${{{section}.save_contents}}"),
            )
        ),
        no_effect(f"{section}.*", UNSET, why, value_type=ANY),
    )


def _is_whole(foreign: ForeignValues, value: Any) -> bool:
    return isinstance(value, list) and all(part in value for part in ("model", "optimizer", "extra"))
