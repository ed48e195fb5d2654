"""Trinity's sample strategies, and the auxiliary buffers of given answers that some of them read."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from strop.config.dialects.row import (
    ANY,
    MAPPING,
    NUMBER,
    TEXT,
    UNSET,
    WHOLE,
    YES_NO,
    Off,
    Row,
    also_off,
    always,
    beyond_the_page,
    mapped,
    never,
    no_effect,
    one_of,
    only,
    or_null,
    placement,
    refused,
    written_by,
)
from strop.config.dialects.theirs import Theirs
from strop.config.dialects.trinity import formats
from strop.config.dialects.trinity.presets import kind, preset, said
from strop.config.dialects.trinity.write_buffer import AUXILIARY, write_auxiliary, write_sample

_ARGS = "algorithm.sample_strategy_args"
_NAME = f"{_ARGS}.sft_dataset_name"
_OLDEST = f"{_ARGS}.max_staleness"
_STEPS = "buffer.trainer_input.sft_warmup_steps"
_DATASET = "buffer.trainer_input.sft_warmup_dataset"
_STRATEGIES = ("default", "mix", "warmup", "staleness_control")


def _strategy(theirs: Theirs) -> str:
    return said(theirs, "sample_strategy", preset(theirs).sample)


def _warms_up(theirs: Theirs) -> bool:
    return _strategy(theirs) == "warmup" and bool(theirs[_STEPS])


def _read_from(theirs: Theirs) -> tuple[str, str]:
    """The name of the answers that the strategy reads, and where they are described."""
    if theirs.wrote(f"{_DATASET}.path"):
        return "sft_warmup_dataset", _DATASET
    return theirs[_NAME], f"{AUXILIARY}.{theirs[_NAME]}"


@written_by(write_sample)
def sample(theirs: Theirs) -> Mapping[str, Any]:
    """What a step learns from. mix goes with its algorithm, and with no other; sft and dpo have no choice."""
    own, name = preset(theirs).sample, _strategy(theirs)
    if name != own and (own == "mix" or name == "mix" or kind(theirs) in ("sft", "dpo")):
        raise theirs.fault(
            "algorithm.sample_strategy",
            f"algorithm.sample_strategy {name} does not go with algorithm_type {kind(theirs)} here; write "
            f"{own}, or leave it out.",
        )
    if _warms_up(theirs):
        return {
            "trainer.sample.type": "warmup",
            "trainer.sample.steps": f"{theirs[_STEPS]} steps",
            "trainer.sample.answers": _read_from(theirs)[0],
        }
    oldest = theirs[_OLDEST]
    if name != "staleness_control" or oldest is None:
        return {}
    if oldest < 1:
        raise theirs.fault(
            _OLDEST,
            f"{_OLDEST} ({oldest}) throws everything away: it counts from the step that learns, and the "
            "newest weights there can be are those of the step before. Write 1 or more.",
        )
    return {"trainer.sample.type": "staleness", "trainer.sample.max_staleness": f"{int(oldest) - 1} steps"}


@written_by(write_auxiliary)
def answers(theirs: Theirs) -> Mapping[str, Any]:
    """The one buffer that the strategy reads; under mix it has the expert's answers."""
    if not_read(theirs):
        return {}
    (name, at), buffers = _read_from(theirs), theirs[AUXILIARY] or {}
    if at != _DATASET and name not in buffers:
        there = f"it has {', '.join(buffers)}" if buffers else "there is none"
        raise theirs.fault(
            AUXILIARY,
            f"sample_strategy {_strategy(theirs)} learns from the auxiliary buffer {AUXILIARY}.{name}, and "
            f"{there}. Name it so, or say its name in {_NAME}.",
        )
    others = [other for other in buffers if f"{AUXILIARY}.{other}" != at]
    if others:
        raise theirs.fault(
            f"{AUXILIARY}.{others[0]}",
            f"{AUXILIARY}.{others[0]} is read by nothing: sample_strategy {_strategy(theirs)} learns from "
            f"{at} alone. Take it out, or say its name in {_NAME}.",
        )
    settings = {"name": name, **formats.place(theirs, at), **formats.answer_columns(theirs, at)}
    expert = {"algorithm.expert": name} if kind(theirs) == "mix" else {}
    return {"data.auxiliary": [settings], **expert}


