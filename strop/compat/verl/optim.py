"""Ledger rows of verl's optimizers and learning-rate schedules, which actor, critic and the SFT trainer share.

verl's schedules count trainer steps, not optimizer updates. The engine decides which keys have an effect: under
Megatron FSDP's are inactive, and the reverse. The strategy is placement: `--here` overrides `strategy=megatron` and
keeps its optimizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from strop.compat.ledger.key_mapping import (
    ANY,
    BETAS,
    INTEGER,
    UNSET,
    ForeignValues,
    InactiveCheck,
    KeyMapping,
    ReadFunction,
    ValueType,
    any_inactive,
    empty,
    mapped,
    no_effect,
    not_on_page,
    nullable,
    number_list,
    one_of,
    only,
    placement,
    refused,
    unless,
    written_by,
)
from strop.compat.verl import switches
from strop.config.schema import Run
from strop.config.schema.algorithm import PpoConfig
from strop.config.schema.optimizer import (
    CosineScheduleConfig,
    DecayScheduleConfig,
    ScheduleConfig,
    SgdConfig,
    WsdScheduleConfig,
)
from strop.config.schema.run import to_steps

OPTIM = "actor_rollout_ref.actor.optim"
_OVERWRITTEN = "verl overwrites it with the length of the run; write trainer.total_training_steps"
"""Note of `optim.total_training_steps`."""
_DECAYS = {
    "constant": "constant",
    "linear": "linear",
    "cosine": "cosine",
    "inverse_square_root": "inverse_sqrt",
    "WSD": "wsd",
}
"""Megatron's names of the decay styles, each with Strop's schedule type."""


def _fsdp_schedule(foreign: ForeignValues, optim: str) -> Mapping[str, Any]:
    kind = foreign[f"{optim}.warmup_style"]
    settings = {"type": kind, "interval": "steps", "warmup": _warmup(foreign, optim, None)}
    if kind == "cosine":
        settings["min_ratio"] = foreign[f"{optim}.min_lr_ratio"]
        settings["cycles"] = foreign[f"{optim}.num_cycles"]
    return settings | _veomni_ends(foreign, optim, kind)


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
    if not (foreign.is_set(f"{optim}.lr_min") or foreign.is_set(f"{optim}.lr_start")):
        return {}
    ends = {"start_ratio": _fraction(foreign, optim, "lr_start")}
    return ends | ({"min_ratio": _fraction(foreign, optim, "lr_min")} if kind == "cosine" else {})


def _megatron_schedule(foreign: ForeignValues, optim: str) -> Mapping[str, Any]:
    """Read a Megatron schedule. Strop's rates are fractions of the peak rate; Megatron's warm-up ratio is a fraction of
    `lr_decay_steps`. The decay style is constant since verl 0.6, where it is not set."""
    is_default = not foreign.is_set(f"{optim}.lr_decay_style") and switches.is_later(foreign)
    kind = "constant" if is_default else _DECAYS[foreign[f"{optim}.lr_decay_style"]]
    length = foreign[f"{optim}.lr_decay_steps"]
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
    names = {name: foreign_name for foreign_name, name in _DECAYS.items()}
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


@dataclass(frozen=True, slots=True)
class OptimizerKeys:
    """Keys of an `optim` section, which actor, critic and the SFT trainer have, and which of them have an effect."""

    section: str
    strategy: str
    """Key of the engine that trains."""
    off: InactiveCheck | None = None
    """Check that finds all keys of the section inactive."""

    def _off(self, foreign: ForeignValues) -> str | None:
        return self.off(foreign) if self.off else None

    def schedule(self, foreign: ForeignValues) -> Mapping[str, Any]:
        """Read the schedule from the keys of the engine; returns schedule fields by their last name."""
        strategy = foreign[self.strategy]
        if strategy in switches.MEGATRON:
            return _megatron_schedule(foreign, self.section)
        read = _torchtitan_schedule if strategy == "torchtitan" else _fsdp_schedule
        return read(foreign, self.section)

    def megatron(self, foreign: ForeignValues) -> str | None:
        """Check of the keys that only Megatron's optimizer has."""
        return self._off(foreign) or unless(self.strategy, *switches.MEGATRON)(foreign)

    def fsdp(self, foreign: ForeignValues) -> str | None:
        """Check of the keys that every engine but Megatron has."""
        strategy = foreign[self.strategy]
        return self._off(foreign) or (
            f"{self.strategy} is {strategy}" if strategy in switches.MEGATRON else None
        )

    def _ratio(self, foreign: ForeignValues) -> str | None:
        steps = f"{self.section}.lr_warmup_steps"
        return self._off(foreign) or (
            f"{steps} is {foreign[steps]} and takes precedence" if by_steps(foreign, self.section) else None
        )

    def warmup_rows(self, at: str, read: ReadFunction) -> tuple[KeyMapping, ...]:
        """Rows of the warm-up, which all engines have, and of FSDP's schedule. `at` is the run-file section that has
        the schedule."""
        row, field = partial(_schedule_row, self.section, read, f"{at}.schedule"), self.section
        cosine = any_inactive(self.fsdp, unless(f"{field}.warmup_style", "cosine"))
        note = "a negative value means that the ratio applies"
        return (
            row("lr_warmup_steps", -1, "warmup", self.off, value_type=nullable(INTEGER), note=note),
            row("lr_warmup_steps_ratio", 0.0, "warmup", self._ratio),
            row("warmup_style", "constant", "type", self.fsdp, value_type=one_of("constant", "cosine")),
            row("min_lr_ratio", 0.0, "min_ratio", cosine),
            row("num_cycles", 0.5, "cycles", cosine),
            no_effect(f"{self.section}.total_training_steps", -1, _OVERWRITTEN, value_type=nullable(INTEGER)),
        )

    def megatron_rows(self, at: str, read: ReadFunction) -> tuple[KeyMapping, ...]:
        """Rows of Megatron's schedule."""
        row, style = (
            partial(_schedule_row, self.section, read, f"{at}.schedule"),
            f"{self.section}.lr_decay_style",
        )
        falling = any_inactive(self.megatron, unless(style, "linear", "cosine", "inverse_square_root", "WSD"))
        wsd = any_inactive(self.megatron, unless(style, "WSD"))
        rate = "a fraction of lr in the run file"
        later = "verl accepts WSD, which the documentation of verl 0.3.1 does not list; constant by default since 0.6"
        return (
            row("lr_warmup_init", 0.0, "start_ratio", self.megatron, note=rate),
            row("lr_decay_steps", None, "length", falling, value_type=nullable(INTEGER)),
            row("lr_decay_style", "linear", "type", self.megatron, value_type=one_of(*_DECAYS), note=later),
            row("min_lr", 0.0, "min_ratio", falling, note=rate),
            row("lr_wsd_decay_style", "exponential", "style", wsd, value_type=one_of(*_WSD)),
            row("lr_wsd_decay_steps", None, "decay", wsd, value_type=nullable(INTEGER)),
            no_effect(
                f"{self.section}.use_checkpoint_opt_param_scheduler",
                False,
                "a resumed run always keeps its schedule",
            ),
        )

    def later_rows(self, at: str, read: ReadFunction, state: Mapping[str, Any]) -> tuple[KeyMapping, ...]:
        """Rows of later versions: the schedules of VeOmni and torchtitan, and options of an optimizer's `state`."""
        row = partial(_schedule_row, self.section, read, f"{at}.schedule")
        torchtitan = any_inactive(self._off, unless(self.strategy, "torchtitan"))
        rate = "a rate, of VeOmni's schedule; a fraction of lr in the run file"
        return (
            row("lr_min", 0.0, "min_ratio", self.fsdp, note=rate),
            row("lr_start", 0.0, "start_ratio", self.fsdp, note=rate),
            row(
                "decay_type",
                "linear",
                "type",
                torchtitan,
                value_type=one_of("linear", "cosine", "sqrt"),
                note="torchtitan's decay, from the end of the warm-up to the end of the run",
            ),
            row(
                "min_lr_factor",
                0.0,
                "min_ratio",
                torchtitan,
                note="torchtitan's last rate, as a fraction of lr; 1 is a constant rate",
            ),
            *(
                refused(f"{self.section}.{name}", default, why, inactive=self.off)
                for name, default, why in (
                    ("eps", 1e-8, "AdamW's epsilon is 1e-8; leave it 1e-8"),
                    ("lr_decay_ratio", 1.0, "the rate decays until the end of the run; write 1.0"),
                    ("zero_indexed_step", True, "the schedule counts steps from 0; leave it True"),
                )
            ),
            *(
                placement(
                    f"{self.section}.{name}",
                    default,
                    "the optimizer's state is in float32, on the device that trains",
                    supported=only(default),
                    value_type=ANY if default in (UNSET, None) else None,
                    inactive=self.off,
                )
                for name, default in {**_OPTIONS, **state}.items()
            ),
            refused(
                f"{self.section}.override_optimizer_config.*",
                UNSET,
                "Strop does not know this option of the optimizer; write the optimizer's own keys",
                supported=empty,
                inactive=self.off,
            ),
        )


