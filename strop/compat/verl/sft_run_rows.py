"""Ledger rows of the intervals and of the run's folder, which verl's two SFT trainers share."""

from __future__ import annotations

from strop.compat.ledger.key_mapping import mapped
from strop.compat.ledger.value_types import ANY, INTEGER, STRING, nullable
from strop.compat.verl.sft_converters import EACH_EPOCH, intervals
from strop.compat.verl.trainer import FOLDER, folder

_NOTE = f"counts steps; -1 means only at the end, {EACH_EPOCH} every epoch"
INTERVALS = (
    mapped("trainer.save_freq", -1, "checkpoint.every", read=intervals, value_type=ANY, note=_NOTE),
    mapped("trainer.test_freq", -1, "evaluate.every", read=intervals, value_type=ANY, note=_NOTE),
    mapped("trainer.max_ckpt_to_keep", None, "checkpoint.keep", read=intervals, value_type=nullable(INTEGER)),
)
FOLDERS = (
    FOLDER,
    mapped("trainer.default_hdfs_dir", None, "checkpoint.mirror", value_type=nullable(STRING)),
    mapped("trainer.project_name", "gsm8k-sft", "project", read=folder),
    mapped("trainer.experiment_name", "test", "name", read=folder),
)
