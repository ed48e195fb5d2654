"""Ledgers of TRL's SFT and DPO: SFTConfig and DPOConfig with the arguments of `trl sft` and `trl dpo`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.config.schema import Run
from strop.config.schema.algorithm import DpoConfig, SftConfig
from strop.dialects.ledger.key_mapping import (
    ForeignValues,
    InactiveCheck,
    KeyMapping,
    ReadFunction,
    mapped,
    no_effect,
    only,
    refused,
    written_by,
)
from strop.dialects.ledger.table import Ledger
from strop.dialects.ledger.value_types import ANY, BOOLEAN, INTEGER, nullable, one_of
from strop.dialects.trl import batches
from strop.dialects.trl.images import image_columns, image_places
from strop.dialects.trl.run_settings import is_evaluated, taskset, write_dataset
from strop.dialects.trl.shared import batch_rows, dataset_rows, model_rows
from strop.dialects.trl.training_arguments import training_rows
from strop.errors import ConfigError

_PAIRS: dict[str, Any] = {"prompt": "prompt", "chosen": "chosen", "rejected": "rejected", "answer": None}


def _tasksets(foreign: ForeignValues, columns: dict[str, Any]) -> dict[str, Any]:
    columns = columns | image_columns(foreign)
    evaluated = {"name": "eval", **taskset(foreign, "dataset_test_split"), **columns}
    train = taskset(foreign, "dataset_train_split") | columns
    return {
        **{f"data.train.{name}": value for name, value in train.items()},
        "data.eval": [evaluated] if is_evaluated(foreign) else [],
        **image_places(columns),
    }


def write_demonstrations(run: Run) -> Mapping[str, Any]:
    """Write the data set and what is trained of a row. Raises ConfigError for an algorithm other than SFT."""
    if not isinstance(run.algorithm, SftConfig):
        raise ConfigError(f"TRL's SFTConfig has no algorithm {run.algorithm.type}.")
    conversations = run.data.train.response == "messages"
    trained = {"assistant_only_loss": conversations, "completion_only_loss": None}
    return {**write_dataset(run), **trained}


@written_by(write_demonstrations)
def demonstrations(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the data set: conversations in `messages` with `assistant_only_loss`, else the columns `prompt` and
    `completion`."""
    if foreign["completion_only_loss"] is False:
        raise foreign.error_for(
            "completion_only_loss",
            "completion_only_loss=False trains on prompts too, and Strop trains on responses only; leave it out.",
        )
    conversations = foreign["assistant_only_loss"]
    columns: dict[str, Any] = (
        {"response": "messages"} if conversations else {"prompt": "prompt", "response": "completion"}
    )
    return {"algorithm.type": "sft", **_tasksets(foreign, {**columns, "answer": None})}


def which_columns(foreign: ForeignValues) -> str | None:
    """A notice on the columns that are read, which TRL chooses by the data."""
    if foreign["assistant_only_loss"] or foreign["completion_only_loss"]:
        return None
    return (
        "the columns prompt and completion are read, of which the completion is trained; of a column messages "
        "or text, TRL would train all tokens: write assistant_only_loss to train the assistant's turns"
    )


def write_pairs(run: Run) -> Mapping[str, Any]:
    """Write the data set and the loss. Raises ConfigError for an algorithm other than DPO."""
    if not isinstance(run.algorithm, DpoConfig):
        raise ConfigError(f"TRL's DPOConfig has no algorithm {run.algorithm.type}.")
    if run.algorithm.label_smoothing:
        raise ConfigError("TRL's sigmoid loss ignores label_smoothing; write label_smoothing 0.")
    return {**write_dataset(run), "beta": run.algorithm.beta, "label_smoothing": 0.0}


