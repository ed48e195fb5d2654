"""verl's keys inside Trinity's `trainer.trainer_config`, adapted from verl's ledger: values, converters and rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from strop.compat.ledger.key_mapping import (
    UNCHANGED,
    UNSET,
    ForeignValues,
    KeyConverter,
    KeyMapping,
    ReadFunction,
    also_inactive,
    not_on_page,
    versions,
    written_by,
)
from strop.compat.trinity.cluster import cluster_ranks, uses_cluster
from strop.compat.trinity.presets import without_critic
from strop.compat.verl import engine as verl
from strop.compat.verl.ppo_trainer import LEDGER as VERL
from strop.config.schema import Run
from strop.errors import ConfigError

PREFIX = "trainer.trainer_config."
_DERIVED_VALUES: Mapping[str, Callable[[ForeignValues], Any]] = {
    "algorithm.adv_estimator": lambda foreign: None if without_critic(foreign) else "gae",
    "critic.model.path": lambda foreign: foreign["model.critic_model_path"] or foreign["model.model_path"],
    "critic.ppo_mini_batch_size": lambda foreign: None,
    "trainer.nnodes": lambda foreign: foreign["cluster.node_num"],
    "trainer.n_gpus_per_node": lambda foreign: foreign["cluster.gpu_per_node"],
}
"""verl's keys whose values follow from other Trinity keys. A null mini-batch size of the critic means one
update per step."""
_TRINITY_KEYS = {"critic.model.path": "model.critic_model_path"}
"""Trinity keys outside `trainer_config` that stand for a key of verl."""
_ACTOR = "actor_rollout_ref.actor"
MEGATRON_SIZES: Mapping[str, int | None] = {
    "tensor_model_parallel_size": 1,
    "pipeline_model_parallel_size": 1,
    "virtual_pipeline_model_parallel_size": None,
    "expert_model_parallel_size": 1,
    "expert_tensor_parallel_size": None,
    "context_parallel_size": 1,
}
"""Names of Megatron's parallel sizes, with their defaults."""
_NEWER_KEYS: Mapping[str, str] = {
    "algorithm.optimizer.lr": f"{_ACTOR}.optim.lr",
    "algorithm.optimizer.lr_warmup_steps": f"{_ACTOR}.optim.lr_warmup_steps",
    "algorithm.optimizer.lr_warmup_steps_ratio": f"{_ACTOR}.optim.lr_warmup_steps_ratio",
    "algorithm.optimizer.min_lr_ratio": f"{_ACTOR}.optim.min_lr_ratio",
    "algorithm.optimizer.warmup_style": f"{_ACTOR}.optim.warmup_style",
    "algorithm.optimizer.lr_scheduler_type": f"{_ACTOR}.optim.warmup_style",
    "algorithm.optimizer.betas": f"{_ACTOR}.optim.betas",
    "algorithm.optimizer.weight_decay": f"{_ACTOR}.optim.weight_decay",
    **{
        f"algorithm.optimizer.{name}": f"{_ACTOR}.optim.{name}"
        for name in ("lr_warmup_init", "lr_decay_style", "lr_decay_steps", "min_lr")
    },
    "trainer.grad_clip": f"{_ACTOR}.grad_clip",
    "trainer.actor_grad_clip": f"{_ACTOR}.grad_clip",
    "algorithm.optimizer.clip_grad": f"{_ACTOR}.grad_clip",
    "trainer.balance_batch": "trainer.balance_batch",
    "trainer.critic_warmup": "trainer.critic_warmup",
    "trainer.use_remove_padding": "actor_rollout_ref.model.use_remove_padding",
    "model.trust_remote_code": "actor_rollout_ref.model.trust_remote_code",
    **{
        f"trainer.{name}": f"{_ACTOR}.fsdp_config.{name}"
        for name in ("param_offload", "optimizer_offload", "offload_policy")
    },
    "trainer.grad_offload": f"{_ACTOR}.megatron.grad_offload",
    **{f"trainer.megatron.{name}": f"{_ACTOR}.megatron.{name}" for name in MEGATRON_SIZES},
    "trainer.use_dynamic_bsz": f"{_ACTOR}.use_dynamic_bsz",
    "trainer.max_token_len_per_gpu": f"{_ACTOR}.ppo_max_token_len_per_gpu",
    "trainer.ulysses_sequence_parallel_size": f"{_ACTOR}.ulysses_sequence_parallel_size",
    "trainer.trainer_strategy": f"{_ACTOR}.strategy",
    "trainer.max_checkpoints_to_keep": "trainer.max_actor_ckpt_to_keep",
}
"""Trinity keys that later versions have in place of a key of verl. A key that is set takes precedence over
verl's own, as in Trinity."""
_KEPT = "trainer.max_checkpoints_to_keep"
"""Key whose 0 means no limit."""
_FOLLOWS: Mapping[str, str] = {
    f"{_ACTOR}.optim.lr_decay_style": f"{_ACTOR}.optim.warmup_style",
    f"{_ACTOR}.optim.clip_grad": f"{_ACTOR}.grad_clip",
    **{
        f"{_ACTOR}.megatron.{name}": f"{_ACTOR}.fsdp_config.{name}"
        for name in ("param_offload", "optimizer_offload")
    },
    "critic.grad_clip": f"{_ACTOR}.grad_clip",
    "critic.use_dynamic_bsz": f"{_ACTOR}.use_dynamic_bsz",
    "critic.strategy": f"{_ACTOR}.strategy",
    "critic.ulysses_sequence_parallel_size": f"{_ACTOR}.ulysses_sequence_parallel_size",
}
"""Megatron's and the critic's keys that follow a key of the actor where only a later version's key is set."""
_SAME_AS = re.compile(r"\$\{([\w.]+)\}")


