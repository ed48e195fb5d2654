"""Ledger rows of verl's `actor_rollout_ref.model`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from strop.compat.ledger.key_mapping import (
    ALWAYS_PACKED,
    INTEGER,
    NUMBER,
    OWN_KERNELS,
    STRING,
    STRING_OR_LIST,
    UNSET,
    ForeignValues,
    InactiveCheck,
    KeyMapping,
    ReadFunction,
    any_inactive,
    empty,
    fused_kernels,
    mapped,
    no_effect,
    not_on_page,
    nullable,
    one_of,
    only,
    placement,
    placement_section,
    refused,
    unless,
    written_by,
)
from strop.compat.verl import switches
from strop.compat.verl.data import remote_code
from strop.compat.verl.engine import default_only
from strop.config.schema import Run

_MODEL = "actor_rollout_ref.model"
_OVERRIDE = f"{_MODEL}.override_config"
_INSIDE = "model_config"
_OF_MEGATRON = (_INSIDE, "moe_config")


def overrides(foreign: ForeignValues, section: str) -> dict[str, Any]:
    """Values that are set in an `override_config`, except Megatron's `model_config` and `moe_config`."""
    below = (key for key in foreign.written if key.startswith(f"{section}."))
    values = {key.removeprefix(f"{section}."): foreign[key] for key in below}
    return {name: value for name, value in values.items() if name.split(".")[0] not in _OF_MEGATRON}


@written_by(lambda run: {f"{_OVERRIDE}.{name}": value for name, value in run.model.override.items()})
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
    return {f"{_MODEL}.external_lib": names[0] if len(names) == 1 else names or None}


