"""Ledger rows of verl's `actor_rollout_ref.model`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.compat.ledger.key_mapping import (
    UNSET,
    ForeignValues,
    mapped,
    never,
    not_on_page,
    only,
    placement,
    refused,
    written_by,
)
from strop.compat.ledger.placement_notes import ALWAYS_PACKED, fused_kernels
from strop.compat.ledger.value_types import NUMBER, STRING_OR_LIST, nullable
from strop.compat.verl import recomputation, switches
from strop.compat.verl.data import remote_code
from strop.config.schema import Run

_OVERRIDE = "actor_rollout_ref.model.override_config"
_INSIDE = "model_config"
_OF_MEGATRON = (_INSIDE, "moe_config")


def overrides(foreign: ForeignValues, section: str) -> dict[str, Any]:
    """Values that are set in an `override_config`, except Megatron's `model_config` and `moe_config`."""
    below = (key for key in foreign.written if key.startswith(f"{section}."))
    values = {key.removeprefix(f"{section}."): foreign[key] for key in below}
    return {name: value for name, value in values.items() if name.split(".")[0] not in _OF_MEGATRON}


def write_override_config(run: Run) -> Mapping[str, Any]:
    """Write the overrides at the place where FSDP reads them."""
    return {f"{_OVERRIDE}.{name}": value for name, value in run.model.override.items()}


@written_by(write_override_config)
def override_config(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the overrides: FSDP reads `override_config` itself, Megatron reads its `model_config`."""
    values = overrides(foreign, _OVERRIDE)
    inside = foreign[f"{_OVERRIDE}.{_INSIDE}"]
    for name in values.keys() & inside.keys():
        if values[name] != inside[name]:
            raise foreign.error_for(
                f"{_OVERRIDE}.{name}",
                f"{_OVERRIDE}.{name} is {values[name]!r} and {_OVERRIDE}.{_INSIDE}.{name} is "
                f"{inside[name]!r}; write it once.",
            )
    return {"model.override": {**inside, **values}} if inside or values else {}


def write_imports(run: Run) -> Mapping[str, Any]:
    """Write the imports; a single one is written as a string."""
    names = list(run.model.imports)
    return {"actor_rollout_ref.model.external_lib": names[0] if len(names) == 1 else names or None}


@written_by(write_imports)
def imports(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the libraries of the policy and of the reward model, if there is one; each is imported once."""
    keys = ["actor_rollout_ref.model.external_lib"]
    if not switches.reward_model(foreign):
        keys.append("reward_model.model.external_lib")
    libraries = [foreign[key] for key in keys]
    names = [
        name for library in libraries for name in ([library] if isinstance(library, str) else library or [])
    ]
    return {"model.imports": list(dict.fromkeys(names))} if names else {}


def write_lora(run: Run) -> Mapping[str, Any]:
    """Write the LoRA adapter; rank 0 means no adapter."""
    at, adapter = "actor_rollout_ref.model", run.model.lora
    if adapter is None:
        return {f"{at}.lora_rank": 0}
    return {
        f"{at}.lora_rank": adapter.rank,
        f"{at}.lora_alpha": adapter.alpha,
        f"{at}.target_modules": adapter.targets,
        f"{at}.exclude_modules": adapter.exclude,
        f"{at}.lora_adapter_path": adapter.adapter,
    }


@written_by(write_lora)
def lora(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the LoRA adapter; rank 0 trains the whole model. Megatron has a section of its own for it."""
    if not switches.megatron_lora(foreign):
        return _megatron_lora(foreign)
    if switches.lora(foreign):
        return {}
    return {
        "model.lora.rank": foreign["actor_rollout_ref.model.lora_rank"],
        "model.lora.alpha": foreign["actor_rollout_ref.model.lora_alpha"],
        "model.lora.targets": foreign["actor_rollout_ref.model.target_modules"],
        "model.lora.exclude": foreign["actor_rollout_ref.model.exclude_modules"],
        "model.lora.adapter": foreign["actor_rollout_ref.model.lora_adapter_path"],
    }


_MEGATRON_MODULES = {
    "linear_qkv": ("q_proj", "k_proj", "v_proj"),
    "linear_proj": ("o_proj",),
    "linear_fc1": ("gate_proj", "up_proj"),
    "linear_fc2": ("down_proj",),
}
"""Megatron's names of a model's modules, each with the names that Hugging Face has."""


def _megatron_lora(foreign: ForeignValues) -> Mapping[str, Any]:
    at = "actor_rollout_ref.model.lora"
    named = foreign[f"{at}.target_modules"]
    modules = [named] if isinstance(named, str) else named
    unknown = [name for name in modules if name not in _MEGATRON_MODULES]
    if unknown:
        raise foreign.error_for(
            f"{at}.target_modules",
            f"{at}.target_modules has {', '.join(unknown)}; the supported modules are "
            f"{', '.join(_MEGATRON_MODULES)}.",
        )
    targets = [target for name in modules for target in _MEGATRON_MODULES[name]]
    return {
        "model.lora.rank": foreign[f"{at}.rank"],
        "model.lora.alpha": foreign[f"{at}.alpha"],
        "model.lora.dropout": foreign[f"{at}.dropout"],
        "model.lora.targets": "all-linear" if len(modules) == len(_MEGATRON_MODULES) else targets,
    }


ROWS = (
    mapped("actor_rollout_ref.model.path", "~/models/deepseek-llm-7b-chat", "model.path"),
    mapped(
        "actor_rollout_ref.model.external_lib",
        None,
        "model.imports",
        read=imports,
        value_type=nullable(STRING_OR_LIST),
        note="imported before the model is loaded",
    ),
    mapped(
        "actor_rollout_ref.model.override_config.model_config",
        {},
        "model.override",
        read=override_config,
    ),
    mapped(
        "actor_rollout_ref.model.override_config.moe_config.freeze_moe_router",
        False,
        "model.freeze_router",
        inactive=switches.megatron,
    ),
    *recomputation.SWITCH_ROWS,
    mapped(
        "actor_rollout_ref.model.trust_remote_code",
        False,
        "model.trust_remote_code",
        read=remote_code,
        note="takes effect only where it is set",
    ),
    placement(
        "actor_rollout_ref.model.use_remove_padding",
        False,
        ALWAYS_PACKED,
        supported=only(True),
    ),
    *not_on_page(
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
            "the page has no other key for Megatron's mixture of experts; remove it",
            supported=never,
        ),
        mapped("actor_rollout_ref.model.lora_rank", 0, "model.lora.rank", read=lora),
        mapped(
            "actor_rollout_ref.model.lora_alpha",
            16,
            "model.lora.alpha",
            read=lora,
            value_type=NUMBER,
            inactive=switches.lora,
        ),
        mapped(
            "actor_rollout_ref.model.target_modules",
            "all-linear",
            "model.lora.targets",
            read=lora,
            value_type=STRING_OR_LIST,
            inactive=switches.lora,
        ),
        mapped(
            "actor_rollout_ref.model.exclude_modules",
            None,
            "model.lora.exclude",
            read=lora,
            value_type=nullable(STRING_OR_LIST),
            inactive=switches.lora,
        ),
        fused_kernels("actor_rollout_ref.model.use_liger"),
        fused_kernels("actor_rollout_ref.model.use_fused_kernels"),
        placement(
            "actor_rollout_ref.model.use_shm",
            False,
            "the model is read from its folder",
            supported=only(False),
        ),
    ),
)
