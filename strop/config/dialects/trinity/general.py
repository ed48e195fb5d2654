"""Trinity's general settings, model, cluster, explorer, synchronizer and trainer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from strop.config.dialects.row import (
    ANY,
    LISTED,
    MAPPING,
    TEXT,
    UNSET,
    WHOLE,
    Row,
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
from strop.config.dialects.trinity import critic
from strop.config.dialects.trinity.experience import TEMPLATE
from strop.config.dialects.trinity.presets import is_offline
from strop.config.dialects.trinity.tasksets import tasks
from strop.config.dialects.verl.model import whole_or_not
from strop.config.dialects.verl.trainer import every, frequency, one_gpu
from strop.config.schema import Run
from strop.config.schema.algorithm import Dpo, Sft

_NO_ACTORS = "one process, which has no actors to name"
_NATIVE = "the native sampler, in the trainer's process"
_HERE = "the sampler reads the trainer's own weights"
_TRACKERS = ("wandb", "mlflow")


def write_folder(run: Run) -> Mapping[str, Any]:
    """The root is what stands above the two names."""
    whole = run.folder_path
    named = (whole.parent.name, whole.name) == (run.project, run.name)
    root = str(whole.parent.parent) if named else run.output
    return {
        "checkpoint_root_dir": root,
        "project": run.project,
        "name": run.name,
        "continue_from_checkpoint": run.resume != "never",
    }


@written_by(write_folder)
def folder(theirs: Theirs) -> Mapping[str, Any]:
    """`<checkpoint_root_dir>/<project>/<name>/`; where the run is not to go on, under a name of its own."""
    root, project, name = theirs["checkpoint_root_dir"], theirs["project"], theirs["name"]
    settings = {"output": root, "project": project, "name": name, "resume": "auto"}
    there = Path(root).expanduser() / project / name
    if not theirs["continue_from_checkpoint"] and there.is_dir() and any(there.iterdir()):
        settings["name"] = f"{name}_{datetime.now():%Y%m%d%H%M%S}"
    return settings


def write_mode(run: Run) -> Mapping[str, Any]:
    """Given answers need no explorer."""
    return {"mode": "train" if isinstance(run.algorithm, Sft | Dpo) else "both"}


@written_by(write_mode)
def mode(theirs: Theirs) -> Mapping[str, Any]:
    """Both halves run in one process; given answers need no explorer."""
    wanted = "train" if is_offline(theirs) else "both"
    if theirs["mode"] != wanted:
        kind = theirs["algorithm.algorithm_type"]
        raise theirs.fault(
            "mode",
            f"mode is {theirs['mode']}, and here {kind} runs in mode {wanted} alone: explorer and trainer in "
            f"processes of their own are not built yet. Write mode: {wanted}.",
        )
    return {}


def write_lengths(run: Run) -> Mapping[str, Any]:
    """The two limits."""
    return {
        "model.max_prompt_tokens": run.data.max_prompt_tokens,
        "model.max_response_tokens": run.data.max_response_tokens,
    }


@written_by(write_lengths)
def lengths(theirs: Theirs) -> Mapping[str, Any]:
    """The two limits; the whole sequence's must leave room for both."""
    prompt, response = theirs["model.max_prompt_tokens"], theirs["model.max_response_tokens"]
    whole = theirs["model.max_model_len"]
    limits = {"model.max_prompt_tokens": prompt, "model.max_response_tokens": response}
    lacking = [key for key, limit in limits.items() if limit is None]
    if lacking:
        raise theirs.fault(lacking[0], f"write {' and '.join(lacking)}: the limits of prompt and answer.")
    if whole is not None and whole < prompt + response:
        raise theirs.fault(
            "model.max_model_len",
            f"model.max_model_len ({whole}) leaves no room for max_prompt_tokens + max_response_tokens "
            f"({prompt + response}); write at least that, or leave it out.",
        )
    settings = {"data.max_prompt_tokens": prompt, "data.max_response_tokens": response}
    if prompt + response > 131072:
        settings["rollout.engine.kv_cache_tokens"] = prompt + response
    return settings