def _schedule_row(
    section: str,
    read: ReadFunction,
    at: str,
    name: str,
    default: Any,
    field: str,
    inactive: InactiveCheck | None,
    value_type: ValueType | None = None,
    note: str = "",
) -> KeyMapping:
    return mapped(
        f"{section}.{name}",
        default,
        f"{at}.{field}",
        read=read,
        value_type=value_type,
        inactive=inactive,
        note=note,
    )


_KEYS = OptimizerKeys(OPTIM, "actor_rollout_ref.actor.strategy")
MIXED_STATE = {
    "use_precision_aware_optimizer": False,
    "main_grads_dtype": "fp32",
    "exp_avg_dtype": "fp32",
    "exp_avg_sq_dtype": "fp32",
    "use_layer_wise_distributed_optimizer": False,
}
"""Options of the optimizer's state under Megatron, with their defaults."""
_OPTIONS = {"optimizer_impl": "torch.optim"} | {
    f"override_optimizer_config.{name}": UNSET
    for name in (
        *(
            "optimizer_cpu_offload",
            "optimizer_offload_fraction",
            "offload_fraction",
            "overlap_cpu_optimizer_d2h_h2d",
        ),
        *("use_precision_aware_optimizer", "fp8_recipe", "foreach", "fused"),
    )
}
"""Options of the optimizer that change neither what is learned nor the state's data type."""


