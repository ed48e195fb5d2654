"""Ledger rows of verl's optimizers and learning-rate schedules, which actor and critic share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.compat.ledger.key_mapping import (
    UNSET,
    ForeignValues,
    InactiveCheck,
    KeyMapping,
    ReadFunction,
    any_inactive,
    empty,
    mapped,
    no_effect,
    not_on_page,
    only,
    placement,
    refused,
    unless,
    written_by,
)
from strop.compat.ledger.value_types import ANY, BETAS, INTEGER, NUMBER, STRING, nullable, number_list, one_of
from strop.compat.verl import switches
from strop.config.schema import Run
from strop.config.schema.algorithm import PpoConfig
from strop.config.schema.optimizer import SgdConfig
from strop.config.schema.schedule import (
    CosineScheduleConfig,
    DecayScheduleConfig,
    ScheduleConfig,
    WsdScheduleConfig,
)
from strop.config.step_arithmetic import to_steps

OPTIM = "actor_rollout_ref.actor.optim"
OVERWRITTEN = "verl overwrites it with the length of the run; write trainer.total_training_steps"
"""Note of `optim.total_training_steps`."""
DECAYS = {
    "constant": "constant",
    "linear": "linear",
    "cosine": "cosine",
    "inverse_square_root": "inverse_sqrt",
    "WSD": "wsd",
}
"""Megatron's names of the decay styles, each with Strop's schedule type. The page has the first four."""


def fsdp_schedule(foreign: ForeignValues, optim: str) -> Mapping[str, Any]:
    """Read an FSDP schedule from the section `optim`; returns schedule fields by their last name."""
    if _strategy(foreign, optim) == "torchtitan":
        return _torchtitan_schedule(foreign, optim)
    kind = foreign[f"{optim}.warmup_style"]
    settings = {"type": kind, "interval": "steps", "warmup": _warmup(foreign, optim, None)}
    if kind == "cosine":
        settings["min_ratio"] = foreign[f"{optim}.min_lr_ratio"]
        settings["cycles"] = foreign[f"{optim}.num_cycles"]
    return settings | _veomni_ends(foreign, optim, kind)


def _strategy(foreign: ForeignValues, optim: str) -> Any:
    """The strategy of actor or critic; the SFT trainer has it as its engine's."""
    return foreign["engine.strategy" if optim == "optim" else f"{optim.removesuffix('.optim')}.strategy"]


def _torchtitan_schedule(foreign: ForeignValues, optim: str) -> Mapping[str, Any]:
    """Read torchtitan's schedule: after the warm-up the rate falls to `min_lr_factor` at the end of the run."""
    kind, last = foreign[f"{optim}.decay_type"], foreign[f"{optim}.min_lr_factor"]
    settings = {"interval": "steps", "warmup": _warmup(foreign, optim, None)}
    if last >= 1:
        return settings | {"type": "constant"}
    if kind == "sqrt":
        raise foreign.error_for(
            f"{optim}.decay_type",
            f"{optim}.decay_type is sqrt, which Strop has only as the last part of a schedule; write linear or "
            "cosine, or a run file with trainer.schedule.type: wsd and style: minus_sqrt.",
        )
    return settings | {"type": kind, "min_ratio": last}


def _veomni_ends(foreign: ForeignValues, optim: str, kind: str) -> dict[str, Any]:
    """First and last rate of VeOmni's schedule, which it has as rates; none under another strategy."""
    if not foreign.has_row(f"{optim}.lr_min") or not (
        foreign.is_set(f"{optim}.lr_min") or foreign.is_set(f"{optim}.lr_start")
    ):
        return {}
    ends = {"start_ratio": _fraction(foreign, optim, "lr_start")}
    return ends | ({"min_ratio": _fraction(foreign, optim, "lr_min")} if kind == "cosine" else {})