class _EmbeddedVerl:
    """ForeignValues of verl's keys inside a Trinity configuration, as verl's converters read them.

    A key has verl's default where Trinity's ledger has no row for it, and where it is null although verl does
    not accept null.
    """

    def __init__(self, outer: ForeignValues) -> None:
        self.outer = outer
        self.here = outer.here
        self.newer = {
            verl: key for key, verl in _NEWER_KEYS.items() if outer.is_set(key) and outer[key] is not None
        }
        inside = {key: row for key, row in outer.written.items() if key.startswith(PREFIX)}
        self.written = {key.removeprefix(PREFIX): row for key, row in inside.items()} | {
            verl: outer.written[key] for verl, key in self.newer.items()
        }

    def __getitem__(self, dotted: str) -> Any:
        if dotted in _DERIVED_VALUES:
            return _DERIVED_VALUES[dotted](self.outer)
        if dotted in self.newer:
            value = self.outer[self.newer[dotted]]
            return None if self.newer[dotted] == _KEPT and value == 0 else value
        follows = _FOLLOWS.get(dotted)
        if follows in self.newer and not self.outer.is_set(PREFIX + dotted):
            return self[follows]
        value, row = self.outer[PREFIX + dotted], VERL.find(dotted)
        if row is None or row.default is UNSET:
            return value
        if self.outer.has_row(PREFIX + dotted) and (value is not None or row.value_type.accepts(None)):
            return value
        same = _SAME_AS.fullmatch(str(row.default))
        return self[same[1]] if same else row.default

    def has_row(self, dotted: str) -> bool:
        return VERL.find(dotted) is not None

    def is_set(self, dotted: str) -> bool:
        return dotted in self.newer or self.outer.is_set(PREFIX + dotted)

    def error_for(self, dotted: str, reason: str) -> ConfigError:
        return self.outer.error_for(self.newer.get(dotted, PREFIX + dotted), reason)


@cache
def embedded_converter(read: ReadFunction) -> ReadFunction:
    """verl's converter for keys inside Trinity's configuration; cached, because rows share converters."""
    inside = for_embedded(read)
    if not isinstance(read, KeyConverter):
        return inside
    write = read.write

    def written(run: Run) -> Mapping[str, Any]:
        values = {
            key: value
            for key, value in write(run).items()
            if key in _TRINITY_KEYS or key not in _DERIVED_VALUES
        }
        return {_TRINITY_KEYS.get(key, PREFIX + key): value for key, value in values.items()}

    return KeyConverter(inside, written)


@cache
def for_embedded(function: Callable[..., Any]) -> Callable[..., Any]:
    """verl's function for keys inside Trinity's configuration."""
    return lambda foreign, *value: function(_EmbeddedVerl(foreign), *value)


_copied = cache(UNCHANGED.between)
"""Converter of a key that verl's ledger copies to a field."""


