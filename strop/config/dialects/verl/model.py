"""verl's `actor_rollout_ref.hybrid_engine` and `actor_rollout_ref.model`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.config.dialects.row import (
    NUMBER,
    TEXTS,
    UNSET,
    beyond_the_page,
    mapped,
    never,
    only,
    or_null,
    placement,
    refused,
    written_by,
)
from strop.config.dialects.theirs import Theirs
from strop.config.dialects.verl import switches
from strop.config.dialects.verl.data import remote_code
from strop.config.schema import Run

_OVERRIDE = "actor_rollout_ref.model.override_config"
_INSIDE = "model_config"
_OF_MEGATRON = (_INSIDE, "moe_config")


def overrides(theirs: Theirs, section: str) -> dict[str, Any]:
    """What was written below an `override_config`, but for Megatron's `model_config` and `moe_config`."""
    below = (key for key in theirs.written if key.startswith(f"{section}."))
    values = {key.removeprefix(f"{section}."): theirs[key] for key in below}
    return {name: value for name, value in values.items() if name.split(".")[0] not in _OF_MEGATRON}


def write_override_config(run: Run) -> Mapping[str, Any]:
    """As FSDP reads them."""
    return {f"{_OVERRIDE}.{name}": value for name, value in run.model.override.items()}


@written_by(write_override_config)
def override_config(theirs: Theirs) -> Mapping[str, Any]:
    """FSDP reads `override_config` itself, Megatron what is in its `model_config`."""
    values = overrides(theirs, _OVERRIDE)
    inside = theirs[f"{_OVERRIDE}.{_INSIDE}"]
    for name in values.keys() & inside.keys():
        if values[name] != inside[name]:
            raise theirs.fault(
                f"{_OVERRIDE}.{name}",
                f"{_OVERRIDE}.{name} is {values[name]!r} and {_OVERRIDE}.{_INSIDE}.{name} is "
                f"{inside[name]!r}; write it once.",
            )
    return {"model.override": {**inside, **values}} if inside or values else {}


def write_imports(run: Run) -> Mapping[str, Any]:
    """One alone is no list."""
    names = list(run.model.imports)
    return {"actor_rollout_ref.model.external_lib": names[0] if len(names) == 1 else names or None}


@written_by(write_imports)
def imports(theirs: Theirs) -> Mapping[str, Any]:
    """The policy's libraries and, where it has one, the reward model's: they are imported once, for all."""
    keys = ["actor_rollout_ref.model.external_lib"]
    if not switches.reward_model(theirs):
        keys.append("reward_model.model.external_lib")
    said = [theirs[key] for key in keys]
    names = [name for one in said for name in ([one] if isinstance(one, str) else one or [])]
    return {"model.imports": list(dict.fromkeys(names))} if names else {}


def write_lora(run: Run) -> Mapping[str, Any]:
    """Rank 0 is no adapter."""
    at, said = "actor_rollout_ref.model", run.model.lora
    if said is None:
        return {f"{at}.lora_rank": 0}
    return {
        f"{at}.lora_rank": said.rank,
        f"{at}.lora_alpha": said.alpha,
        f"{at}.target_modules": said.targets,
        f"{at}.exclude_modules": said.exclude,
    }


@written_by(write_lora)
def lora(theirs: Theirs) -> Mapping[str, Any]:
    """Rank 0 trains the whole model."""
    if switches.lora(theirs):
        return {}
    return {
        "model.lora.rank": theirs["actor_rollout_ref.model.lora_rank"],
        "model.lora.alpha": theirs["actor_rollout_ref.model.lora_alpha"],
        "model.lora.targets": theirs["actor_rollout_ref.model.target_modules"],
        "model.lora.exclude": theirs["actor_rollout_ref.model.exclude_modules"],
    }


ROWS = (
    refused("actor_rollout_ref.hybrid_engine", True, "verl's page allows True alone, and so do we"),
    mapped("actor_rollout_ref.model.path", "~/models/deepseek-llm-7b-chat", "model.path"),
    mapped(
        "actor_rollout_ref.model.external_lib",
        None,
        "model.imports",
        read=imports,
        kind=or_null(TEXTS),
        note="imported before the model is loaded",
    ),
    mapped(
        "actor_rollout_ref.model.override_config.model_config",
        {},
        "model.override",
        read=override_config,
    ),
    refused(
        "actor_rollout_ref.model.override_config.moe_config.freeze_moe_router",
        False,
        "a router is trained like all other weights; leave it False, or train LoRA modules without it",
    ),
    mapped("actor_rollout_ref.model.enable_gradient_checkpointing", False, "model.gradient_checkpointing"),
    placement(
        "actor_rollout_ref.model.enable_activation_offload",
        False,
        "activations stay where they are computed",
        can=only(False),
    ),
    mapped(
        "actor_rollout_ref.model.trust_remote_code",
        False,
        "model.trust_remote_code",
        read=remote_code,
        note="counts only where someone wrote it",
    ),
    placement(
        "actor_rollout_ref.model.use_remove_padding",
        False,
        "sequences are always packed without padding, which changes no result",
        can=only(True),
    ),
    *beyond_the_page(
        mapped(
            "actor_rollout_ref.model.override_config.*",
            UNSET,
            "model.override",
            read=override_config,
            note="values of the model's config.json",
        ),
        refused(
            "actor_rollout_ref.model.override_config.moe_config.*",
            UNSET,
            "Megatron's mixtures of experts have no other key on the page",
            can=never,
        ),
        mapped("actor_rollout_ref.model.lora_rank", 0, "model.lora.rank", read=lora),
        mapped(
            "actor_rollout_ref.model.lora_alpha",
            16,
            "model.lora.alpha",
            read=lora,
            kind=NUMBER,
            off=switches.lora,
        ),
        mapped(
            "actor_rollout_ref.model.target_modules",
            "all-linear",
            "model.lora.targets",
            read=lora,
            kind=TEXTS,
            off=switches.lora,
        ),
        mapped(
            "actor_rollout_ref.model.exclude_modules",
            None,
            "model.lora.exclude",
            read=lora,
            kind=or_null(TEXTS),
            off=switches.lora,
        ),
        placement(
            "actor_rollout_ref.model.use_liger", False, "Strop's own kernels are used", can=only(False)
        ),
        placement(
            "actor_rollout_ref.model.use_fused_kernels",
            False,
            "Strop's own kernels are used",
            can=only(False),
        ),
        placement(
            "actor_rollout_ref.model.use_shm", False, "the model is read from its folder", can=only(False)
        ),
    ),
)