def megatron_schedule(foreign: ForeignValues, optim: str) -> Mapping[str, Any]:
    """Read a Megatron schedule from the section `optim`; returns schedule fields by their last name. Strop's
    rates are fractions of the peak rate. Megatron's warm-up ratio is a fraction of `lr_decay_steps`."""
    kind, length = DECAYS[decay_style(foreign, optim)], foreign[f"{optim}.lr_decay_steps"]
    settings = {
        "type": kind,
        "interval": "steps",
        "warmup": _warmup(foreign, optim, length),
        "start_ratio": _fraction(foreign, optim, "lr_warmup_init"),
    }
    if kind == "constant":
        return settings
    settings["min_ratio"] = _fraction(foreign, optim, "min_lr")
    if length is not None:
        settings["length"] = f"{length} steps"
    if kind == "inverse_sqrt" and settings["warmup"] in ("0 steps", "0.0 %", "0 %"):
        settings["timescale"] = "1 steps"
    if kind == "wsd":
        decay = foreign[f"{optim}.lr_wsd_decay_steps"]
        if decay is None:
            raise foreign.error_for(
                f"{optim}.lr_decay_style",
                f"{optim}.lr_decay_style is WSD; also write {optim}.lr_wsd_decay_steps, in steps.",
            )
        settings["decay"] = f"{decay} steps"
        settings["style"] = foreign[f"{optim}.lr_wsd_decay_style"]
    return settings


def decay_style(foreign: ForeignValues, optim: str) -> str:
    """Megatron's decay style: where it is not set, linear as on the seed page, and constant since verl 0.6."""
    key = f"{optim}.lr_decay_style"
    return str(foreign[key]) if foreign.is_set(key) or not switches.is_later(foreign) else "constant"


def requires_megatron(run: Run) -> bool:
    """Whether only Megatron's keys can express the run's schedules, optimizer or weight decay."""
    schedules = [run.trainer.schedule]
    if isinstance(run.algorithm, PpoConfig):
        schedules.append(run.algorithm.critic.schedule)
    return (
        isinstance(run.trainer.optimizer, SgdConfig)
        or run.trainer.weight_decay_increase is not None
        or any(
            schedule.type not in ("constant", "cosine")
            or schedule.start_ratio
            or getattr(schedule, "length", None)
            for schedule in schedules
        )
    )


def schedule_values(run: Run, schedule: ScheduleConfig, lr: float, optim: str) -> dict[str, Any]:
    """The keys of the section `optim` for a schedule whose peak rate is `lr`."""
    names = {name: foreign_name for foreign_name, name in DECAYS.items()}
    values: dict[str, Any] = {}
    warmup = to_steps(run, schedule.warmup)
    if warmup is not None and warmup.unit == "%":
        values["lr_warmup_steps_ratio"] = round(warmup.count / 100, 12)
    elif warmup is not None and warmup.unit == "steps" and warmup.count > 0:
        values["lr_warmup_steps"] = int(warmup.count)
    if not requires_megatron(run):
        values["warmup_style"] = schedule.type
        if isinstance(schedule, CosineScheduleConfig):
            values |= {"min_lr_ratio": schedule.min_ratio, "num_cycles": schedule.cycles}
    else:
        values |= {"lr_decay_style": names.get(schedule.type), "lr_warmup_init": schedule.start_ratio * lr}
        if isinstance(schedule, DecayScheduleConfig):
            length = None if schedule.length is None else to_steps(run, schedule.length)
            if length is not None and length.unit == "steps":
                values["lr_decay_steps"] = int(length.count)
            values["min_lr"] = schedule.min_ratio * lr
        if isinstance(schedule, WsdScheduleConfig):
            decay = to_steps(run, schedule.decay)
            if decay is None or decay.unit != "steps":
                values["lr_decay_style"] = None
            else:
                values |= {"lr_wsd_decay_steps": int(decay.count), "lr_wsd_decay_style": schedule.style}
    return {f"{optim}.{name}": value for name, value in values.items()}


def by_steps(foreign: ForeignValues, optim: str) -> bool:
    """Whether the warm-up is set in steps; with null or a negative number of steps, the ratio applies."""
    steps = foreign[f"{optim}.lr_warmup_steps"]
    return steps is not None and bool(steps >= 0)


def _warmup(foreign: ForeignValues, optim: str, length: int | None) -> str:
    if by_steps(foreign, optim):
        return f"{foreign[f'{optim}.lr_warmup_steps']} steps"
    ratio = foreign[f"{optim}.lr_warmup_steps_ratio"]
    return f"{round(100 * ratio, 10)} %" if length is None else f"{int(ratio * length)} steps"