def write_schedule(run: Run) -> Mapping[str, Any]:
    """Write the schedule with the keys of the strategy that supports it."""
    values = schedule_values(run, run.trainer.schedule, run.trainer.optimizer.lr, OPTIM)
    return values | ({"actor_rollout_ref.actor.strategy": "megatron"} if requires_megatron(run) else {})


@written_by(write_schedule)
def schedule(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the schedule from the keys of the strategy."""
    return {f"trainer.schedule.{name}": value for name, value in _KEYS.schedule(foreign).items()}


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
    return {"trainer.optimizer.betas": number_list(foreign[f"{OPTIM}.betas"])}


_WSD = ("constant", "exponential", "cosine", "linear", "minus_sqrt")
ADAMW = ("adam", "AdamW", "adamw", "_AdamW", "FusedAdam")
_MOMENTUM = 0.9
"""Momentum of Megatron's SGD; verl has no key for it."""


@written_by(
    lambda run: {f"{OPTIM}.optimizer": "sgd"} if isinstance(run.trainer.optimizer, SgdConfig) else {},
    off={f"{OPTIM}.optimizer": UNSET},
)
def optimizer(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the optimizer: AdamW under every strategy, or Megatron's sgd, which has momentum."""
    key = f"{OPTIM}.optimizer"
    name = foreign[key]
    if name in ADAMW:
        return {}
    if name == "sgd" and not switches.megatron(foreign):
        return {"trainer.optimizer.type": "sgd", "trainer.optimizer.momentum": _MOMENTUM}
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
    if style == "constant":
        return {}
    return {
        "trainer.weight_decay_increase.style": style,
        "trainer.weight_decay_increase.start": foreign[f"{OPTIM}.weight_decay"],
    }


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
        note="sgd has Megatron's momentum of 0.9",
    ),
    mapped(f"{OPTIM}.lr", 1e-6, "trainer.optimizer.lr"),
    mapped(f"{OPTIM}.weight_decay", 0.01, "trainer.optimizer.weight_decay"),
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
    mapped(
        f"{OPTIM}.clip_grad",
        1.0,
        "trainer.max_grad_norm",
        read=clipping,
        note="0 means no bound; since 0.8 it also counts under FSDP, instead of grad_clip",
    ),
    *_KEYS.warmup_rows("trainer", schedule),
    *_KEYS.megatron_rows("trainer", schedule),
)
_UNLISTED = not_on_page(
    mapped(
        f"{OPTIM}.betas",
        [0.9, 0.999],
        "trainer.optimizer.betas",
        read=betas,
        value_type=BETAS,
        inactive=_KEYS.fsdp,
    ),
    *_KEYS.later_rows("trainer", schedule, MIXED_STATE),
    *(no_effect(key, UNSET, "it is an option of Muon, which Strop does not have") for key in MUON),
)
ROWS = (*_LISTED, *_UNLISTED)
