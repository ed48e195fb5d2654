"""Rows that TRL's configurations for given responses share, and SFT: SFTConfig with the arguments of `trl sft`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from strop.compat.ledger.data_columns import known_columns
from strop.compat.ledger.key_mapping import (
    ANY,
    BOOLEAN,
    INTEGER,
    ForeignValues,
    InactiveCheck,
    KeyMapping,
    Ledger,
    ReadFunction,
    mapped,
    no_effect,
    nullable,
    one_of,
    only,
    placement,
    refused,
    written_by,
)
from strop.compat.trl.model_and_data import (
    MODEL_ROWS,
    TEXT_PROMPTS,
    dataset_rows,
    image_columns,
    image_places,
    taskset,
    write_dataset,
)
from strop.compat.trl.training_arguments import (
    SHUFFLED_ROW,
    batch_rows,
    device_batch,
    is_evaluated,
    training_rows,
    update_batch,
)
from strop.config.schema import Run
from strop.config.schema.algorithm import SftConfig
from strop.config.units import Amount
from strop.errors import ConfigError


def write_offline_batch(run: Run) -> Mapping[str, Any]:
    """Write the rows, pairs or packed sequences of an update, and whether an epoch's last one may be smaller."""
    size, longest = run.trainer.microbatch, run.data.max_prompt_tokens + run.data.max_response_tokens
    if run.data.packing is not None and size.unit == "tokens" and size.count % longest == 0:
        size = Amount(size.count // longest, "sequences")
    batch = device_batch(run, run.trainer.tasks_per_update or run.trainer.tasks_per_step, size)
    return {**batch, "dataloader_drop_last": run.data.incomplete_batch == "drop"}


@written_by(write_offline_batch)
def offline_batch(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the rows, pairs or packed sequences of an update, which is one step. The last batch of an epoch may be
    smaller."""
    device, longest = foreign["per_device_train_batch_size"], foreign["max_length"]
    packed = foreign.has_row("packing") and foreign["packing"] and longest is not None
    return {
        "trainer.tasks_per_step": update_batch(foreign),
        "trainer.microbatch": f"{device * longest} tokens" if packed else f"{device} sequences",
        "data.incomplete_batch": "drop" if foreign["dataloader_drop_last"] else "keep",
    }


_CONVERSATIONS = ("messages", "conversations")
"""Columns of whole conversations; TRL renames the second one to the first."""
_COLUMNS_OF_TEMPLATES = {"tools": "tools", "template_args_column": "chat_template_kwargs"}
"""Taskset fields of the columns that SFTTrainer and DPOTrainer give to the chat template, by their names in TRL."""
PAIR_COLUMNS: dict[str, Any] = {
    "prompt": "prompt",
    "chosen": "chosen",
    "rejected": "rejected",
    "answer": None,
    "equal_pairs": "filter",  # TRL trains on them, and comparing them has no gradient
}
"""Taskset fields of pairs, by TRL's names of their columns."""
_FIELDS = tuple(f"data.train.{field}" for field in _COLUMNS_OF_TEMPLATES)


def tasksets(
    foreign: ForeignValues, columns: dict[str, Any], *, reads_optional: bool = True, takes_images: bool = True
) -> dict[str, Any]:
    """The run-file fields of the training and the eval data, whose rows have `columns`; `reads_optional` adds those of
    tools and variables of the template, and of images where the trainer `takes_images`."""
    if "text" not in columns and reads_optional:
        columns = _with_optional_columns(foreign, columns, takes_images)
    evaluated = {"name": "eval", **taskset(foreign, "dataset_test_split"), **columns}
    train = taskset(foreign, "dataset_train_split") | columns
    return {
        **{f"data.train.{name}": value for name, value in train.items()},
        "data.eval": [evaluated] if is_evaluated(foreign) else [],
        **TEXT_PROMPTS,
        **image_places(columns),
    }


def _with_optional_columns(
    foreign: ForeignValues, columns: dict[str, Any], takes_images: bool
) -> dict[str, Any]:
    """The columns with those of images, tools and variables of the template that the data set has."""
    images = image_columns(foreign) if takes_images else {}
    known = columns_of(foreign) or frozenset()
    given = {field: column for field, column in _COLUMNS_OF_TEMPLATES.items() if column in known}
    optional = [*images.get("optional_columns", ()), *given.values()]
    return {**columns, **images, **given, **({"optional_columns": optional} if optional else {})}


def columns_of(foreign: ForeignValues) -> frozenset[str] | None:
    """Columns of the data set; None if it is not on this machine."""
    path = foreign["dataset_name"]
    return known_columns([path]) if isinstance(path, str) else None


def write_offline_dataset(run: Run) -> Mapping[str, Any]:
    """Write the data set. Raises ConfigError for columns of tools or variables with other names than TRL's."""
    for field, column in _COLUMNS_OF_TEMPLATES.items():
        if getattr(run.data.train, field) not in (None, column):
            raise ConfigError(
                f"data.train.{field} is {getattr(run.data.train, field)!r}; TRL's name of this column is {column}."
            )
    return write_dataset(run)


def write_demonstrations(run: Run) -> Mapping[str, Any]:
    """Write the data set and what is trained of a row. Raises ConfigError for an algorithm other than SFT."""
    if not isinstance(run.algorithm, SftConfig):
        raise ConfigError(f"TRL's SFTConfig has no algorithm {run.algorithm.type}.")
    train = run.data.train
    conversations = train.response in _CONVERSATIONS
    trained: dict[str, Any] = {
        "assistant_only_loss": conversations and not train.train_on_prompt,
        "completion_only_loss": False if train.train_on_prompt and not conversations else None,
    }
    if train.text is not None:
        trained["dataset_text_field"] = train.text
    return {**write_offline_dataset(run), **trained}


@written_by(write_demonstrations)
def demonstrations(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the data set: conversations in `messages` (or `conversations`), the columns `prompt` and `completion`, or a
    column of text; and what of it is trained."""
    known = columns_of(foreign) or ()
    named = next((column for column in _CONVERSATIONS if column in known), "messages")
    if _has_texts(foreign):
        columns: dict[str, Any] = {"text": foreign["dataset_text_field"]}
    elif foreign["assistant_only_loss"]:
        columns = {"response": named}
    elif _has_conversations(foreign):
        columns = {"response": named, "train_on_prompt": True}
    else:
        columns = {"prompt": "prompt", "response": "completion"}
        if foreign["completion_only_loss"] is False:
            columns["train_on_prompt"] = True
    return {"algorithm.type": "sft", **tasksets(foreign, {**columns, "answer": None})}


def _has_conversations(foreign: ForeignValues) -> bool:
    """Whether the rows are whole conversations."""
    known = columns_of(foreign) or frozenset()
    return "prompt" not in known and bool({*_CONVERSATIONS} & known)


def _has_texts(foreign: ForeignValues) -> bool:
    """Whether the rows are texts: they have the column `dataset_text_field`, and none that TRL reads before it. Of a
    data set that is not on this machine, whether that column is written."""
    known, field = columns_of(foreign), foreign["dataset_text_field"]
    if foreign["assistant_only_loss"] or foreign["completion_only_loss"]:
        return False
    if known is None:
        return foreign.is_set("dataset_text_field")
    return field in known and not {"prompt", *_CONVERSATIONS} & known


def which_columns(foreign: ForeignValues) -> str | None:
    """A notice on the columns that are read, which TRL chooses by the data."""
    if foreign["assistant_only_loss"] or foreign["completion_only_loss"]:
        return None
    if _has_texts(foreign):
        return f"the column {foreign['dataset_text_field']} is read, of which all tokens are trained"
    if _has_conversations(foreign):
        return (
            "all tokens of the conversations are trained, those of prompts too, as TRL does; write assistant_only_loss "
            "to train the assistant's turns alone"
        )
    known = "" if columns_of(foreign) is not None else "; of a column messages TRL would train all tokens"
    trained = "all tokens are" if foreign["completion_only_loss"] is False else "the completion is"
    return f"the columns prompt and completion are read, of which {trained} trained{known}"


def _unknown_columns(foreign: ForeignValues) -> str | None:
    """A notice on columns of a data set that is not on this machine."""
    if foreign["dataset_name"] is None or columns_of(foreign) is not None:
        return None
    return (
        "the columns of this data set are not known before it is loaded: tools and chat_template_kwargs of its rows "
        "are not read. Write data.train.tools and data.train.template_args_column in a run file (strop convert), or "
        "name a file"
    )


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
    cuts_rows = foreign.has_row("packing") and foreign["packing"] and foreign["packing_strategy"] != "bfd"
    return {
        "data.max_prompt_tokens": total // 2,
        "data.max_response_tokens": total - total // 2,
        "data.overlong": "error" if cuts_rows else "right",
    }


def write_streaming(run: Run) -> Mapping[str, Any]:
    """Write rows in their own order as a streamed data set, of which TRL shuffles nothing."""
    ordered = not run.data.shuffle and run.data.order is None and run.trainer.duration.unit != "epochs"
    return {"dataset_streaming": True} if ordered else {}


@written_by(write_streaming)
def streaming(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the order of the rows: that of the data set, where TRL streams it. TRL then needs `max_steps`."""
    return {"data.shuffle": False} if is_streamed(foreign) else {}


def is_streamed(foreign: ForeignValues) -> bool:
    """Whether TRL streams the data set. Raises ConfigError without `max_steps`."""
    if not foreign["dataset_streaming"]:
        return False
    if foreign["max_steps"] <= 0:
        raise foreign.error_for(
            "dataset_streaming",
            "dataset_streaming is True, and a streamed data set has no known length, so that TRL requires max_steps; "
            "write max_steps.",
        )
    return True


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


def write_packing(run: Run) -> Mapping[str, Any]:
    """Write the packing of rows, in training and evaluation."""
    packing = run.data.packing
    if packing is None:
        return {"packing": False}
    return {"packing": True, "packing_strategy": packing.strategy, "shuffle_dataset": packing.shuffle}


@written_by(write_packing)
def packing(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the packing of rows. `bfd` leaves each row of the eval data set as it is, so that its loss is the same with
    and without `eval_packing`."""
    packed, evaluated = foreign["packing"], foreign["eval_packing"]
    if evaluated not in (None, packed) and foreign["packing_strategy"] != "bfd" and is_evaluated(foreign):
        raise foreign.error_for(
            "eval_packing",
            f"eval_packing is {evaluated} and packing is {packed}: Strop packs both data sets or none; leave "
            "eval_packing out.",
        )
    if not packed:
        return {"data.packing": None}
    return {"data.packing": {"strategy": foreign["packing_strategy"], "shuffle": foreign["shuffle_dataset"]}}


def _without_packing(foreign: ForeignValues) -> str | None:
    return None if foreign["packing"] or foreign["eval_packing"] else "packing is False"


def offline_rows(
    read: ReadFunction,
    learning_rate: float,
    *warnings: InactiveCheck,
    streaming: KeyMapping = _STREAMING,
    order: KeyMapping = SHUFFLED_ROW,
) -> tuple[KeyMapping, ...]:
    """Rows of a configuration for given responses. `read` decides the columns, of which `warnings` say more;
    `streaming` and `order` are the rows of a streamed data set and of the order of rows."""
    return (
        *MODEL_ROWS,
        *dataset_rows(read, *warnings, _unknown_columns, streaming=streaming, fields=_FIELDS),
        *batch_rows(offline_batch, "trainer.tasks_per_step"),
        mapped("dataloader_drop_last", False, "data.incomplete_batch", read=offline_batch),
        mapped(
            "max_length",
            1024,
            "data.max_prompt_tokens",
            "data.max_response_tokens",
            read=max_length,
            value_type=nullable(INTEGER),
        ),
        no_effect("dataset_num_proc", None, "Strop reads data in processes of its own"),
        *training_rows(learning_rate, remove_unused_columns=True, order=order),
    )


ACTIVATION_ROW = placement(
    "activation_offloading", False, "activations stay on the device", supported=only(False), value_type=ANY
)
LENGTH_ROWS = (
    refused(
        "truncation_mode",
        "keep_start",
        "Strop removes the end of a sequence that is too long; leave it at its default",
    ),
    *(
        no_effect(key, default, "sequences are packed without padding", value_type=ANY)
        for key, default in (("pad_token", None), ("padding_free", False))
    ),
    ACTIVATION_ROW,
)
"""Options of SFTConfig and DPOConfig on truncation and padding."""
TOKENIZER_ROWS = (
    refused("chat_template_path", None, "write data.chat_template in a run file"),
    refused("eos_token", None, "set it in the tokenizer's folder"),
)
"""Options of SFTConfig and RewardConfig that change the tokenizer."""
_packing_row = partial(mapped, read=packing)
_row = partial(mapped, read=demonstrations)
SFT_LEDGER = Ledger(
    "trl-sft",
    (
        *offline_rows(demonstrations, 2e-5, which_columns),
        *LENGTH_ROWS,
        _row(
            "completion_only_loss",
            None,
            "data.train.response",
            "data.train.train_on_prompt",
            value_type=nullable(BOOLEAN),
        ),
        _row("assistant_only_loss", False, "data.train.response", "data.train.train_on_prompt"),
        _row("loss_type", "nll", "algorithm.type", value_type=one_of("nll")),
        _row(
            "dataset_text_field",
            "text",
            "data.train.text",
            note="used if the rows have no prompt and no messages",
        ),
        refused("dataset_kwargs", None, "convert the data set before"),
        *TOKENIZER_ROWS,
        _packing_row(
            "shuffle_dataset",
            False,
            "data.packing",
            inactive=lambda foreign: (
                None
                if foreign["packing"]
                else "without packing the rows of each epoch are shuffled in any case"
            ),
        ),
        _packing_row("packing", False, "data.packing", "trainer.microbatch"),
        _packing_row(
            "eval_packing",
            None,
            "data.packing",
            value_type=nullable(BOOLEAN),
            note="the loss of evaluation is the same with packing_strategy bfd",
        ),
        _packing_row(
            "packing_strategy",
            "bfd",
            "data.packing",
            "data.overlong",
            value_type=one_of("bfd", "bfd_split", "wrapped"),
            inactive=_without_packing,
        ),
    ),
)