def write_lora(run: Run) -> Mapping[str, Any]:
    """One adapter, or none."""
    said, at = run.model.lora, "model.lora_configs.0"
    if said is None:
        return {}
    return {
        f"{at}.lora_rank": said.rank,
        f"{at}.lora_alpha": whole_or_not(said.alpha),
        f"{at}.target_modules": said.targets,
    }


@written_by(write_lora)
def lora(theirs: Theirs) -> Mapping[str, Any]:
    """One adapter."""
    configs = theirs["model.lora_configs"]
    if not configs:
        return {}
    if len(configs) > 1:
        raise theirs.fault(
            "model.lora_configs", "model.lora_configs has several; one adapter can be trained."
        )
    said = configs["0"]
    return {
        "model.lora.rank": said.get("lora_rank", 32),
        "model.lora.alpha": said.get("lora_alpha", 32),
        "model.lora.targets": said.get("target_modules", "all-linear"),
    }


def write_monitors(run: Run) -> Mapping[str, Any]:
    """The console is always there."""
    return {"monitor.monitor_type": "tensorboard" if "tensorboard" in run.record.monitors else None}


@written_by(write_monitors)
def monitors(theirs: Theirs) -> Mapping[str, Any]:
    """The console is always there."""
    kind = theirs["monitor.monitor_type"]
    if kind in _TRACKERS:
        raise theirs.fault(
            "monitor.monitor_type", f"monitor_type {kind} is not built yet; write monitor_type: tensorboard."
        )
    return {"record.monitors": ["console", "tensorboard"]}


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


def write_saving(run: Run) -> Mapping[str, Any]:
    """By steps; 0 saves at the end alone."""
    often = frequency(run, run.checkpoint.every)
    return {"trainer.save_interval": 0 if often == -1 else often}


@written_by(write_saving)
def saving(theirs: Theirs) -> Mapping[str, Any]:
    """By steps; 0 saves at the end alone."""
    return {"checkpoint.every": every(theirs["trainer.save_interval"])}


def _upstream(*rows: Row) -> tuple[Row, ...]:
    """On the page, with a default that it does not state."""
    return tuple(replace(row, stated=False) for row in rows)


