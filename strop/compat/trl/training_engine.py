"""TRL's keys for several processes, which become the training engine: `fsdp`, `fsdp_config` and `deepspeed`; and
`gradient_checkpointing`, which FSDP has an option for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from strop.compat.ledger.key_mapping import (
    NO_DEEPSPEED,
    NO_SHARDS,
    ForeignValues,
    KeyMapping,
    mapped,
    placement,
    written_by,
)
from strop.config.load.yaml_file import read_bounded
from strop.config.schema import Run
from strop.config.schema.trainer import DeepSpeedEngineConfig, Fsdp2EngineConfig
from strop.errors import ConfigError
from strop.workers.json_text import parse_json

_HYBRID = ("hybrid_shard", "hybrid_shard_zero2")
_STRATEGIES = ("full_shard", "shard_grad_op", "no_shard", *_HYBRID)
_WRAPS = ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP")
_FSDP_WITHOUT_EFFECT = (
    *("backward_prefetch", "cpu_ram_efficient_loading", "limit_all_gathers", "state_dict_type"),
    *("sync_module_states", "use_orig_params", "xla_fsdp_grad_ckpt", "xla_fsdp_settings", "xla_fsdp_v2"),
)
"""Options that change no result: each rank reads its own part of the weights, checkpoints have one format, and FSDP2
overlaps communication itself. Those of XLA are options of `xla`."""
_KEYS = (
    *("version", "reshard_after_forward", "cpu_offload", "activation_checkpointing", "auto_wrap_policy"),
    *("transformer_layer_cls_to_wrap", "min_num_params", "forward_prefetch", "xla"),
    *_FSDP_WITHOUT_EFFECT,
)


def _without_fsdp(foreign: ForeignValues) -> str | None:
    """`fsdp_config` has an effect only where `fsdp` is on."""
    return None if foreign["fsdp"] else "fsdp is not set"


def _options(foreign: ForeignValues) -> Mapping[str, Any]:
    """The options of `fsdp_config`, with those that an `fsdp` of words sets, as transformers combines them.

    Raises ConfigError for a file that cannot be read and for an option that Strop does not have.
    """
    if _without_fsdp(foreign):
        return {}
    options = {name.removeprefix("fsdp_"): value for name, value in _config(foreign).items()}
    for name in options:
        if name not in _KEYS:
            raise _error(foreign, f"fsdp_config has {name}, which is not supported; remove it.")
    if _is_true(options.get("xla")):
        raise _error(
            foreign, "fsdp_config has xla, which trains on TPUs; Strop has GPUs and CPUs; remove it."
        )
    return _words(foreign) | options


def _config(foreign: ForeignValues) -> Mapping[str, Any]:
    """The mapping of `fsdp_config`, or of the JSON file that it names."""
    found = foreign["fsdp_config"]
    if isinstance(found, str):
        try:
            found = parse_json(read_bounded(Path(found), regular=True))
        except (ValueError, ConfigError) as error:
            raise _error(foreign, f"fsdp_config: {error}") from None
    if found is None:
        return {}
    if not isinstance(found, Mapping):
        raise _error(foreign, f"fsdp_config is {found!r}; write a mapping of options, or a JSON file.")
    return found


def _words(foreign: ForeignValues) -> dict[str, Any]:
    """Options of an `fsdp` in the form of earlier versions, such as "full_shard auto_wrap"."""
    found, options = foreign["fsdp"], dict[str, Any]()
    if found is True:
        return options
    words = found.split() if isinstance(found, str) else found
    for word in words if isinstance(words, list) else [words]:
        if word in _STRATEGIES:
            options["reshard_after_forward"] = word
        elif word == "offload":
            options["cpu_offload"] = True
        elif word != "auto_wrap":
            known = ", ".join((*_STRATEGIES, "offload", "auto_wrap"))
            raise foreign.error_for("fsdp", f"fsdp has {word!r}; write true, or some of {known}.")
    return options


def _layout(foreign: ForeignValues) -> dict[str, Any]:
    """Fields of `trainer.engine` that differ from their defaults. Raises ConfigError for options that contradict."""
    options, ranks = _options(foreign), foreign["num_processes"]
    strategy = str(options.get("reshard_after_forward", True)).lower()
    if strategy in _HYBRID:
        raise _error(
            foreign,
            f"{strategy} keeps a replica of the model per node; write full_shard, or trainer.engine.replicate in a run "
            "file.",
        )
    if strategy not in ("true", "false", *_STRATEGIES):
        raise _error(foreign, f"reshard_after_forward is {strategy}; write true or false.")
    found = {
        "replicate": ranks if strategy == "no_shard" else 1,
        "reshard_after_forward": strategy in ("true", "full_shard", "no_shard"),
        "cpu_offload": _is_true(options.get("cpu_offload")),
        "forward_prefetch": int(_is_first_version(options) and _is_true(options.get("forward_prefetch"))),
    }
    defaults = Fsdp2EngineConfig()
    settings = {name: value for name, value in found.items() if value != getattr(defaults, name)}
    return settings | _wrap(foreign, options)


def _wrap(foreign: ForeignValues, options: Mapping[str, Any]) -> dict[str, Any]:
    policy, layers = options.get("auto_wrap_policy", _WRAPS[0]), options.get("transformer_layer_cls_to_wrap")
    if policy not in _WRAPS:
        raise _error(foreign, f"auto_wrap_policy is {policy}; write one of {', '.join(_WRAPS)}.")
    if policy == "SIZE_BASED_WRAP":
        return {"wrap.min_parameters": options.get("min_num_params", 0)}
    if policy == "NO_WRAP" or not layers:
        return {}
    return {"wrap.layers": layers.split(",") if isinstance(layers, str) else layers}


def _recomputes(foreign: ForeignValues) -> bool:
    """Whether FSDP's own option recomputes the layers."""
    return _is_true(_options(foreign).get("activation_checkpointing"))


