"""Ledger rows of Trinity's sample strategies and of the auxiliary buffers with demonstrations that some strategies
read."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from strop.compat.ledger.key_mapping import (
    INTEGER,
    MAPPING,
    NUMBER,
    STRING,
    UNSET,
    ForeignValues,
    InactiveCheck,
    KeyMapping,
    also_inactive,
    mapped,
    no_effect,
    no_effects,
    not_on_page,
    nullable,
    one_of,
    only,
    placement,
    refused,
    written_by,
)
from strop.compat.trinity import formats
from strop.compat.trinity.formats import AUXILIARY, write_answer_columns
from strop.compat.trinity.presets import MIXED, algorithm_type, is_offline, option, preset
from strop.config.schema import Run
from strop.config.schema.trainer import StalenessSelectionConfig, WarmupSelectionConfig

_ARGS = "algorithm.sample_strategy_args"
_NAME = f"{_ARGS}.sft_dataset_name"
_MAX_STALENESS = f"{_ARGS}.max_staleness"
_STEPS = "buffer.trainer_input.sft_warmup_steps"
_DATASET = "buffer.trainer_input.sft_warmup_dataset"
_STRATEGIES = ("default", "mix", "warmup", "staleness_control")


def _strategy(foreign: ForeignValues) -> str:
    return option(foreign, "sample_strategy", preset(foreign).sample)


def _warms_up(foreign: ForeignValues) -> bool:
    return _strategy(foreign) == "warmup" and bool(foreign[_STEPS])


def _read_from(foreign: ForeignValues) -> tuple[str, str]:
    """The name of the demonstrations that the strategy reads, and the section that configures them."""
    if foreign.is_set(f"{_DATASET}.path"):
        return "sft_warmup_dataset", _DATASET
    return foreign[_NAME], f"{AUXILIARY}.{foreign[_NAME]}"


def write_batch_selection(run: Run) -> Mapping[str, Any]:
    """Write the sample strategy where it differs from the type's own."""
    match run.trainer.batch_selection:
        case WarmupSelectionConfig(steps=steps):
            return {"algorithm.sample_strategy": "warmup", _STEPS: int(steps.count)}
        case StalenessSelectionConfig(max_staleness=oldest):
            own = int(oldest.count) + 1
            return {"algorithm.sample_strategy": "staleness_control", _MAX_STALENESS: own}
        case _:
            return {}


