"""Keys of verl that decide which layers of a model are recomputed: of all engines, and Megatron's, which earlier
versions have in `gradient_checkpointing_kwargs`.

Recomputation changes memory and time only. Strop recomputes every layer, or all but its products; where Megatron
recomputes other parts, a notice says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from strop.compat.ledger.key_mapping import (
    UNSET,
    ForeignValues,
    InactiveCheck,
    KeyMapping,
    ReadFunction,
    any_inactive,
    mapped,
    no_effect,
    not_on_page,
    placement,
    written_by,
)
from strop.compat.ledger.value_types import ANY, INTEGER, nullable, one_of
from strop.compat.verl import switches
from strop.config.schema import Run

FIELD = "model.gradient_checkpointing"
_FULL = "Strop recomputes every layer, each from its own input; the results are the same"
_SELECTIVE = (
    "Strop keeps the results of matrix products and attention kernels and recomputes the rest of each layer; the "
    "results are the same"
)
_OFFLOADED = "the inputs of recomputed layers are offloaded; write enable_gradient_checkpointing=True"
_OPTIONS = ("granularity", "method", "num_layers", "modules")


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
            value_type=ANY,
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


_ACTOR = RecomputedModel("actor_rollout_ref.model", "actor_rollout_ref.actor", switches.megatron)


def write_recomputation(run: Run) -> Mapping[str, Any]:
    """Write whether layers are recomputed, and their inputs offloaded."""
    return {
        _ACTOR.switch: bool(run.model.gradient_checkpointing),
        _ACTOR.offload: run.model.activation_offload,
    }


@written_by(write_recomputation)
def recomputation(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read what is recomputed and offloaded."""
    return {FIELD: _ACTOR.recomputes(foreign), "model.activation_offload": _ACTOR.offloads(foreign)}


SWITCH_ROWS = (
    mapped(_ACTOR.switch, False, FIELD, read=recomputation),
    _ACTOR.offload_row("model.activation_offload", recomputation),
)
EARLIER_ROWS = _ACTOR.earlier_rows(FIELD, recomputation)
MEGATRON_ROWS = _ACTOR.megatron_rows(FIELD, recomputation)
"""Rows of Megatron's own options."""
REFERENCE_ROWS = tuple(
    no_effect(
        f"actor_rollout_ref.ref.megatron.override_transformer_config.recompute_{name}",
        UNSET,
        "the reference model is not trained, so that nothing of it is recomputed",
        value_type=ANY,
    )
    for name in _OPTIONS
)
"""Rows of Megatron's options for the reference model, whose forward pass no backward pass follows."""