def _notice(foreign: ForeignValues) -> str | None:
    """Notice of the options that have no effect, and of what stands in for FSDP's first version."""
    options = _options(foreign)
    first = _is_first_version(options)
    ignored = [name for name in _FSDP_WITHOUT_EFFECT if name in options]
    ignored += ["forward_prefetch"] if "forward_prefetch" in options and not first else []
    ignored += ["auto_wrap_policy"] if options.get("auto_wrap_policy") == "NO_WRAP" else []
    parts = ["FSDP2 stands in for the first version, with the same gradient"] if first else []
    if ignored:
        parts.append(f"without effect, on results too: {', '.join(ignored)}")
    return "; ".join(parts) or None


def _written_config(engine: Fsdp2EngineConfig) -> dict[str, Any]:
    """The options of `fsdp_config` for a layout, without those at their defaults."""
    replicas_only = 1 < engine.replicate == engine.ranks
    options: dict[str, Any] = {}
    if replicas_only or engine.forward_prefetch:
        options["version"] = 1
    if replicas_only:
        options["reshard_after_forward"] = "no_shard"
    elif not engine.reshard_after_forward:
        options["reshard_after_forward"] = "shard_grad_op" if "version" in options else False
    if engine.cpu_offload:
        options["cpu_offload"] = True
    if engine.forward_prefetch:
        options["forward_prefetch"] = True
    if engine.wrap.layers:
        options["transformer_layer_cls_to_wrap"] = list(engine.wrap.layers)
    elif engine.wrap.min_parameters:
        options |= {"auto_wrap_policy": "SIZE_BASED_WRAP", "min_num_params": engine.wrap.min_parameters}
    return options


def _is_first_version(options: Mapping[str, Any]) -> bool:
    return str(options.get("version", 2)) == "1"


def _is_true(value: Any) -> bool:
    return str(value).lower() in ("true", "1", "yes", "y", "on")


def _error(foreign: ForeignValues, reason: str) -> ConfigError:
    key = "fsdp_config" if foreign.is_set("fsdp_config") else "fsdp"
    return foreign.error_for(key, reason)


FIELD = "model.gradient_checkpointing"
_ENGINE = ("trainer.engine.type", "trainer.engine.ranks")


def write_engine(run: Run) -> Mapping[str, Any]:
    """Write the engine, and whether layers are recomputed; selective recomputation is written as true."""
    section = run.trainer.engine
    layout = section if isinstance(section, Fsdp2EngineConfig) else None
    return {
        "deepspeed": section.config if isinstance(section, DeepSpeedEngineConfig) else None,
        "fsdp": True if layout else None,
        "fsdp_config": (_written_config(layout) or None) if layout else None,
        "gradient_checkpointing": bool(run.model.gradient_checkpointing),
    }


@written_by(write_engine)
def engine(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the engine of accelerate's processes, and whether layers are recomputed."""
    recomputed: dict[str, Any] = {FIELD: bool(foreign["gradient_checkpointing"]) or _recomputes(foreign)}
    config = foreign["deepspeed"]
    if foreign.here:
        return recomputed
    if config is not None and foreign["fsdp"]:
        raise foreign.error_for("fsdp", "fsdp and deepspeed both divide the model; write one of them.")
    if config is not None:
        return {**recomputed, **_deepspeed(foreign, config)}
    if not foreign["fsdp"]:
        return recomputed
    settings = {f"trainer.engine.{name}": value for name, value in _layout(foreign).items()}
    return {
        **recomputed,
        "trainer.engine.type": "fsdp2",
        "trainer.engine.ranks": foreign["num_processes"],
        **settings,
    }


def _deepspeed(foreign: ForeignValues, config: Any) -> Mapping[str, Any]:
    if not isinstance(config, str | dict):
        raise foreign.error_for("deepspeed", f"deepspeed is {config!r}; write a JSON file, or its sections.")
    return {
        "trainer.engine.type": "deepspeed",
        "trainer.engine.ranks": foreign["num_processes"],
        "trainer.engine.config": config,
    }


def _unless_here(foreign: ForeignValues, value: Any) -> bool:
    return not value or not foreign.here


def _engine_row(key: str, instead: str, *fields: str) -> KeyMapping:
    return placement(key, None, instead, supported=_unless_here, fields=(*_ENGINE, *fields), read=engine)


_LAYOUT = ("replicate", "reshard_after_forward", "cpu_offload", "forward_prefetch")
ENGINE_ROWS = (
    _engine_row("fsdp", NO_SHARDS),
    replace(
        _engine_row(
            "fsdp_config",
            NO_SHARDS,
            *(f"trainer.engine.{name}" for name in (*_LAYOUT, "wrap.layers", "wrap.min_parameters")),
            FIELD,
        ),
        inactive=_without_fsdp,
        warn=_notice,
    ),
    _engine_row("deepspeed", NO_DEEPSPEED, "trainer.engine.config"),
    mapped("gradient_checkpointing", True, FIELD, read=engine),
)