@written_by(write_batch_selection)
def batch_selection(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the batch selection. The strategy mix requires the algorithm mix and the reverse; sft, cpt and dpo
    accept only their own."""
    own, name = preset(foreign).sample, _strategy(foreign)
    if name != own and (own == "mix" or name == "mix" or is_offline(foreign)):
        raise foreign.error_for(
            "algorithm.sample_strategy",
            f"algorithm.sample_strategy {name} is incompatible with algorithm_type "
            f"{algorithm_type(foreign)}; write {own}, or remove it.",
        )
    if _warms_up(foreign):
        return {
            "trainer.batch_selection.type": "warmup",
            "trainer.batch_selection.steps": f"{foreign[_STEPS]} steps",
            "trainer.batch_selection.demonstrations": _read_from(foreign)[0],
        }
    oldest = foreign[_MAX_STALENESS]
    if name != "staleness_control" or oldest is None:
        return {}
    if oldest < 1:
        raise foreign.error_for(
            _MAX_STALENESS,
            f"{_MAX_STALENESS} ({oldest}) would drop all rollouts: it counts from the step that trains, and "
            "the newest possible weights are those of the step before. Write 1 or more.",
        )
    return {
        "trainer.batch_selection.type": "staleness",
        "trainer.batch_selection.max_staleness": f"{int(oldest) - 1} steps",
    }


def write_auxiliary(run: Run) -> Mapping[str, Any]:
    """Write the demonstrations that a sample strategy reads, each dataset under its name."""
    values: dict[str, Any] = {}
    for dataset in run.data.demonstrations:
        values |= write_answer_columns(f"{AUXILIARY}.{dataset.name}", dataset)
        values[_NAME] = dataset.name
    return values


@written_by(write_auxiliary)
def auxiliary_data(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the demonstrations of the strategy; under mix they are the expert's responses."""
    if _auxiliary_off(foreign):
        return {}
    (name, at), buffers = _read_from(foreign), foreign[AUXILIARY] or {}
    if at != _DATASET and name not in buffers:
        there = f"the buffers are {', '.join(buffers)}" if buffers else "no buffer is configured"
        raise foreign.error_for(
            AUXILIARY,
            f"sample_strategy {_strategy(foreign)} reads the auxiliary buffer {AUXILIARY}.{name}, but "
            f"{there}. Rename the buffer, or write its name in {_NAME}.",
        )
    others = [other for other in buffers if f"{AUXILIARY}.{other}" != at]
    if others:
        raise foreign.error_for(
            f"{AUXILIARY}.{others[0]}",
            f"{AUXILIARY}.{others[0]} is not used: sample_strategy {_strategy(foreign)} reads only {at}. "
            f"Remove it, or write its name in {_NAME}.",
        )
    settings = {"name": name, **formats.row_source(foreign, at), **formats.answer_columns(foreign, at)}
    expert = {"algorithm.expert": name} if algorithm_type(foreign) in MIXED else {}
    return {"data.demonstrations": [settings], **expert}


def _auxiliary_off(foreign: ForeignValues) -> str | None:
    """The reason why no demonstrations are read, or None."""
    if algorithm_type(foreign) in MIXED or _warms_up(foreign):
        return None
    if _strategy(foreign) == "warmup":
        return f"{_STEPS} is {foreign[_STEPS]}"
    kind = algorithm_type(foreign)
    return f"algorithm_type {kind} with sample_strategy {_strategy(foreign)} reads no demonstrations"


def _only_strategy(name: str) -> InactiveCheck:
    return lambda foreign: None if _strategy(foreign) == name else f"sample_strategy is {_strategy(foreign)}"


def _idle(foreign: ForeignValues) -> str | None:
    """Notice about a strategy that selects nothing, because its argument is not set."""
    if _strategy(foreign) == "warmup" and not _warms_up(foreign):
        return f"there is no warm-up, because {_STEPS} is {foreign[_STEPS]}"
    if _strategy(foreign) == "staleness_control" and foreign[_MAX_STALENESS] is None:
        return f"no rollout is dropped, because {_MAX_STALENESS} is not set"
    return None


def _no_dataset(foreign: ForeignValues) -> str | None:
    return _auxiliary_off(foreign) or (f"{_DATASET} is set" if foreign.is_set(f"{_DATASET}.path") else None)


_REPEATED = "demonstrations are repeated as long as the run needs them"
_QUEUES = "applies only to queues, and demonstrations are in a file or a database"


def _rows(at: str, inactive: InactiveCheck) -> tuple[KeyMapping, ...]:
    """Rows of one buffer of demonstrations."""
    field = "data.demonstrations.0"
    rows = (
        placement(
            f"{at}.name",
            None,
            "the table name in a database; otherwise unused, because there is no actor",
            fields=(f"{field}.table",),
            read=auxiliary_data,
        ),
        mapped(
            f"{at}.storage_type",
            None,
            f"{field}.path",
            read=auxiliary_data,
            value_type=nullable(one_of("file", "sql", "queue")),
            note="file or sql; demonstrations cannot come from a queue",
        ),
        *formats.source_rows(at, auxiliary_data, field),
        *formats.format_rows(at, auxiliary_data, field, answer="response"),
        formats.turns_row(at, auxiliary_data, field, inactive),
        refused(
            f"{at}.format.chat_template",
            None,
            "a run has one chat template; write model.custom_chat_template",
            supported=only(None, ""),
        ),
        no_effect(f"{at}.max_read_timeout", 1800, _QUEUES, value_type=NUMBER),
        no_effect(f"{at}.use_priority_queue", False, _QUEUES),
        no_effect(f"{at}.reuse_cooldown_time", None, _QUEUES, value_type=nullable(NUMBER)),
        *not_on_page(
            mapped(
                f"{at}.format.image_key",
                None,
                f"{field}.images",
                read=auxiliary_data,
                value_type=nullable(STRING),
                note=formats.UNMARKED_IMAGES,
            ),
            no_effect(f"{at}.enable_progress_bar", False, "data are read without a progress bar"),
            *no_effects(
                at,
                ("total_epochs", "total_steps", "schema_type", "index", "batch_size", "max_retry_times"),
                _REPEATED,
            ),
        ),
        refused(f"{at}.*", UNSET, "a buffer of demonstrations has no such key; remove it"),
    )
    return tuple(also_inactive(row, inactive) for row in rows)


_auxiliary_data_row = partial(mapped, read=auxiliary_data)
_row = partial(mapped, read=batch_selection)
ROWS = (
    _row(
        "algorithm.sample_strategy",
        None,
        "trainer.batch_selection",
        value_type=nullable(one_of(*_STRATEGIES)),
        note="default: mix under algorithm_type mix, which also reads expert responses; else default",
        warn=_idle,
    ),
    _auxiliary_data_row(
        AUXILIARY,
        None,
        "data.demonstrations",
        value_type=nullable(MAPPING),
        inactive=_auxiliary_off,
        note="mix and warmup read one of the buffers, the other strategies none",
    ),
    *_rows(f"{AUXILIARY}.*", _no_dataset),
    *not_on_page(
        _auxiliary_data_row(
            _NAME,
            "sft_dataset",
            "data.demonstrations.0.name",
            "algorithm.expert",
            "trainer.batch_selection.demonstrations",
            inactive=_no_dataset,
        ),
        _row(
            _MAX_STALENESS,
            None,
            "trainer.batch_selection.max_staleness",
            value_type=nullable(NUMBER),
            inactive=_only_strategy("staleness_control"),
            note="counts from the step that trains, so it is one more than in a run file; null means no bound",
        ),
        _row(
            _STEPS,
            None,
            "trainer.batch_selection.steps",
            value_type=nullable(INTEGER),
            inactive=_only_strategy("warmup"),
            note="current versions of Trinity-RFT use stages instead",
        ),
        _auxiliary_data_row(
            _DATASET, None, "data.demonstrations", value_type=nullable(MAPPING), inactive=_auxiliary_off
        ),
        *_rows(_DATASET, _auxiliary_off),
    ),
)
