"""Converters of the model, the adapter, the data set, evaluation, monitors and the run folder in TRL."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from strop.compat.ledger.key_mapping import ForeignValues, written_by
from strop.compat.trl.batches import in_updates, interval
from strop.compat.trl.images import require_trl_columns
from strop.config.data_files import data_file_name
from strop.config.paths import existing_path
from strop.config.schema import Run

TEXT_PROMPTS = {"data.text_prompts": "raw"}
"""TRL renders the chat template for conversational rows only; the text of standard ones is encoded as it is."""
MONITORS = ("tensorboard", "wandb", "mlflow", "swanlab")


def write_lora(run: Run) -> Mapping[str, Any]:
    """Write the adapter."""
    lora = run.model.lora
    if lora is None:
        return {"use_peft": False}
    targets = [lora.targets] if isinstance(lora.targets, str) else list(lora.targets)
    return {
        "use_peft": True,
        "lora_r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": lora.dropout,
        "use_rslora": bool(lora.use_rslora),
        "lora_target_modules": targets,
    }


@written_by(write_lora)
def lora(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the adapter; PEFT chooses the modules of one without target modules by the model's type."""
    if not foreign["use_peft"]:
        return {}
    targets = foreign["lora_target_modules"]
    if targets is None:
        raise foreign.error_for(
            "lora_target_modules",
            "lora_target_modules is not set, so PEFT would choose the modules by the model's type; write them, "
            "such as all-linear or [q_proj, v_proj].",
        )
    named = [targets] if isinstance(targets, str) else targets
    return {
        "model.lora.rank": foreign["lora_r"],
        "model.lora.alpha": foreign["lora_alpha"],
        "model.lora.dropout": foreign["lora_dropout"],
        **({"model.lora.use_rslora": True} if foreign["use_rslora"] else {}),
        "model.lora.targets": "all-linear" if named == ["all-linear"] else named,
    }


def write_router_loss(run: Run) -> Mapping[str, Any]:
    """Write the coefficient of transformers' load-balancing loss, if any."""
    section = run.trainer.router_loss
    if section is None or section.balance_over != "model":
        return {}
    return {"router_aux_loss_coef": section.balance_coef}


@written_by(write_router_loss)
def router_loss(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the coefficient of transformers' load-balancing loss; null takes that of the model's config.json."""
    coef = foreign["router_aux_loss_coef"]
    if coef is None:
        coef = _declared_coefficient(foreign["model_name_or_path"])
    if not coef:
        return {}
    return {"trainer.router_loss.balance_coef": coef, "trainer.router_loss.balance_over": "model"}


def _declared_coefficient(path: Any) -> float:
    """`router_aux_loss_coef` of a model folder's config.json; 0 without it, or if it cannot be read here."""
    folder = existing_path(path) if isinstance(path, str) else None
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8")) if folder else {}
    except (OSError, ValueError):
        return 0.0
    text = config.get("text_config") or config if isinstance(config, dict) else {}
    return float(text.get("router_aux_loss_coef") or 0.0)


def without_peft(foreign: ForeignValues) -> str | None:
    """The adapter's options have no effect without the adapter."""
    return None if foreign["use_peft"] else "use_peft is False"


def taskset(foreign: ForeignValues, split: str) -> dict[str, Any]:
    """The taskset of a split; a file has no splits."""
    path = foreign["dataset_name"]
    values = {"path": path, "subset": foreign["dataset_config"]}
    if isinstance(path, str) and data_file_name(path) is None:
        values["split"] = foreign[split]
    return {name: value for name, value in values.items() if value is not None}


def write_dataset(run: Run) -> Mapping[str, Any]:
    """Write the data set and its splits; without one the files would be read from a data set's folder."""
    require_trl_columns(run)
    train, test = run.data.train, run.data.eval[0] if run.data.eval else None
    path = train.path if isinstance(train.path, str) else None
    values = {
        "dataset_name": path,
        "dataset_config": train.subset,
        "dataset_train_split": train.split or "train",
    }
    return values | ({"dataset_test_split": test.split} if test is not None and test.split else {})


def is_evaluated(foreign: ForeignValues) -> bool:
    """Whether the run is evaluated."""
    return bool(foreign["eval_strategy"] != "no")


def without_evaluation(foreign: ForeignValues) -> str | None:
    """The options of evaluation have no effect without evaluation."""
    return None if is_evaluated(foreign) else "eval_strategy is no, so there is no evaluation"


def write_evaluation(run: Run) -> Mapping[str, Any]:
    """Write the interval of evaluations."""
    often = run.evaluate.every
    if not run.data.eval or often is None:
        return {"eval_strategy": "no"}
    values: dict[str, Any] = {"eval_on_start": run.evaluate.at_start}
    if often.unit == "epochs":
        return {**values, "eval_strategy": "epoch" if often.count == 1 else None}
    updates = in_updates(run, often)
    return {**values, "eval_strategy": "steps" if updates else None, "eval_steps": updates}


@written_by(write_evaluation)
def evaluation(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the interval of evaluations; `eval_steps` unset means `logging_steps`."""
    strategy, steps = foreign["eval_strategy"], foreign["eval_steps"]
    return {
        "evaluate.every": interval(foreign, strategy, foreign["logging_steps"] if steps is None else steps),
        "evaluate.at_start": bool(foreign["eval_on_start"]) and is_evaluated(foreign),
    }


def not_by_steps(foreign: ForeignValues) -> str | None:
    """`eval_steps` has no effect under another strategy."""
    strategy = foreign["eval_strategy"]
    return None if strategy == "steps" else f"eval_strategy is {strategy}"


def saves_not_by_steps(foreign: ForeignValues) -> str | None:
    """`save_steps` has no effect under another strategy."""
    strategy = foreign["save_strategy"]
    return None if strategy == "steps" else f"save_strategy is {strategy}"


def write_monitors(run: Run) -> Mapping[str, Any]:
    """Write the monitors other than the console, which TRL always has."""
    named = [name for name in run.record.monitors if name in MONITORS]
    complete = "console" in run.record.monitors
    return {"report_to": named or "none"} if complete else {}


@written_by(write_monitors)
def monitors(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the monitors: names, none, or all."""
    named = foreign["report_to"] or "none"
    names = [named] if isinstance(named, str) else named
    unknown = [name for name in names if name not in (*MONITORS, "none", "all")]
    if unknown or "all" in names:
        raise foreign.error_for(
            "report_to",
            f"report_to has {(unknown or ['all'])[0]}; write the names of those to use: none, "
            f"{', '.join(MONITORS)}.",
        )
    return {"record.monitors": ["console", *(name for name in names if name != "none")]}


def write_names(run: Run) -> Mapping[str, Any]:
    """Write the run folder and the names."""
    return {"output_dir": str(run.folder_path), "run_name": run.name, "project": run.project}


@written_by(write_names)
def names(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the run folder and the names of the run and its project for monitors."""
    return {
        "folder": foreign["output_dir"] or "trainer_output",
        "project": foreign["project"],
        "name": foreign["run_name"] or "run",
    }
