"""TRL's ModelConfig and ScriptArguments: the model, the adapter, and the data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from strop.compat.ledger.data_columns import known_columns
from strop.compat.ledger.key_mapping import (
    NUMBER,
    OWN_KERNELS,
    STRING,
    STRING_OR_LIST,
    UNSET,
    ForeignValues,
    InactiveCheck,
    KeyMapping,
    ReadFunction,
    mapped,
    no_effect,
    nullable,
    one_of,
    placement,
    refused,
    unless,
    written_by,
)
from strop.compat.trl.optimization import precision
from strop.compat.trl.training_arguments import without_evaluation
from strop.config.model_files import folder_takes_images, read_model_file
from strop.config.paths import data_file_name
from strop.config.schema import Run
from strop.errors import ConfigError


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


def write_quantization(run: Run) -> Mapping[str, Any]:
    """Write the quantization of the frozen weights."""
    section = run.model.quantization
    if section is None:
        return {}
    if section.bits == 8:
        return {"load_in_8bit": True}
    return {"load_in_4bit": True, "bnb_4bit_quant_type": section.code, "use_bnb_nested_quant": section.double}


@written_by(write_quantization)
def quantization(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the quantization of the frozen weights."""
    if foreign["load_in_4bit"] and foreign["load_in_8bit"]:
        raise foreign.error_for(
            "load_in_8bit", "load_in_8bit and load_in_4bit are both True; leave one of them out."
        )
    if foreign["load_in_8bit"]:
        return {"model.quantization.bits": 8}
    if not foreign["load_in_4bit"]:
        return {}
    return {
        "model.quantization.bits": 4,
        "model.quantization.type": foreign["bnb_4bit_quant_type"],
        "model.quantization.double": foreign["use_bnb_nested_quant"],
    }


_without_4_bits, without_peft = unless("load_in_4bit", True), unless("use_peft", True)


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
    config = read_model_file(path, "config.json") if isinstance(path, str) else {}
    text = config.get("text_config") or config
    coefficient = text.get("router_aux_loss_coef") if isinstance(text, dict) else None
    return float(coefficient) if isinstance(coefficient, int | float) else 0.0


_ADAPTER_ROWS = (
    mapped("use_peft", False, "model.lora", read=lora),
    mapped("lora_r", 16, "model.lora.rank", read=lora, inactive=without_peft),
    mapped("lora_alpha", 32, "model.lora.alpha", read=lora, inactive=without_peft, value_type=NUMBER),
    mapped("lora_dropout", 0.05, "model.lora.dropout", read=lora, inactive=without_peft),
    mapped("use_rslora", False, "model.lora.use_rslora", read=lora, inactive=without_peft),
    mapped(
        "lora_target_modules",
        None,
        "model.lora.targets",
        read=lora,
        inactive=without_peft,
        value_type=nullable(STRING_OR_LIST),
    ),
    *(
        refused(key, default, why, inactive=without_peft)
        for key, default, why in (
            ("lora_target_parameters", None, "Strop adapts modules; write lora_target_modules"),
            ("lora_modules_to_save", None, "Strop trains either the adapter or all weights; leave it null"),
            ("lora_task_type", "CAUSAL_LM", "Strop trains causal language models; leave it CAUSAL_LM"),
            ("use_dora", False, "Strop has LoRA adapters without a magnitude vector; leave it False"),
        )
    ),
)
_row = partial(mapped, read=quantization)
MODEL_ROWS = (
    mapped("model_name_or_path", None, "model.path", value_type=nullable(STRING)),
    refused("model_revision", "main", "download the revision, and write its folder"),
    mapped(
        "dtype",
        "float32",
        "model.dtype",
        read=precision,
        value_type=one_of("float32", "bfloat16", "bf16"),
        note="dtype of the parameters",
    ),
    placement("attn_implementation", None, OWN_KERNELS),
    *_ADAPTER_ROWS,
    _row(
        "load_in_8bit",
        False,
        "model.quantization",
        note="products are those with the dequantized weights; activations are not rounded",
    ),
    _row("load_in_4bit", False, "model.quantization.bits"),
    _row(
        "bnb_4bit_quant_type",
        "nf4",
        "model.quantization.type",
        inactive=_without_4_bits,
        value_type=one_of("nf4", "fp4"),
    ),
    _row("use_bnb_nested_quant", False, "model.quantization.double", inactive=_without_4_bits),
    no_effect("bnb_4bit_quant_storage", None, "codes are stored as uint8"),
    mapped("trust_remote_code", False, "model.trust_remote_code"),
    refused("model_init_kwargs", None, "write the keys of ModelConfig, such as dtype"),
    mapped(
        "router_aux_loss_coef",
        None,
        "trainer.router_loss.balance_coef",
        "trainer.router_loss.balance_over",
        read=router_loss,
        value_type=nullable(NUMBER),
        note="null takes the coefficient in the model's config.json, which dense models lack; 0 for none. Of a "
        "model on the Hub it is not known: write it",
    ),
)
"""ModelConfig, with the dtype and the adapter."""
INITIAL_REFERENCE_ROWS = (
    refused("sync_ref_model", False, "the reference is the initial model; leave it False"),
    no_effect("ref_model_mixup_alpha", 0.6, "it is an option of sync_ref_model"),
    no_effect("ref_model_sync_steps", 512, "it is an option of sync_ref_model"),
)
"""Options on the reference model of trainers whose reference is the initial model."""