def not_read(theirs: Theirs) -> str | None:
    """Why no auxiliary buffer is read; None where one is."""
    if kind(theirs) == "mix" or _warms_up(theirs):
        return None
    if _strategy(theirs) == "warmup":
        return f"{_STEPS} is {theirs[_STEPS]}"
    return f"algorithm_type is {kind(theirs)}, and sample_strategy {_strategy(theirs)}, which read none"


def _only_strategy(name: str) -> Off:
    return lambda theirs: None if _strategy(theirs) == name else f"sample_strategy is {_strategy(theirs)}"


def _warms_nothing_up(theirs: Theirs) -> str | None:
    idle = _strategy(theirs) == "warmup" and not _warms_up(theirs)
    return f"it warms nothing up, because {_STEPS} is {theirs[_STEPS]}" if idle else None


def _no_dataset(theirs: Theirs) -> str | None:
    return not_read(theirs) or (f"{_DATASET} is written" if theirs.wrote(f"{_DATASET}.path") else None)


def _rows(at: str, off: Off) -> tuple[Row, ...]:
    """The rows of one buffer of given answers."""
    ours = "data.auxiliary.0"
    text = partial(mapped, read=answers, kind=or_null(TEXT))
    queue = "takes effect for a queue alone, and given answers are in a file or a database"
    rows = (
        placement(
            f"{at}.name",
            None,
            "no actor to name; in a database, its table",
            can=always,
            kind=ANY,
            ours=(f"{ours}.table",),
            read=answers,
        ),
        mapped(
            f"{at}.storage_type",
            None,
            f"{ours}.path",
            read=answers,
            kind=or_null(one_of("file", "sql", "queue")),
            note="file, or sql; nobody fills a queue",
        ),
        text(f"{at}.path", None, f"{ours}.path"),
        text(f"{at}.subset_name", None, f"{ours}.subset"),
        text(f"{at}.split", None, f"{ours}.split", note="of a single file there is none"),
        *formats.rows(at, answers, ours, answer="response"),
        formats.turns_row(at, answers, ours, off),
        refused(
            f"{at}.format.chat_template",
            None,
            "one template encodes the whole run; write model.custom_chat_template",
            can=only(None, ""),
        ),
        no_effect(f"{at}.max_read_timeout", 1800, queue, kind=NUMBER),
        no_effect(f"{at}.use_priority_queue", False, queue, kind=YES_NO),
        no_effect(f"{at}.reuse_cooldown_time", None, queue, kind=or_null(NUMBER)),
        refused(f"{at}.*", UNSET, "given answers have no such key; leave it out", can=never),
    )
    return tuple(also_off(row, off) for row in rows)


STRATEGY = mapped(
    "algorithm.sample_strategy",
    None,
    "trainer.sample",
    read=sample,
    kind=or_null(one_of(*_STRATEGIES)),
    note="mix under algorithm_type mix, which also reads an expert's answers; else default",
    warn=_warms_nothing_up,
)
ROWS: tuple[Row, ...] = (
    mapped(
        AUXILIARY,
        None,
        "data.auxiliary",
        read=answers,
        kind=or_null(MAPPING),
        off=not_read,
        note="mix and warmup read one of them, and the others none",
    ),
    *_rows(f"{AUXILIARY}.*", _no_dataset),
)
ARGUMENTS: tuple[Row, ...] = beyond_the_page(
    mapped(
        _NAME,
        "sft_dataset",
        "data.auxiliary.0.name",
        "algorithm.expert",
        "trainer.sample.answers",
        read=answers,
        kind=TEXT,
        off=_no_dataset,
    ),
    mapped(
        _OLDEST,
        None,
        "trainer.sample.max_staleness",
        read=sample,
        kind=or_null(NUMBER),
        off=_only_strategy("staleness_control"),
        note="counts from the step that learns, and so is one more than here; null for no bound",
    ),
    mapped(
        _STEPS,
        None,
        "trainer.sample.steps",
        read=sample,
        kind=or_null(WHOLE),
        off=_only_strategy("warmup"),
        note="Trinity-RFT itself says it by stages now",
    ),
    mapped(_DATASET, None, "data.auxiliary", read=answers, kind=or_null(MAPPING), off=not_read),
    *_rows(_DATASET, not_read),
)