@written_by(write_pairs)
def pairs(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the data set, with the columns `prompt`, `chosen` and `rejected`, and the loss."""
    if foreign["label_smoothing"]:
        raise foreign.error_for(
            "label_smoothing",
            f"label_smoothing is {foreign['label_smoothing']}, which TRL's loss sigmoid ignores (the losses robust and "
            "exo_pair have it) and that of earlier versions does not; write 0, or the run file's "
            "algorithm.label_smoothing, which smooths it.",
        )
    return {
        "algorithm.type": "dpo",
        "algorithm.beta": foreign["beta"],
        "algorithm.label_smoothing": 0.0,
        **_tasksets(foreign, _PAIRS),
    }


def write_max_length(run: Run) -> Mapping[str, Any]:
    """Write the length limit, the sum of those of prompt and response."""
    total = run.data.max_prompt_tokens + run.data.max_response_tokens
    return {"max_length": total, "truncation_mode": "keep_start"}


@written_by(write_max_length)
def max_length(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the length limit on prompt and response together; a longer sequence loses its end."""
    total = foreign["max_length"]
    if total is None or total < 2:
        raise foreign.error_for(
            "max_length", f"max_length is {total}; write a number of tokens of at least 2, such as 4096."
        )
    return {
        "data.max_prompt_tokens": total // 2,
        "data.max_response_tokens": total - total // 2,
        "data.overlong": "right",
    }


def write_streaming(run: Run) -> Mapping[str, Any]:
    """Write rows in their own order as a streamed data set, of which TRL shuffles nothing."""
    ordered = not run.data.shuffle and run.data.order is None and run.trainer.duration.unit != "epochs"
    return {"dataset_streaming": True} if ordered else {}


@written_by(write_streaming)
def streaming(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the order of the rows: that of the data set, where TRL streams it. TRL then needs `max_steps`."""
    if not foreign["dataset_streaming"]:
        return {}
    if foreign["max_steps"] <= 0:
        raise foreign.error_for(
            "dataset_streaming",
            "dataset_streaming is True, and a streamed data set has no known length, so that TRL requires max_steps; "
            "write max_steps.",
        )
    return {"data.shuffle": False}


_STREAMING = mapped(
    "dataset_streaming",
    False,
    "data.shuffle",
    read=streaming,
    warn=lambda foreign: (
        "the rows are trained on in the order of the data set, as TRL does; all of them are read before the start"
        if foreign["dataset_streaming"]
        else None
    ),
)


def _rows(
    read: ReadFunction, learning_rate: float, warn: InactiveCheck | None = None
) -> tuple[KeyMapping, ...]:
    return (
        *model_rows(),
        *dataset_rows(read, warn, _STREAMING),
        *batch_rows(batches.offline_batch, "trainer.tasks_per_step"),
        mapped("dataloader_drop_last", False, "data.incomplete_batch", read=batches.offline_batch),
        mapped(
            "max_length",
            1024,
            "data.max_prompt_tokens",
            "data.max_response_tokens",
            read=max_length,
            value_type=nullable(INTEGER),
        ),
        refused(
            "truncation_mode",
            "keep_start",
            "Strop removes the end of a sequence that is too long; leave it at its default",
        ),
        *training_rows(learning_rate),
    )


SFT_LEDGER = Ledger(
    "trl-sft",
    (
        *_rows(demonstrations, 2e-5, which_columns),
        mapped(
            "completion_only_loss",
            None,
            "data.train.response",
            read=demonstrations,
            value_type=nullable(BOOLEAN),
        ),
        mapped("assistant_only_loss", False, "data.train.response", read=demonstrations),
        mapped("loss_type", "nll", "algorithm.type", read=demonstrations, value_type=one_of("nll")),
        refused(
            "dataset_text_field", "text", "Strop trains on responses; write prompt and completion columns"
        ),
        refused("dataset_kwargs", None, "convert the data set before"),
        refused("chat_template_path", None, "write data.chat_template in a run file"),
        refused("eos_token", None, "set it in the tokenizer's folder"),
        no_effect("shuffle_dataset", False, "the tasks of each epoch are shuffled, as in TRL"),
        *(
            no_effect(
                key, default, "sequences are always packed, and do not attend to each other", value_type=ANY
            )
            for key, default in (("packing", False), ("packing_strategy", "bfd"), ("eval_packing", None))
        ),
    ),
)
DPO_LEDGER = Ledger(
    "trl-dpo",
    (
        *_rows(pairs, 1e-6),
        mapped("beta", 0.1, "algorithm.beta", read=pairs),
        mapped("label_smoothing", 0.0, "algorithm.label_smoothing", read=pairs),
        refused(
            "loss_type",
            ["sigmoid"],
            "Strop has the sigmoid loss of DPO; leave it at its default",
            supported=only(["sigmoid"], "sigmoid"),
        ),
        *(
            refused(key, default, "Strop has the sigmoid loss of DPO; leave it at its default")
            for key, default in (
                ("loss_weights", None),
                ("ld_alpha", None),
                ("f_divergence_type", "reverse_kl"),
                ("use_weighting", False),
            )
        ),
        *(
            no_effect(key, default, "it is an option of another loss")
            for key, default in (("f_alpha_divergence_coef", 0.5), ("discopop_tau", 0.05))
        ),
        refused("sync_ref_model", False, "the reference is the initial model; leave it False"),
        no_effect("ref_model_mixup_alpha", 0.6, "it is an option of sync_ref_model"),
        no_effect("ref_model_sync_steps", 512, "it is an option of sync_ref_model"),
        no_effect("precompute_ref_log_probs", False, "the reference's log-probs are computed in each update"),
        no_effect(
            "precompute_ref_batch_size", None, "it is an option of precompute_ref_log_probs", value_type=ANY
        ),
        refused("disable_dropout", True, "write lora_dropout 0; models have no other dropout here"),
    ),
)
