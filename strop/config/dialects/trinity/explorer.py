"""Trinity's `cluster` and `explorer`: who samples, and where."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.config.dialects.row import (
    ANY,
    UNSET,
    always,
    beyond_the_page,
    mapped,
    never,
    one_of,
    only,
    placement,
    refused,
    unstated,
    written_by,
)
from strop.config.dialects.theirs import Theirs
from strop.config.dialects.trinity.workflows import RUNS
from strop.config.dialects.verl.trainer import every, frequency, one_gpu
from strop.config.schema import Run

_NO_ACTORS = "one process, which has no actors to name"
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


CLUSTER = unstated(
    placement("cluster.node_num", 1, "one process, on this machine", can=only(1)),
    placement("cluster.gpu_per_node", 8, "one process, on this machine's GPU or else its CPU", can=one_gpu),
)
EXPLORER = (
    *unstated(
        placement("explorer.name", "explorer", _NO_ACTORS, can=always),
        placement("explorer.runner_per_model", 8, _NATIVE, can=always),
        *RUNS,
        placement(
            "explorer.rollout_model.engine_type",
            "vllm",
            _NATIVE,
            kind=one_of("vllm", "vllm_async"),
            can=never,
        ),
        placement("explorer.rollout_model.engine_num", 1, _NATIVE, can=only(1)),
        placement(
            "explorer.rollout_model.tensor_parallel_size", 1, "one process holds the whole model", can=only(1)
        ),
    ),
    placement(
        "explorer.rollout_model.enable_history",
        False,
        "what a workflow asks of the model is always recorded",
        can=always,
    ),
    *unstated(
        refused(
            "explorer.auxiliary_models",
            None,
            "models beside the trained one are not run yet",
            can=only([], None),
            kind=ANY,
        ),
        *(
            refused(
                f"explorer.auxiliary_models.0.{name}",
                UNSET,
                "models beside the trained one are not run yet",
                can=never,
            )
            for name in ("model_path", "tensor_parallel_size")
        ),
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
            refused(
                f"explorer.rollout_model.{name}",
                UNSET,
                "workflows that call tools are not run yet",
                can=never,
            )
            for name in (
                "enable_openai_api",
                "enable_auto_tool_choice",
                "tool_call_parser",
                "reasoning_parser",
                "enable_thinking",
            )
        ),
        placement("explorer.runner_num", None, _NATIVE, can=always, kind=ANY),
        placement("explorer.max_repeat_times_per_runner", None, _NATIVE, can=always, kind=ANY),
    ),
)
