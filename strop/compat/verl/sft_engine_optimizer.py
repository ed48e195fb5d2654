"""Ledger rows of the section `optim` of verl's `sft_trainer_engine.yaml`: optimizer and schedule, by engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.compat.ledger.key_mapping import (
    UNSET,
    ForeignValues,
    any_inactive,
    mapped,
    no_effect,
    only,
    placement,
    refused,
    unless,
)
from strop.compat.ledger.value_types import (
    ANY,
    BETAS,
    INTEGER,
    nullable,
    one_of,
)
from strop.compat.verl import switches
from strop.compat.verl.lr_schedule import OVERWRITTEN, fsdp_schedule, megatron_schedule
from strop.compat.verl.megatron_optimizer import schedule_rows
from strop.compat.verl.sft_converters import (
    betas,
)

_torchtitan = unless("engine.strategy", "torchtitan")
_megatron = unless("engine.strategy", *switches.MEGATRON)
_falling = any_inactive(
    _megatron, unless("optim.lr_decay_style", "linear", "cosine", "inverse_square_root", "WSD")
)
_wsd = any_inactive(_megatron, unless("optim.lr_decay_style", "WSD"))


def _fsdp(foreign: ForeignValues) -> str | None:
    return None if _megatron(foreign) else "engine.strategy is megatron"


_cosine = any_inactive(_fsdp, unless("optim.warmup_style", "cosine"))


def schedule(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the schedule and the bound of the gradient norm from the keys of the engine."""
    own = fsdp_schedule(foreign, "optim") if _megatron(foreign) else megatron_schedule(foreign, "optim")
    settings = {f"trainer.schedule.{name}": value for name, value in own.items()}
    if foreign.is_set("optim.init_lr_ratio") and foreign["engine.strategy"] == "automodel":
        settings["trainer.schedule.start_ratio"] = foreign["optim.init_lr_ratio"]
    return settings | {"trainer.max_grad_norm": foreign["optim.clip_grad"] or None}


def is_empty(foreign: ForeignValues, value: Any) -> bool:
    """Check that supports null, zero, false and what is empty."""
    return value in (None, {}, [], 0, False)


_SCHEDULE = schedule_rows("optim", "trainer", schedule, _megatron, _falling, _wsd)
ROWS = (
    mapped("optim.lr", 1e-3, "trainer.optimizer.lr"),
    mapped("optim.weight_decay", 0.01, "trainer.optimizer.weight_decay"),
    mapped(
        "optim.betas",
        [0.9, 0.999],
        "trainer.optimizer.betas",
        read=betas,
        value_type=BETAS,
        note="a list, or a list in quotes",
    ),
    mapped("optim.clip_grad", 1.0, "trainer.max_grad_norm", read=schedule, note="0 means no bound"),
    mapped(
        "optim.lr_warmup_steps",
        -1,
        "trainer.schedule.warmup",
        read=schedule,
        value_type=nullable(INTEGER),
        note="a negative value means that the ratio applies",
    ),
    mapped("optim.lr_warmup_steps_ratio", 0.0, "trainer.schedule.warmup", read=schedule),
    mapped(
        "optim.warmup_style",
        "constant",
        "trainer.schedule.type",
        read=schedule,
        value_type=one_of("constant", "cosine"),
        inactive=_fsdp,
    ),
    mapped("optim.min_lr_ratio", 0.0, "trainer.schedule.min_ratio", read=schedule, inactive=_cosine),
    mapped("optim.num_cycles", 0.5, "trainer.schedule.cycles", read=schedule, inactive=_cosine),
    mapped(
        "optim.decay_type",
        "linear",
        "trainer.schedule.type",
        read=schedule,
        value_type=one_of("linear", "cosine", "sqrt"),
        inactive=_torchtitan,
        note="torchtitan's decay, from the end of the warm-up to the end of the run",
    ),
    mapped(
        "optim.min_lr_factor",
        0.0,
        "trainer.schedule.min_ratio",
        read=schedule,
        inactive=_torchtitan,
        note="torchtitan's last rate, as a fraction of lr; 1 is a constant rate",
    ),
    mapped("optim.init_lr_ratio", 0.0, "trainer.schedule.start_ratio", read=schedule, inactive=_fsdp),
    mapped("optim.lr_min", 0.0, "trainer.schedule.min_ratio", read=schedule, inactive=_fsdp),
    mapped("optim.lr_start", 0.0, "trainer.schedule.start_ratio", read=schedule, inactive=_fsdp),
    *_SCHEDULE.values(),
    *(
        refused(f"optim.{name}", default, why, supported=supported)
        for name, default, why, supported in (
            ("lr_decay_ratio", 1.0, "the rate decays until the end of the run; leave it 1", only(1.0)),
            (
                "zero_indexed_step",
                True,
                "the schedule counts steps from 0; leave it at its default",
                only(True),
            ),
            (
                "weight_decay_incr_style",
                "constant",
                "the weight decay is constant; leave it constant",
                only("constant"),
            ),
            (
                "wd_incr_style",
                "constant",
                "the weight decay is constant; leave it constant",
                only("constant"),
            ),
            ("eps", 1e-8, "AdamW's epsilon is 1e-8; leave it 1e-8", only(1e-8)),
            (
                "optimizer",
                "AdamW",
                "Strop reads AdamW here; another optimizer needs a run file",
                only("AdamW", "adam", "adamw", "FusedAdam", "_AdamW"),
            ),
        )
    ),
    *(
        placement(
            f"optim.{name}",
            default,
            "the optimizer's state is in float32",
            supported=only(default),
            value_type=ANY,
        )
        for name, default in (
            ("optimizer_impl", "torch.optim"),
            ("master_weights", False),
            ("store_param_remainders", False),
            ("exp_avg_dtype", None),
            ("exp_avg_sq_dtype", None),
            ("master_weight_dtype", None),
            ("main_grads_dtype", "fp32"),
            ("use_precision_aware_optimizer", False),
        )
    ),
    no_effect("optim.total_training_steps", -1, OVERWRITTEN, value_type=nullable(INTEGER)),
    no_effect("optim.use_checkpoint_opt_param_scheduler", False, "a resumed run always keeps its schedule"),
    *(
        placement(
            f"optim.override_optimizer_config.{name}",
            UNSET,
            "the optimizer's state is in float32, on the device that trains",
            supported=only(UNSET),
            value_type=ANY,
        )
        for name in (
            "optimizer_cpu_offload",
            "optimizer_offload_fraction",
            "overlap_cpu_optimizer_d2h_h2d",
            "use_precision_aware_optimizer",
            "foreach",
            "fused",
        )
    ),
    refused(
        "optim.override_optimizer_config.*",
        UNSET,
        "Strop does not know this option of the optimizer; remove it",
        supported=is_empty,
    ),
)
