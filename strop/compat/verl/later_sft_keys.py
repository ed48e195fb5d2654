"""Ledger rows of the keys that verl 0.5 and 0.6 added to `sft_trainer.yaml`."""

from __future__ import annotations

from strop.compat.ledger.key_mapping import UNSET, mapped, no_effect, only, placement, refused, versions
from strop.compat.ledger.value_types import ANY, STRING
from strop.compat.verl.checkpoint_contents import checkpoint_contents_rows
from strop.compat.verl.data import template_args
from strop.compat.verl.empty_values import is_empty
from strop.compat.verl.sft_converters import answer_columns
from strop.compat.verl.trainer import RESUME

OTHER_NAMES = {"optim.lr_warmup_steps_ratio": "optim.warmup_steps_ratio"}
"""Keys of version 0.6 that mean the same as a key of the ledger."""
ROWS = versions(
    *RESUME,
    *checkpoint_contents_rows("trainer.checkpoint"),
    placement(
        "trainer.device",
        "cuda",
        "this machine's GPU, or its CPU if there is no GPU",
        value_type=STRING,
        supported=only("cuda"),
    ),
    mapped(
        "data.train_max_samples", -1, "data.train.limit_tasks", read=answer_columns, note="-1 means all rows"
    ),
    mapped(
        "data.val_max_samples", -1, "data.eval.0.limit_tasks", read=answer_columns, note="-1 means all rows"
    ),
    mapped(
        "data.apply_chat_template_kwargs.*",
        UNSET,
        "data.chat_template_args",
        read=template_args,
        note="variables of the chat template",
    ),
    refused("optim.optimizer", "AdamW", "Strop reads AdamW here; another optimizer needs a run file"),
    placement("optim.optimizer_impl", "torch.optim", "Strop's own optimizer", supported=only("torch.optim")),
    refused(
        "optim.override_optimizer_config.*",
        UNSET,
        "Strop does not know this option of the optimizer; remove it",
        supported=is_empty,
    ),
    *(
        no_effect(f"optim.{name}", UNSET, "fsdp_sft_trainer does not read it", value_type=ANY)
        for name in (
            "total_training_steps",
            "lr_warmup_steps",
            "min_lr_ratio",
            "num_cycles",
            "lr_scheduler_type",
            "warmup_style",
        )
    ),
    since="0.5",
)
