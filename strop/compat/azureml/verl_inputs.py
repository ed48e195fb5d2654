"""Component inputs that stand for verl's keys: rows and ledgers derived from verl's ledger."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from strop.compat.azureml.component import Component, ComponentInput, InputType
from strop.compat.ledger.key_mapping import KeyMapping
from strop.compat.ledger.table import Ledger
from strop.compat.ledger.value_types import one_of
from strop.compat.verl.ppo_trainer import LEDGER as VERL
from strop.config.load.job import ComponentOutput

_DOTTED = re.compile(r"(?<!\w)[A-Za-z_]\w*+(?:\.\w+)+")


def verl_input(
    name: str,
    input_type: InputType,
    default: Any,
    key: str,
    *,
    required: bool = False,
    enum: tuple[str, ...] = (),
    convert: Callable[[str], Any] | None = None,
    row: KeyMapping | None = None,
    note: str | None = None,
    also: tuple[str, ...] = (),
    on_page: bool = True,
) -> ComponentInput:
    """An input that stands for verl's `key`; `row` replaces verl's row for it."""
    found = row or VERL.find(key)
    assert found is not None, key
    value_type = one_of(*enum, *also) if enum else found.value_type
    note = found.note if note is None else note
    row = replace(
        found,
        key=name,
        default=default,
        value_type=value_type,
        note=note,
        default_stated=on_page,
        on_page=on_page,
        deprecated="",
    )
    return ComponentInput(input_type, row, key, required, enum, convert, also)


_FURTHER: tuple[tuple[str, InputType, str], ...] = (
    ("actor_loss_agg_mode", "string", "actor_rollout_ref.actor.loss_agg_mode"),
    ("algorithm_norm_adv_by_std_in_grpo", "boolean", "algorithm.norm_adv_by_std_in_grpo"),
    ("critic_optim_lr", "number", "critic.optim.lr"),
    ("critic_ppo_micro_batch_size_per_gpu", "integer", "critic.ppo_micro_batch_size_per_gpu"),
    ("critic_strategy", "string", "critic.strategy"),
    ("critic_model_path", "string", "critic.model.path"),
    ("critic_model_use_remove_padding", "boolean", "critic.model.use_remove_padding"),
    ("critic_model_enable_gradient_checkpointing", "boolean", "critic.model.enable_gradient_checkpointing"),
    ("critic_fsdp_param_offload", "boolean", "critic.model.fsdp_config.param_offload"),
    ("critic_fsdp_optimizer_offload", "boolean", "critic.model.fsdp_config.optimizer_offload"),
    ("critic_cliprange_value", "number", "critic.cliprange_value"),
    ("critic_grad_clip", "number", "critic.grad_clip"),
)


def _further_input(name: str, kind: InputType, key: str) -> ComponentInput:
    row = VERL.find(key)
    assert row is not None, key
    return verl_input(name, kind, row.default, key, on_page=False)


def verl_component(
    name: str,
    azureml_name: str,
    inputs: tuple[ComponentInput, ...],
    outputs: tuple[ComponentOutput, ...],
    *,
    default_overrides: Mapping[str, Any],
    serving_engine: str = "",
) -> Component:
    """A component whose inputs stand for verl's keys. Keys that are no inputs have verl's defaults, unless
    `default_overrides` has another default for the component."""
    by_key = {part.key: part.row for part in inputs}
    names = {part.key: part.name for part in inputs if part.key != part.name}
    rows = tuple(
        replace(by_key[row.key], key=row.key)
        if row.key in by_key
        else replace(row, default=default_overrides.get(row.key, row.default), default_stated=False)
        for row in VERL.rows
    )
    others = tuple(row for key, row in by_key.items() if VERL.find(key) is None)
    shown = tuple(
        replace(part, row=replace(part.row, note=rename_keys(part.row.note, names))) for part in inputs
    )
    return Component(
        name,
        azureml_name,
        shown,
        outputs,
        Ledger(name, rows + others),
        "trainer.default_local_dir",
        names,
        serving_engine,
        tuple(_further_input(*each) for each in _FURTHER),
    )


def rename_keys(text: str, names: Mapping[str, str]) -> str:
    """The text with the input's name in place of every verl key."""
    return _DOTTED.sub(lambda found: names.get(found[0], found[0]), text)