def dropout_row(default: bool) -> KeyMapping:
    """The switch that turns the model's dropout off."""
    return refused("disable_dropout", default, "write lora_dropout 0; models have no other dropout here")


_IMAGE_COLUMNS = ("image", "images")
"""TRL takes the first one that the rows have."""
_FIELDS = ("data.train.images", "data.train.optional_columns", "data.images.marker", "data.images.unmarked")
"""Run-file fields that the columns of images decide."""


def image_columns(foreign: ForeignValues) -> dict[str, Any]:
    """Taskset fields of the column of images; empty if the data set's file has none, or is not on this machine."""
    known = known_columns([foreign["dataset_name"]] if isinstance(foreign["dataset_name"], str) else [])
    column = next((name for name in _IMAGE_COLUMNS if name in (known or ())), None)
    return {} if column is None else {"images": column, "optional_columns": [column]}


def image_places(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Run-file fields of the places of images: the parts of a message without an image, else before the text of the
    first user message; `<image>` is ordinary text."""
    return {"data.images.marker": None, "data.images.unmarked": "start"} if "images" in columns else {}


def _unknown_images(foreign: ForeignValues) -> str | None:
    """A notice if the model reads images, and the columns of its data set are not known here."""
    path, model = foreign["dataset_name"], foreign["model_name_or_path"]
    if not isinstance(path, str) or known_columns([path]) is not None:
        return None
    if not isinstance(model, str) or not folder_takes_images(model):
        return None
    return (
        "the model reads images, and the columns of this data set are not known before it is loaded: its images are "
        "not used. Write data.train.images in a run file (strop convert), or name a Parquet or JSON-lines file"
    )


TEXT_PROMPTS = {"data.text_prompts": "raw"}
"""TRL renders the chat template for conversational rows only; the text of standard ones is encoded as it is."""


def taskset(foreign: ForeignValues, split: str) -> dict[str, Any]:
    """The taskset of a split; a file has no splits."""
    path = foreign["dataset_name"]
    values = {"path": path, "subset": foreign["dataset_config"]}
    if isinstance(path, str) and data_file_name(path) is None:
        values["split"] = foreign[split]
    return {name: value for name, value in values.items() if value is not None}


def write_dataset(run: Run) -> Mapping[str, Any]:
    """Write the data set and its splits; without one the files would be read from a data set's folder. Raises
    ConfigError for a column of images, or a place of images, that TRL's data sets cannot have."""
    column, images = run.data.train.images, run.data.images
    if column not in (None, *_IMAGE_COLUMNS):
        raise ConfigError(
            f"data.train.images is {column!r}; TRL reads images from the column images or image."
        )
    if column and (images.marker is not None or images.unmarked != "start"):
        raise ConfigError(
            "TRL puts images before the first user message's text; data.images has marker: null and unmarked: start "
            "for that."
        )
    train, test = run.data.train, run.data.eval[0] if run.data.eval else None
    path = train.path if isinstance(train.path, str) else None
    values = {
        "dataset_name": path,
        "dataset_config": train.subset,
        "dataset_train_split": train.split or "train",
    }
    return values | ({"dataset_test_split": test.split} if test is not None and test.split else {})


_SAMPLED_STREAMING = refused(
    "dataset_streaming",
    False,
    "TRL's trainers with rollouts stop at a data set that is streamed; leave it out; a run file streams by data.stream",
)
"""Row of a streamed data set for the trainers that sample."""


def dataset_rows(
    read: ReadFunction,
    *warnings: InactiveCheck,
    streaming: KeyMapping = _SAMPLED_STREAMING,
    fields: Sequence[str] = (),
) -> tuple[KeyMapping, ...]:
    """ScriptArguments; `read` also decides the columns, `fields` of the run file, of which `warnings` say more.
    `streaming` is the row of a streamed data set, which may be refused."""
    checks = (*warnings, _unknown_images)
    return (
        mapped(
            "dataset_name",
            None,
            "data.train.path",
            "data.text_prompts",
            *_FIELDS,
            *fields,
            read=read,
            value_type=nullable(STRING),
            warn=lambda foreign: "; ".join(filter(None, (check(foreign) for check in checks))) or None,
        ),
        mapped("dataset_config", None, "data.train.subset", read=read, value_type=nullable(STRING)),
        mapped("dataset_train_split", "train", "data.train.split", read=read),
        mapped(
            "dataset_test_split",
            "test",
            "data.eval.0.split",
            read=read,
            inactive=without_evaluation,
            note="used if eval_strategy enables evaluation",
        ),
        streaming,
        refused(
            "datasets",
            UNSET,
            "name one data set and convert; a list under data.train of the run file is a mixture (`strop help data`)",
        ),
        no_effect("ignore_bias_buffers", False, "it works around DistributedDataParallel"),
    )