def newer_row(key: str, default: Any, since: str, **changes: Any) -> KeyMapping:
    """Row of a Trinity key that later versions have in place of a key of verl."""
    row = verl_row(_NEWER_KEYS[key], default)
    precedence = f"takes precedence over {PREFIX}{_NEWER_KEYS[key]}"
    note = f"{row.note}; {precedence}" if row.is_placement else precedence
    (newer,) = versions(replace(row, key=key, inactive=None, note=note), since=since)
    return replace(newer, **changes)


def verl_row(key: str, default: Any, /, **changes: Any) -> KeyMapping:
    """verl's row with Trinity's default; a critic's keys are active only with a critic."""
    row = VERL.find(key)
    assert row is not None, key
    converter = row.read
    if converter is None and row.fields and key in _NEWER_KEYS.values():
        converter = _copied(key, row.fields[0])
    read = converter and embedded_converter(converter)
    inactive, supported, warn = (
        found and for_embedded(found) for found in (row.inactive, row.supported, row.warn)
    )
    inside = replace(
        row,
        key=PREFIX + key,
        default=default,
        read=read,
        inactive=inactive,
        supported=supported,
        warn=warn,
        default_stated=True,
        on_page=True,
    )
    critics = key.startswith("critic.") or key == "trainer.critic_warmup"
    return replace(also_inactive(inside, without_critic) if critics else inside, **changes)


_TRINITYS = ("algorithm.policy_loss", "model.lora")
"""Fields that only Trinity's own keys decide, not those of verl's later versions."""
_OF_RECIPES = (f"{_ACTOR}.sppo_eta", f"{_ACTOR}.dpo_beta", "trainer.ref_update_freq")
"""Keys of a program in verl's recipes, which Trinity does not run."""


def remaining_rows(sections: Sequence[str], known: Collection[str]) -> tuple[KeyMapping, ...]:
    """verl's rows of these sections that are not `known`, with verl's defaults."""
    found = []
    for row in VERL.rows:
        is_trinitys = row.since and any(field.startswith(_TRINITYS) for field in row.fields)
        if row.alias_of or row.key in _OF_RECIPES or is_trinitys:
            continue
        if row.key.startswith(tuple(sections)) and PREFIX + row.key not in known:
            default = row.default
            if isinstance(default, str):
                default = default.replace("${", "${" + PREFIX)
            found.append(verl_row(row.key, default, since="0.5" if row.since else ""))
    return not_on_page(*found)


def write_layout(run: Run) -> Mapping[str, Any]:
    """Write the layout of the trainer's ranks."""
    converter = embedded_converter(verl.layout)
    assert isinstance(converter, KeyConverter)
    return converter.write(run)


@written_by(write_layout)
def layout(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the layout of the trainer's ranks on a cluster; nothing where a single process trains."""
    if not uses_cluster(foreign):
        return {}
    ranks = cluster_ranks(foreign)
    found: Mapping[str, Any] = for_embedded(verl.layout_of_ranks)(foreign, ranks)
    return found


_STRATEGIES = ("actor_rollout_ref.actor.strategy", "critic.strategy", "trainer.trainer_strategy")
"""Keys that select the trainer's engine."""


def with_ranks(row: KeyMapping) -> KeyMapping:
    """The row of a key that the trainer's ranks on a cluster honor; any other row itself."""
    inside = row.key.removeprefix(PREFIX)
    key = _NEWER_KEYS.get(row.key, inside)
    if inside in _STRATEGIES or inside.endswith(".megatron.*"):
        return _with_fsdp2(row)
    if not row.fields or not row.fields[0].startswith("trainer.engine.") or row.supported is None:
        return row
    native = row.supported

    def warn(foreign: ForeignValues) -> str | None:
        return verl.STANDS_IN[key] if uses_cluster(foreign) and foreign[row.key] != row.default else None

    return replace(
        row,
        read=layout,
        supported=lambda foreign, value: uses_cluster(foreign) or native(foreign, value),
        warn=warn if key in verl.STANDS_IN else None,
    )


def _with_fsdp2(row: KeyMapping) -> KeyMapping:
    """The row of a trainer's engine or of its own settings, in whose place FSDP2 trains on a cluster."""
    native = row.supported
    if native is None:
        return row

    def warn(foreign: ForeignValues) -> str | None:
        value = foreign[row.key]
        if not uses_cluster(foreign) or (native(foreign, value) and value == row.default):
            return None
        return "without effect: FSDP2 trains on the trainer's ranks"

    return replace(
        row, supported=lambda foreign, value: uses_cluster(foreign) or native(foreign, value), warn=warn
    )