def _fraction(foreign: ForeignValues, optim: str, key: str) -> float:
    """A rate as a fraction of the peak rate."""
    rate, highest = foreign[f"{optim}.{key}"], foreign[f"{optim}.lr"]
    if not 0 <= rate <= highest:
        raise foreign.error_for(
            f"{optim}.{key}", f"{optim}.{key} ({rate}) must be between 0 and {optim}.lr ({highest})."
        )
    return float(f"{rate / highest:.12g}") if highest else 0.0


def write_schedule(run: Run) -> Mapping[str, Any]:
    """Write the schedule with the keys of the strategy that supports it."""
    values = schedule_values(run, run.trainer.schedule, run.trainer.optimizer.lr, OPTIM)
    return values | ({"actor_rollout_ref.actor.strategy": "megatron"} if requires_megatron(run) else {})


@written_by(write_schedule)
def schedule(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the schedule from the keys of the strategy."""
    settings = (
        megatron_schedule(foreign, OPTIM) if not switches.megatron(foreign) else fsdp_schedule(foreign, OPTIM)
    )
    return {f"trainer.schedule.{name}": value for name, value in settings.items()}


def write_clipping(run: Run) -> Mapping[str, Any]:
    """Write the gradient norm bound with the strategy's key; for Megatron, 0 means no bound."""
    bound = run.trainer.max_grad_norm
    return (
        {f"{OPTIM}.clip_grad": bound or 0.0}
        if requires_megatron(run)
        else {"actor_rollout_ref.actor.grad_clip": bound}
    )


@written_by(write_clipping)
def clipping(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the gradient norm bound: `optim.clip_grad` under Megatron and where it is set, else `grad_clip`."""
    bound = foreign["actor_rollout_ref.actor.grad_clip"]
    if not switches.megatron(foreign) or foreign.is_set(f"{OPTIM}.clip_grad"):
        bound = foreign[f"{OPTIM}.clip_grad"] or None
    return {"trainer.max_grad_norm": bound}


def write_betas(run: Run) -> Mapping[str, Any]:
    """Write AdamW's betas under FSDP; Megatron has no key for them."""
    adamw_betas = getattr(run.trainer.optimizer, "betas", None)
    return {} if adamw_betas is None or requires_megatron(run) else {f"{OPTIM}.betas": list(adamw_betas)}


@written_by(write_betas)
def betas(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read AdamW's betas under FSDP; Megatron always uses its own betas, which equal Strop's defaults."""
    return (
        {} if switches.fsdp(foreign) else {"trainer.optimizer.betas": number_list(foreign[f"{OPTIM}.betas"])}
    )


_WSD = ("constant", "exponential", "cosine", "linear", "minus_sqrt")
ADAMW = ("adam", "AdamW", "adamw", "_AdamW", "FusedAdam")
_MOMENTUM = 0.9
"""Momentum of Megatron's SGD; verl has no key for it."""


def write_optimizer(run: Run) -> Mapping[str, Any]:
    """Write the optimizer, unless it is FSDP's AdamW."""
    return {f"{OPTIM}.optimizer": "sgd"} if isinstance(run.trainer.optimizer, SgdConfig) else {}


@written_by(write_optimizer)
def optimizer(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the optimizer: AdamW under every strategy, or Megatron's sgd, which has momentum."""
    key = f"{OPTIM}.optimizer"
    name = foreign[key]
    if name in ADAMW:
        return {}
    if name == "sgd" and not switches.megatron(foreign):
        return {"trainer.optimizer.type": "sgd", "trainer.optimizer.momentum": _MOMENTUM}
    if not foreign.is_set(key):
        return {}
    raise foreign.error_for(
        key,
        f"{key} is {name}; Strop reads AdamW, and sgd under Megatron. Another optimizer needs a run file.",
    )


def write_weight_decay_schedule(run: Run) -> Mapping[str, Any]:
    """Write the style of the weight decay increase, if any; verl has no key for its start."""
    increase = run.trainer.weight_decay_increase
    return {} if increase is None else {f"{OPTIM}.weight_decay_incr_style": increase.style}


@written_by(write_weight_decay_schedule)
def weight_decay_schedule(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the weight decay increase; verl passes Megatron the same weight decay as its start and its end."""
    style = foreign[f"{OPTIM}.weight_decay_incr_style"]
    if switches.megatron(foreign) or style == "constant":
        return {}
    return {
        "trainer.weight_decay_increase.style": style,
        "trainer.weight_decay_increase.start": foreign[f"{OPTIM}.weight_decay"],
    }


def schedule_rows(
    optim: str,
    at: str,
    read: ReadFunction,
    inactive: InactiveCheck,
    falling: InactiveCheck,
    wsd: InactiveCheck,
) -> dict[str, KeyMapping]:
    """Rows of Megatron's schedule keys in the section `optim`, by last name. `at` is the run-file section
    that has the schedule."""
    section = f"{at}.schedule"

    def row(name: str, default: Any, field: str, **more: Any) -> KeyMapping:
        return mapped(
            f"{optim}.{name}", default, f"{section}.{field}", read=read, **{"inactive": inactive, **more}
        )

    rows = (
        row("lr_warmup_init", 0.0, "start_ratio", note="a fraction of lr in the run file"),
        row("lr_decay_steps", None, "length", value_type=nullable(INTEGER), inactive=falling),
        row(
            "lr_decay_style",
            "linear",
            "type",
            value_type=one_of(*DECAYS),
            note="verl accepts WSD, which is not on the page; constant by default since 0.6",
        ),
        row("min_lr", 0.0, "min_ratio", inactive=falling, note="a fraction of lr in the run file"),
        row("lr_wsd_decay_style", "exponential", "style", value_type=one_of(*_WSD), inactive=wsd),
        row("lr_wsd_decay_steps", None, "decay", value_type=nullable(INTEGER), inactive=wsd),
    )
    return {found.key.rpartition(".")[2]: found for found in rows}


_MEGATRON_SCHEDULE = schedule_rows(
    OPTIM, "trainer", schedule, switches.megatron, switches.falling, switches.wsd
)


def _torchtitan_rows(
    section: str, at: str, read: ReadFunction, *more: InactiveCheck
) -> tuple[KeyMapping, ...]:
    """Rows of torchtitan's schedule: linear by default, from the end of the warm-up to the end of the run."""
    inactive = any_inactive(*more, unless(f"{section}.strategy", "torchtitan"))
    return (
        refused(f"{section}.optim.eps", 1e-8, "AdamW's epsilon is 1e-8; leave it 1e-8"),
        mapped(
            f"{section}.optim.decay_type",
            "linear",
            f"{at}.schedule.type",
            read=read,
            value_type=one_of("linear", "cosine", "sqrt"),
            inactive=inactive,
            note="torchtitan's decay, from the end of the warm-up to the end of the run",
        ),
        mapped(
            f"{section}.optim.min_lr_factor",
            0.0,
            f"{at}.schedule.min_ratio",
            read=read,
            inactive=inactive,
            note="torchtitan's last rate, as a fraction of lr; 1 is a constant rate",
        ),
    )


_MUON_NAMES = (
    *("muon_momentum", "muon_nesterov", "muon_split_qkv", "muon_scale_mode", "muon_coefficient_type"),
    *("muon_num_ns_steps", "muon_tp_mode", "muon_fp32_matmul_prec", "muon_extra_scale_factor"),
    *("muon_scalar_optimizer", "muon_match_adamw_update_rms"),
)
MUON = tuple(f"{at}.optim.{name}" for at in ("actor_rollout_ref.actor", "critic") for name in _MUON_NAMES)
"""Options of Megatron's Muon."""
_LISTED = (
    mapped(
        f"{OPTIM}.optimizer",
        "adam",
        "trainer.optimizer.type",
        read=optimizer,
        value_type=STRING,
        note="sgd has Megatron's momentum of 0.9",
    ),
    mapped(
        f"{OPTIM}.clip_grad",
        1.0,
        "trainer.max_grad_norm",
        read=clipping,
        note="0 means no bound; since 0.8 it also counts under FSDP, instead of grad_clip",
    ),
    _MEGATRON_SCHEDULE["lr_warmup_init"],
    _MEGATRON_SCHEDULE["lr_decay_steps"],
    _MEGATRON_SCHEDULE["lr_decay_style"],
    _MEGATRON_SCHEDULE["min_lr"],
    mapped(f"{OPTIM}.weight_decay", 0.01, "trainer.optimizer.weight_decay", value_type=NUMBER),
    mapped(
        f"{OPTIM}.weight_decay_incr_style",
        "constant",
        "trainer.weight_decay_increase.style",
        "trainer.weight_decay_increase.start",
        read=weight_decay_schedule,
        value_type=one_of("constant", "linear", "cosine"),
        inactive=switches.megatron,
        note="verl starts and ends the increase at weight_decay",
    ),
    _MEGATRON_SCHEDULE["lr_wsd_decay_style"],
    _MEGATRON_SCHEDULE["lr_wsd_decay_steps"],
    no_effect(
        f"{OPTIM}.use_checkpoint_opt_param_scheduler",
        False,
        "a resumed run always keeps its schedule; a changed schedule is refused",
    ),
    mapped(f"{OPTIM}.lr", 1e-6, "trainer.optimizer.lr"),
    mapped(
        f"{OPTIM}.lr_warmup_steps",
        -1,
        "trainer.schedule.warmup",
        read=schedule,
        value_type=nullable(INTEGER),
        note="a negative value means that the ratio applies",
    ),
    mapped(
        f"{OPTIM}.lr_warmup_steps_ratio",
        0.0,
        "trainer.schedule.warmup",
        read=schedule,
        inactive=switches.warmup_ratio,
    ),
    mapped(
        f"{OPTIM}.min_lr_ratio", 0.0, "trainer.schedule.min_ratio", read=schedule, inactive=switches.cosine
    ),
    mapped(f"{OPTIM}.num_cycles", 0.5, "trainer.schedule.cycles", read=schedule, inactive=switches.cosine),
    mapped(
        f"{OPTIM}.warmup_style",
        "constant",
        "trainer.schedule.type",
        read=schedule,
        value_type=one_of("constant", "cosine"),
        inactive=switches.fsdp,
    ),
    no_effect(f"{OPTIM}.total_training_steps", -1, OVERWRITTEN, value_type=nullable(INTEGER)),
)
_UNLISTED = not_on_page(
    mapped(
        f"{OPTIM}.betas",
        [0.9, 0.999],
        "trainer.optimizer.betas",
        read=betas,
        value_type=BETAS,
        inactive=switches.fsdp,
    ),
    *(
        mapped(
            f"{OPTIM}.{name}",
            0.0,
            f"trainer.schedule.{field}",
            read=schedule,
            inactive=switches.fsdp,
            note="a rate, of VeOmni's schedule; a fraction of lr in the run file",
        )
        for name, field in (("lr_min", "min_ratio"), ("lr_start", "start_ratio"))
    ),
    refused(f"{OPTIM}.lr_decay_ratio", 1.0, "the rate decays until the end of the run; write 1.0"),
    refused(f"{OPTIM}.zero_indexed_step", True, "the schedule counts steps from 0; leave it True"),
    placement(
        f"{OPTIM}.optimizer_impl", "torch.optim", "Strop's own optimizer", supported=only("torch.optim")
    ),
    *(
        placement(f"{OPTIM}.{name}", default, "the optimizer's state is in float32", supported=only(default))
        for name, default in (
            ("use_precision_aware_optimizer", False),
            ("main_grads_dtype", "fp32"),
            ("exp_avg_dtype", "fp32"),
            ("exp_avg_sq_dtype", "fp32"),
            ("use_layer_wise_distributed_optimizer", False),
        )
    ),
    *(
        placement(
            f"{OPTIM}.override_optimizer_config.{name}",
            UNSET,
            "the optimizer's state is in float32, on the device that trains",
            supported=only(UNSET),
            value_type=ANY,
        )
        for name in (
            "optimizer_cpu_offload",
            "optimizer_offload_fraction",
            "offload_fraction",
            "overlap_cpu_optimizer_d2h_h2d",
            "use_precision_aware_optimizer",
            "fp8_recipe",
            "foreach",
            "fused",
        )
    ),
    refused(
        f"{OPTIM}.override_optimizer_config.*",
        UNSET,
        "Strop does not know this option of the optimizer; write the optimizer's own keys",
        supported=empty,
    ),
    *_torchtitan_rows("actor_rollout_ref.actor", "trainer", schedule),
    *(
        no_effect(key, UNSET, "it is an option of Muon, which Strop does not have", value_type=ANY)
        for key in MUON
    ),
)
ROWS = (*_LISTED, *_UNLISTED)