@written_by(write_imports, off={f"{_MODEL}.external_lib": None, "reward_model.model.external_lib": None})
def imports(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the libraries of the policy and of the reward model, if there is one; each is imported once."""
    keys = [f"{_MODEL}.external_lib"]
    if not switches.reward_model(foreign):
        keys.append("reward_model.model.external_lib")
    libraries = [foreign[key] for key in keys]
    names = [
        name for library in libraries for name in ([library] if isinstance(library, str) else library or [])
    ]
    return {"model.imports": list(dict.fromkeys(names))} if names else {}


def write_lora(run: Run) -> Mapping[str, Any]:
    """Write the LoRA adapter; rank 0 means no adapter."""
    at, adapter = _MODEL, run.model.lora
    if adapter is None:
        return {f"{at}.lora_rank": 0}
    return {
        f"{at}.lora_rank": adapter.rank,
        f"{at}.lora_alpha": adapter.alpha,
        f"{at}.target_modules": adapter.targets,
        f"{at}.exclude_modules": adapter.exclude,
        f"{at}.lora_adapter_path": adapter.adapter,
    }


@written_by(write_lora, off={f"{_MODEL}.lora_rank": 0, f"{_MODEL}.lora.rank": 0})
def lora(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the LoRA adapter; rank 0 trains the whole model. Megatron has a section of its own for it."""
    if not switches.megatron_lora(foreign):
        return _megatron_lora(foreign)
    if switches.lora(foreign):
        return {}
    return {
        "model.lora.rank": foreign[f"{_MODEL}.lora_rank"],
        "model.lora.alpha": foreign[f"{_MODEL}.lora_alpha"],
        "model.lora.targets": foreign[f"{_MODEL}.target_modules"],
        "model.lora.exclude": foreign[f"{_MODEL}.exclude_modules"],
        "model.lora.adapter": foreign[f"{_MODEL}.lora_adapter_path"],
    }


_MEGATRON_MODULES = {
    "linear_qkv": ("q_proj", "k_proj", "v_proj"),
    "linear_proj": ("o_proj",),
    "linear_fc1": ("gate_proj", "up_proj"),
    "linear_fc2": ("down_proj",),
}
"""Megatron's names of a model's modules, each with the names that Hugging Face has."""


def _megatron_lora(foreign: ForeignValues) -> Mapping[str, Any]:
    at = f"{_MODEL}.lora"
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


_FULL = "Strop recomputes every layer, each from its own input; the results are the same"
_SELECTIVE = (
    "Strop keeps the results of matrix products and attention kernels and recomputes the rest of each layer; the "
    "results are the same"
)
_OFFLOADED = "the inputs of recomputed layers are offloaded; write enable_gradient_checkpointing=True"


@dataclass(frozen=True, slots=True)
class RecomputedModel:
    """Keys of one trained model, and the check of Megatron's."""

    section: str
    """Section of the model, such as `critic.model`."""
    engine: str
    """Section of its engine's settings, such as `critic`."""
    megatron: InactiveCheck
    """Check that finds Megatron's keys of this model inactive."""

    @property
    def switch(self) -> str:
        """Key of all engines that recomputes the layers."""
        return f"{self.section}.enable_gradient_checkpointing"

    @property
    def offload(self) -> str:
        """Key that offloads the inputs of recomputed layers."""
        return f"{self.section}.enable_activation_offload"

    @property
    def earlier(self) -> str:
        """Prefix of Megatron's keys in earlier versions, which have an effect where the switch is on."""
        return f"{self.section}.gradient_checkpointing_kwargs.activations_checkpoint"

    @property
    def later(self) -> str:
        """Prefix of Megatron's own options."""
        return f"{self.engine}.megatron.override_transformer_config.recompute"

    def granularity(self, foreign: ForeignValues) -> str | None:
        """Megatron's granularity: `full`, `selective` or None."""
        if self.megatron(foreign):
            return None
        found: str | None = foreign[f"{self.later}_granularity"]
        return found or (foreign[f"{self.earlier}_granularity"] if foreign[self.switch] else None)

    def recomputes(self, foreign: ForeignValues) -> bool | Literal["selective"]:
        """Value of `gradient_checkpointing`."""
        granularity = self.granularity(foreign)
        return "selective" if granularity == "selective" else bool(granularity or foreign[self.switch])

    def offloads(self, foreign: ForeignValues) -> bool:
        """Value of `activation_offload`."""
        return bool(foreign[self.offload] and self.recomputes(foreign))

    def offload_row(
        self, field: str, read: ReadFunction, inactive: InactiveCheck | None = None
    ) -> KeyMapping:
        """Row of the key that offloads inputs."""
        return placement(
            self.offload,
            False,
            _OFFLOADED,
            supported=lambda foreign, value: not value or bool(self.recomputes(foreign)),
            fields=(field,),
            read=read,
            inactive=inactive,
        )

    def earlier_rows(self, field: str, read: ReadFunction) -> tuple[KeyMapping, ...]:
        """Rows of Megatron's keys in earlier versions."""
        return not_on_page(*self._rows(self.earlier, field, read))

    def megatron_rows(self, field: str, read: ReadFunction) -> tuple[KeyMapping, ...]:
        """Rows of Megatron's own options."""
        modules = mapped(
            f"{self.later}_modules",
            UNSET,
            field,
            read=read,
            inactive=any_inactive(self.megatron, self._unless("selective")),
            note=_SELECTIVE,
        )
        return (*self._rows(self.later, field, read), modules)

    def _rows(self, prefix: str, field: str, read: ReadFunction) -> tuple[KeyMapping, ...]:
        def stands_in(foreign: ForeignValues) -> str | None:
            return {"full": _FULL, "selective": _SELECTIVE}.get(foreign[f"{prefix}_granularity"])

        def row(name: str, kind: Any, **more: Any) -> KeyMapping:
            return mapped(f"{prefix}_{name}", None, field, read=read, value_type=nullable(kind), **more)

        full = any_inactive(self.megatron, self._unless("full"))
        return (
            row("granularity", one_of("full", "selective"), inactive=self.megatron, warn=stands_in),
            row("method", one_of("uniform", "block"), inactive=full, note=_FULL),
            row("num_layers", INTEGER, inactive=full, note=_FULL),
        )

    def _unless(self, granularity: str) -> InactiveCheck:
        def inactive(foreign: ForeignValues) -> str | None:
            found = self.granularity(foreign)
            return None if found == granularity else f"the granularity of recomputation is {found}"

        return inactive


_RECOMPUTED_FIELD = "model.gradient_checkpointing"
RECOMPUTED = RecomputedModel(_MODEL, "actor_rollout_ref.actor", switches.megatron)


@written_by(
    lambda run: {
        RECOMPUTED.switch: bool(run.model.gradient_checkpointing),
        RECOMPUTED.offload: run.model.activation_offload,
    }
)
def recomputation(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read what is recomputed and offloaded."""
    return {
        _RECOMPUTED_FIELD: RECOMPUTED.recomputes(foreign),
        "model.activation_offload": RECOMPUTED.offloads(foreign),
    }


def write_chat_template(run: Run) -> Mapping[str, Any]:
    """Write a chat template other than the tokenizer's."""
    template = run.data.chat_template
    own = template not in ("tokenizer", "none")
    return {f"{_MODEL}.custom_chat_template": template} if own else {}


@written_by(write_chat_template, off={f"{_MODEL}.custom_chat_template": None})
def chat_template(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the chat template; null means the tokenizer's."""
    return {"data.chat_template": foreign[f"{_MODEL}.custom_chat_template"]}


EARLIER_ROWS = RECOMPUTED.earlier_rows(_RECOMPUTED_FIELD, recomputation)
_mtp = any_inactive(unless(f"{_MODEL}.mtp.enable", True), unless(f"{_MODEL}.mtp.enable_train", True))


def _heads_only(foreign: ForeignValues, value: Any) -> bool:
    """Whether multi-token prediction does not train the model itself, but only its additional heads."""
    return not value or bool(foreign[f"{_MODEL}.mtp.detach_encoder"])


_LISTED = (
    mapped(f"{_MODEL}.path", "~/models/deepseek-llm-7b-chat", "model.path"),
    mapped(
        f"{_MODEL}.external_lib",
        None,
        "model.imports",
        read=imports,
        value_type=nullable(STRING_OR_LIST),
        note="imported before the model is loaded",
    ),
    mapped(f"{_MODEL}.override_config.model_config", {}, "model.override", read=override_config),
    mapped(
        f"{_MODEL}.override_config.moe_config.freeze_moe_router",
        False,
        "model.freeze_router",
        inactive=switches.megatron,
    ),
    mapped(RECOMPUTED.switch, False, _RECOMPUTED_FIELD, read=recomputation),
    RECOMPUTED.offload_row("model.activation_offload", recomputation),
    mapped(
        f"{_MODEL}.trust_remote_code",
        False,
        "model.trust_remote_code",
        read=remote_code,
        note="takes effect only where it is set",
    ),
    placement(f"{_MODEL}.use_remove_padding", False, ALWAYS_PACKED, supported=only(True)),
)
_lora_row = partial(mapped, read=lora)
_UNLISTED = not_on_page(
    mapped(
        f"{_MODEL}.override_config.*",
        UNSET,
        "model.override",
        read=override_config,
        note="values of the model's config.json",
    ),
    refused(
        f"{_MODEL}.override_config.moe_config.*",
        UNSET,
        "verl 0.3.1's documentation has no other key for Megatron's mixture of experts; remove it",
    ),
    default_only(f"{_MODEL}.override_config.attn_implementation", UNSET, OWN_KERNELS),
    _lora_row(f"{_MODEL}.lora_rank", 0, "model.lora.rank"),
    _lora_row(f"{_MODEL}.lora_alpha", 16, "model.lora.alpha", value_type=NUMBER, inactive=switches.lora),
    _lora_row(
        f"{_MODEL}.target_modules",
        "all-linear",
        "model.lora.targets",
        value_type=STRING_OR_LIST,
        inactive=switches.lora,
    ),
    _lora_row(
        f"{_MODEL}.exclude_modules",
        None,
        "model.lora.exclude",
        value_type=nullable(STRING_OR_LIST),
        inactive=switches.lora,
    ),
    fused_kernels(f"{_MODEL}.use_liger"),
    fused_kernels(f"{_MODEL}.use_fused_kernels"),
    placement(f"{_MODEL}.use_shm", False, "the model is read from its folder", supported=only(False)),
    mapped(
        f"{_MODEL}.custom_chat_template",
        None,
        "data.chat_template",
        read=chat_template,
        value_type=nullable(STRING),
        note="Jinja text; null means the tokenizer's template",
    ),
    _lora_row(
        f"{_MODEL}.lora_adapter_path",
        None,
        "model.lora.adapter",
        value_type=nullable(STRING),
        inactive=switches.lora,
        note="PEFT folder of an adapter of the same lora_rank and lora_alpha",
    ),
    refused(
        f"{_MODEL}.hf_config_path",
        UNSET,
        (
            "the model folder's config.json is read; write values that replace "
            "those in it as +actor_rollout_ref.model.override_config.NAME"
        ),
        supported=empty,
    ),
    placement_section(f"{_MODEL}.fused_kernel_options", OWN_KERNELS),
    *EARLIER_ROWS,
    placement_section(f"{_MODEL}.gradient_checkpointing_kwargs", "each layer is recomputed"),
    placement_section(f"{_MODEL}.tiled_mlp", OWN_KERNELS),
    no_effect(f"{_MODEL}.enable_activation_offloading", UNSET, "verl reads enable_activation_offload"),
    _lora_row(
        f"{_MODEL}.lora.rank", 0, "model.lora.rank", inactive=switches.fsdp_lora, note="LoRA under Megatron"
    ),
    _lora_row(
        f"{_MODEL}.lora.alpha", 32, "model.lora.alpha", value_type=NUMBER, inactive=switches.megatron_lora
    ),
    _lora_row(f"{_MODEL}.lora.dropout", 0.0, "model.lora.dropout", inactive=switches.megatron_lora),
    _lora_row(
        f"{_MODEL}.lora.target_modules",
        ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"],
        "model.lora.targets",
        value_type=STRING_OR_LIST,
        inactive=switches.megatron_lora,
        note="Megatron's names of the modules",
    ),
    refused(
        f"{_MODEL}.lora.type",
        "lora",
        "Strop has no other adapter; leave it lora",
        inactive=switches.megatron_lora,
    ),
    refused(f"{_MODEL}.lora.exclude_modules", [], "write target_modules", inactive=switches.megatron_lora),
    refused(
        f"{_MODEL}.lora.adapter_path",
        None,
        "write the merged model's folder as the model's path",
        inactive=switches.megatron_lora,
    ),
    no_effect(f"{_MODEL}.lora.*", UNSET, "the adapter starts as in peft, and is merged for the export"),
    no_effect(f"{_MODEL}.mtp.enable", False, "tokens are sampled and trained one by one"),
    refused(
        f"{_MODEL}.mtp.enable_train",
        False,
        "multi-token prediction adds a loss; write actor_rollout_ref.model.mtp.detach_encoder=True, with which it "
        "trains only its own heads, or leave it False",
        supported=_heads_only,
        inactive=_mtp,
    ),
    no_effect(f"{_MODEL}.mtp.detach_encoder", False, "the additional heads are not trained"),
    no_effect(f"{_MODEL}.mtp.*", UNSET, "the additional heads are not trained"),
    default_only(f"{_MODEL}.tiled_mlp.enabled", False, OWN_KERNELS),
)
ROWS = (*_LISTED, *_UNLISTED)