GLOBAL = (
    *_upstream(
        mapped("project", "Trinity-RFT", "project", read=folder),
        mapped("name", "rft", "name", read=folder),
    ),
    mapped(
        "mode",
        "both",
        read=mode,
        kind=one_of("both", "train", "explore", "bench"),
        note="both, or train under sft and dpo; the others are not built yet",
    ),
    mapped(
        "checkpoint_root_dir",
        "${oc.env:TRINITY_CHECKPOINT_ROOT_DIR,./checkpoints}",
        "output",
        read=folder,
        kind=TEXT,
    ),
    mapped(
        "continue_from_checkpoint",
        True,
        "name",
        "resume",
        read=folder,
        note="false starts anew, as <name>_<timestamp> where the folder is taken",
    ),
    placement("ray_namespace", None, _NO_ACTORS, can=always, kind=or_null(TEXT)),
)
MONITOR = (
    *_upstream(
        mapped(
            "monitor.monitor_type",
            "tensorboard",
            "record.monitors",
            read=monitors,
            kind=one_of("tensorboard", *_TRACKERS),
        ),
        refused(
            "monitor.monitor_args",
            {},
            "trackers are not built yet",
            kind=or_null(MAPPING),
            can=lambda theirs, value: not value,
        ),
    ),
    *(
        refused(f"monitor.monitor_args.{name}", UNSET, "trackers are not built yet", can=never)
        for name in ("base_url", "api_key", "uri", "username", "password")
    ),
    refused("monitor.enable_ray_timeline", False, "there is no Ray to draw a timeline of; leave it out"),
)
MODEL = (
    mapped("model.model_path", UNSET, "model.path", kind=TEXT),
    critic.MODEL,
    *_upstream(
        mapped(
            "model.max_model_len",
            None,
            "data.max_prompt_tokens",
            "data.max_response_tokens",
            read=lengths,
            kind=or_null(WHOLE),
        ),
        mapped("model.max_prompt_tokens", None, "data.max_prompt_tokens", read=lengths, kind=or_null(WHOLE)),
        mapped(
            "model.max_response_tokens", None, "data.max_response_tokens", read=lengths, kind=or_null(WHOLE)
        ),
    ),
    mapped("model.min_response_tokens", 1, "rollout.sampling.min_response_tokens", read=tasks),
    *beyond_the_page(
        TEMPLATE,
        mapped("model.lora_configs", None, "model.lora", read=lora, kind=LISTED),
        mapped("model.lora_configs.0.lora_rank", 32, "model.lora.rank", read=lora),
        mapped("model.lora_configs.0.lora_alpha", 32, "model.lora.alpha", read=lora),
        mapped("model.lora_configs.0.target_modules", "all-linear", "model.lora.targets", read=lora),
        placement("model.lora_configs.0.name", None, _NO_ACTORS, can=always, kind=ANY),
        refused("model.lora_configs.0.*", UNSET, "only rank, alpha and target_modules are read", can=never),
    ),
)
CLUSTER = _upstream(
    placement("cluster.node_num", 1, "one process, on this machine", can=only(1)),
    placement("cluster.gpu_per_node", 8, "one process, on this machine's GPU or else its CPU", can=one_gpu),
)
EXPLORER = (
    *_upstream(
        placement("explorer.name", "explorer", _NO_ACTORS, can=always),
        placement("explorer.runner_per_model", 8, _NATIVE, can=always),
        no_effect(
            "explorer.max_timeout", 900, "an answer ends at its token limit; rewards have a limit of time"
        ),
        no_effect("explorer.max_retry_times", 2, "what breaks in one process would break again"),
        refused("explorer.env_vars", {}, "set them before the start", can=only({}, None), kind=ANY),
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
    refused(
        "explorer.rollout_model.enable_history", False, "workflows of your own are not run yet; leave it out"
    ),
    *_upstream(
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
_FRESH = "the sampler always has the newest weights here"
SYNCHRONIZER = (
    *_upstream(
        placement("synchronizer.sync_method", "nccl", _HERE, kind=one_of("nccl", "checkpoint"), can=always),
        refused("synchronizer.sync_interval", 1, f"{_FRESH}; write sync_interval: 1"),
        refused("synchronizer.sync_offset", 0, f"{_FRESH}; write sync_offset: 0"),
        placement("synchronizer.sync_timeout", 1200, _HERE, can=always),
    ),
    *beyond_the_page(
        placement("synchronizer.sync_style", None, _HERE, can=always, kind=ANY),
    ),
)
TRAINER = (
    *_upstream(
        placement("trainer.name", "trainer", _NO_ACTORS, can=always),
        placement("trainer.trainer_type", "verl", "Strop's own trainer, by verl's keys", can=only("verl")),
        mapped("trainer.save_interval", 0, "checkpoint.every", read=saving, note="counts steps"),
    ),
)
REST = (
    *(
        refused(
            f"service.data_juicer.{name}", UNSET, "Data-Juicer is not called yet; prepare the data", can=never
        )
        for name in ("server_url", "auto_start", "port")
    ),
    *(
        refused(
            f"data_processor.{name}",
            UNSET,
            "pipelines before and after the run are not built yet; prepare the data",
            can=never,
        )
        for name in (
            "task_pipeline.num_process",
            "task_pipeline.operators.0.name",
            "task_pipeline.operators.0.args",
            "task_pipeline.inputs",
            "task_pipeline.target_fields",
            "experience_pipeline.operators.0.name",
            "experience_pipeline.operators.0.args",
        )
    ),
    no_effect("log.level", "INFO", "all that a run says is on the console", kind=TEXT),
    placement("log.group_by_node", False, "one process, on this machine", can=always),
    *(
        refused(
            f"stages.0.{name}",
            UNSET,
            "stages are not run one after another yet; write a file for each",
            can=never,
        )
        for name in ("stage_name", "mode", "algorithm.*", "buffer.*", "explorer.*", "trainer.*")
    ),
)
