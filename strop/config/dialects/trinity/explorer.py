"""Trinity's `explorer`: who samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.config.dialects.row import (
    ANY,
    LISTED,
    TEXT,
    UNSET,
    WHOLE,
    always,
    beyond_the_page,
    mapped,
    never,
    one_of,
    only,
    or_null,
    placement,
    refused,
    unstated,
    written_by,
)
from strop.config.dialects.theirs import Theirs
from strop.config.dialects.trinity.cluster import name_row
from strop.config.dialects.trinity.presets import is_offline, repeat_times
from strop.config.dialects.trinity.workflows import RUNS
from strop.config.dialects.verl.trainer import every, frequency
from strop.config.schema import Run

_RUNNERS, _ENGINES = "explorer.runner_per_model", "explorer.rollout_model.engine_num"
_HELPERS = "explorer.auxiliary_models"
_WHOLE = "one process holds the whole model"
_NATIVE = "the native sampler, in the trainer's process"


def write_measuring(run: Run) -> Mapping[str, Any]:
    """By steps."""
    return {
        "explorer.eval_interval": frequency(run, run.evaluate.every),
        "explorer.eval_on_startup": run.evaluate.at_start,
    }


@written_by(write_measuring)
def measuring(theirs: Theirs) -> Mapping[str, Any]:
    """By steps."""
    return {
        "evaluate.every": every(theirs["explorer.eval_interval"]),
        "evaluate.at_start": theirs["explorer.eval_on_startup"],
    }


def write_helpers(run: Run) -> Mapping[str, Any]:
    """Each by its path."""
    models = run.rollout.auxiliary_models
    return {f"{_HELPERS}.{index}.model_path": model.path for index, model in enumerate(models)}


@written_by(write_helpers)
def helpers(theirs: Theirs) -> Mapping[str, Any]:
    """Each is called by the last part of its path."""
    listed = theirs[_HELPERS] or {}
    if not listed:
        return {}
    models = []
    for index in listed:
        path = theirs[f"{_HELPERS}.{index}.model_path"]
        if not path:
            raise theirs.fault(_HELPERS, f"write {_HELPERS}.{index}.model_path, the model's folder or name.")
        models.append({"name": path.rstrip("/").rpartition("/")[2], "path": path})
    return {"rollout.auxiliary_models": models}


def write_engines(run: Run) -> Mapping[str, Any]:
    """Runners by whole ones alone."""
    engines = run.rollout.pool.engines if run.rollout.pool else 1
    written: dict[str, Any] = {_ENGINES: engines}
    each = engines * getattr(run.algorithm, "rollouts_per_task", 1)
    if run.rollout.runners is not None and run.rollout.runners % each == 0:
        written[_RUNNERS] = run.rollout.runners // each
    return written


@written_by(write_engines)
def engines(theirs: Theirs) -> Mapping[str, Any]:
    """A runner has a task, with all its rollouts."""
    engines = 1 if theirs.here else theirs[_ENGINES]
    settings: dict[str, Any] = {} if engines == 1 else {"rollout.pool.engines": engines}
    if theirs.wrote(_RUNNERS) and not is_offline(theirs):
        settings["rollout.runners"] = theirs[_RUNNERS] * engines * repeat_times(theirs)
    return settings


EXPLORER = (
    *unstated(
        name_row("explorer"),
        placement(
            _RUNNERS,
            8,
            "for each engine so many tasks, with all their rollouts, are under way at most; left out, all of "
            "a step's",
            can=always,
            ours=("rollout.runners",),
            read=engines,
        ),
        *RUNS,
        placement(
            "explorer.rollout_model.engine_type",
            "vllm",
            _NATIVE,
            kind=one_of("vllm", "vllm_async"),
            can=never,
        ),
        placement(
            _ENGINES,
            1,
            "one is in the explorer's process, several are in a process each; with --here one",
            can=lambda theirs, value: value == 1 or not theirs.here,
            ours=("rollout.pool.engines",),
            read=engines,
        ),
        placement("explorer.rollout_model.tensor_parallel_size", 1, _WHOLE, can=only(1)),
    ),
    placement(
        "explorer.rollout_model.enable_history",
        False,
        "what a workflow asks of the model is always recorded",
        can=always,
    ),
    *unstated(
        mapped(_HELPERS, None, "rollout.auxiliary_models", read=helpers, kind=or_null(LISTED)),
        mapped(
            f"{_HELPERS}.0.model_path",
            UNSET,
            "rollout.auxiliary_models.0.path",
            read=helpers,
            kind=TEXT,
            note="workflows ask it by the last part of its path",
        ),
        placement(f"{_HELPERS}.0.tensor_parallel_size", UNSET, _WHOLE, can=only(1), kind=WHOLE),
        mapped("explorer.eval_interval", 100, "evaluate.every", read=measuring, note="counts steps"),
        mapped("explorer.eval_on_startup", True, "evaluate.at_start", read=measuring),
    ),
    *beyond_the_page(
        *(
            placement(f"explorer.rollout_model.{name}", default, _NATIVE, can=never, kind=ANY)
            for name, default in (
                ("enable_prefix_caching", True),
                ("enforce_eager", True),
                ("dtype", "bfloat16"),
                ("seed", 42),
                ("gpu_memory_utilization", 0.9),
                ("enable_chunked_prefill", False),
                ("max_model_len", None),
            )
        ),
        *(
            placement(f"{_HELPERS}.0.{name}", UNSET, _NATIVE, can=never, kind=ANY)
            for name in ("engine_type", "engine_num", "dtype", "max_model_len", "gpu_memory_utilization")
        ),
        placement(
            "explorer.rollout_model.enable_openai_api",
            False,
            "the endpoint runs where a workflow needs it",
            can=always,
        ),
        placement(
            "explorer.rollout_model.enable_auto_tool_choice", False, "tool calls are always read", can=always
        ),
        *(
            refused(f"explorer.rollout_model.{name}", default, instead, can=only(None, default))
            for name, default, instead in (
                ("tool_call_parser", None, "tool calls are read as chat templates write them; leave it out"),
                ("reasoning_parser", None, "reasoning stays in the answer's text; leave it out"),
                ("enable_thinking", False, "write a chat template that begins the reasoning"),
            )
        ),
        placement("explorer.runner_num", None, _NATIVE, can=always, kind=ANY),
        placement("explorer.max_repeat_times_per_runner", None, _NATIVE, can=always, kind=ANY),
    ),
)
