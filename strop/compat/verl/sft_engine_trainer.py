"""Ledger and reader of verl's `sft_trainer_engine.yaml`, the SFT trainer since verl 0.6."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from strop.compat.hydra.selection import ConfigSelection
from strop.compat.ledger.conversions import SWITCH
from strop.compat.ledger.key_mapping import (
    UNSET,
    ForeignValues,
    aliases,
    mapped,
    no_effect,
    not_on_page,
    only,
    placement,
    placement_section,
    refused,
    unless,
    unset_by_null,
)
from strop.compat.ledger.placement_notes import (
    ALWAYS_PACKED,
    NO_QUANTIZED_TRAINING,
    NO_SHARDS,
    ONE_GPU,
    ONE_MACHINE,
    OWN_KERNELS,
    fused_kernels,
)
from strop.compat.ledger.reader import read_dialect
from strop.compat.ledger.table import KeyOwnerHint, Ledger
from strop.compat.ledger.value_types import (
    ANY,
    INTEGER,
    NUMBER,
    STRING,
    STRING_OR_LIST,
    nullable,
    one_of,
)
from strop.compat.verl import sft_engine_data, sft_engine_optimizer
from strop.compat.verl.checkpoint_contents import checkpoint_contents_rows
from strop.compat.verl.gpus import one_gpu
from strop.compat.verl.hydra import read_command_line
from strop.compat.verl.parameter_dtypes import PARAMETER_DTYPES, half_parameters
from strop.compat.verl.sft_converters import (
    imports,
    lora,
    without_lora,
)
from strop.compat.verl.sft_engine_optimizer import is_empty
from strop.compat.verl.sft_run_rows import FOLDERS, INTERVALS
from strop.compat.verl.shipped import SFT_ENGINE
from strop.compat.verl.trainer import MONITOR_NAMES, RESUME, duration, lacking_monitors, monitors
from strop.config.load.loader import LoadedRun
from strop.config.load.overrides import parse_overrides
from strop.config.load.yaml_file import read_yaml

_mtp = unless("model.mtp.enable", True)


def template(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the chat template; null means the tokenizer's."""
    return {"data.chat_template": foreign["model.custom_chat_template"] or "tokenizer"}


def precision(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the dtypes: the key sets the parameters' dtype; computation is in bfloat16."""
    return {"model.dtype": PARAMETER_DTYPES[foreign["engine.model_dtype"]], "model.compute_dtype": "bfloat16"}


def _heads_only(foreign: ForeignValues, value: Any) -> bool:
    return not value or bool(foreign["model.mtp.detach_encoder"])


_MODEL = (
    mapped("model.path", "~/models/deepseek-llm-7b-chat", "model.path"),
    mapped("model.tokenizer_path", None, "model.tokenizer", value_type=nullable(STRING)),
    mapped("model.external_lib", None, "model.imports", read=imports, value_type=nullable(STRING_OR_LIST)),
    mapped("model.enable_gradient_checkpointing", True, "model.gradient_checkpointing", converts=SWITCH),
    mapped("model.trust_remote_code", False, "model.trust_remote_code"),
    mapped(
        "model.custom_chat_template",
        None,
        "data.chat_template",
        read=template,
        value_type=nullable(STRING),
        note="Jinja text; null means the tokenizer's template",
    ),
    mapped("model.lora_rank", 0, "model.lora.rank", read=lora),
    mapped("model.lora_alpha", 16, "model.lora.alpha", read=lora, value_type=NUMBER, inactive=without_lora),
    mapped(
        "model.target_modules",
        "all-linear",
        "model.lora.targets",
        read=lora,
        value_type=STRING_OR_LIST,
        inactive=without_lora,
    ),
    *(
        refused(f"model.{name}", default, why, supported=is_empty)
        for name, default, why in (
            ("exclude_modules", None, "write model.target_modules"),
            ("lora_adapter_path", None, "write the merged model's folder as model.path"),
            ("lora.rank", 0, "write model.lora_rank"),
            ("hf_config_path", None, "the model folder's config.json is read; leave it null"),
            ("override_config.*", UNSET, "write a model folder with this config.json"),
        )
    ),
    placement("model.use_remove_padding", True, ALWAYS_PACKED, supported=only(True)),
    *(
        placement(f"model.{name}", False, OWN_KERNELS, supported=only(False))
        for name in ("use_shm", "enable_activation_offload")
    ),
    *(fused_kernels(f"model.{name}") for name in ("use_liger", "use_fused_kernels")),
    *(placement_section(f"model.{name}", OWN_KERNELS) for name in ("fused_kernel_options", "tiled_mlp")),
    no_effect("model.lora.*", UNSET, "model.lora.rank is 0", value_type=ANY),
    no_effect("model.mtp.enable", False, "tokens are trained one by one"),
    no_effect("model.mtp.detach_encoder", False, "the additional heads are not trained"),
    refused(
        "model.mtp.enable_train",
        False,
        "multi-token prediction adds a loss; write model.mtp.detach_encoder=True, or leave it False",
        supported=_heads_only,
        inactive=_mtp,
    ),
    no_effect("model.mtp.*", UNSET, "the additional heads are not trained", value_type=ANY),
)
_ENGINE = (
    placement(
        "engine.strategy",
        "fsdp",
        "a single process trains",
        value_type=STRING,
        supported=only("fsdp", "fsdp2"),
    ),
    mapped(
        "engine.model_dtype",
        "fp32",
        "model.dtype",
        "model.compute_dtype",
        read=precision,
        value_type=one_of(*PARAMETER_DTYPES),
        warn=half_parameters("engine.model_dtype"),
        note="dtype of the parameters; computation is in bfloat16",
    ),
    *(
        refused(f"engine.{name}", UNSET, f"{why}; write 0", supported=is_empty)
        for name, why in (
            ("override_transformer_config.moe_aux_loss_coeff", "a run file has it as trainer.router_loss"),
            ("override_transformer_config.moe_z_loss_coeff", "a run file has it as trainer.router_loss"),
            ("override_transformer_config.attention_dropout", "Strop trains without dropout"),
            ("override_transformer_config.hidden_dropout", "Strop trains without dropout"),
            ("enable_fp8", "Strop trains in bfloat16 or float32"),
            ("backend_config.fake_balanced_gate", "experts are chosen by the router"),
            ("backend_config.fake_gate_noise", "experts are chosen by the router"),
        )
    ),
    refused("engine.qat.enable", UNSET, NO_QUANTIZED_TRAINING, supported=is_empty),
    placement_section("engine", NO_SHARDS),
)
_TRAINER = (
    *INTERVALS,
    *FOLDERS,
    mapped("trainer.total_epochs", 4, "trainer.duration", read=duration),
    mapped(
        "trainer.total_training_steps",
        None,
        "trainer.duration",
        read=duration,
        value_type=nullable(INTEGER),
        note="schedules span it, and total_epochs may end the run before",
    ),
    mapped(
        "trainer.logger",
        ["console", "wandb"],
        "record.monitors",
        read=monitors,
        value_type=MONITOR_NAMES,
        warn=lacking_monitors,
    ),
    mapped("trainer.seed", 1, "seed", read=INTERVALS[0].read),
    *RESUME,
    placement("trainer.nnodes", 1, ONE_MACHINE, supported=only(1)),
    placement("trainer.n_gpus_per_node", 1, ONE_GPU, supported=one_gpu),
    placement(
        "trainer.balance_batch",
        True,
        "the ranks of an update always share it by predicted cost",
        supported=only(True),
    ),
    placement(
        "trainer.device",
        "cuda",
        "this machine's GPU, or its CPU if there is no GPU",
        value_type=STRING,
        supported=only("cuda"),
    ),
    no_effect("trainer.profile_interval", [-1, -1], "Strop does not profile a run", value_type=ANY),
    no_effect("profiler.*", UNSET, "Strop does not profile a run", value_type=ANY),
    no_effect("global_profiler.*", UNSET, "Strop does not profile a run", value_type=ANY),
    no_effect("hydra.*", UNSET, "the run folder is trainer.default_local_dir", value_type=ANY),
    *checkpoint_contents_rows("checkpoint"),
)
_ROWS = unset_by_null(
    (*sft_engine_data.ROWS, *_MODEL, *_ENGINE, *sft_engine_optimizer.ROWS, *_TRAINER), ("optim.warmup_style",)
)
LEDGER = Ledger(
    "verl-sft-engine",
    not_on_page(*_ROWS, *aliases(_ROWS, {"optim.lr_scheduler_type": "optim.warmup_style"})),
)


def uses_engine(overrides: Sequence[str], selection: ConfigSelection) -> bool:
    """Whether the command line is of the SFT trainer since verl 0.6, which has keys of its own."""
    if "sft_trainer_engine" in (selection.name or "", selection.file.stem if selection.file else ""):
        return True
    if selection.file is not None and selection.file.is_file():
        tree = read_yaml(selection.file)
        return "engine" in tree.values or tree.has(("model", "path"))
    keys = [override.key_or_group for override in parse_overrides(overrides, groups=True)]
    return any(key.split(".")[0] == "engine" or key in ("model.path", "data.messages_key") for key in keys)


def read_engine_trainer(
    overrides: Sequence[str], selection: ConfigSelection, *, here: bool, key_owner: KeyOwnerHint
) -> LoadedRun:
    """Read the arguments of `verl.trainer.sft_trainer`. Raises ConfigError and PlacementError."""
    tree = read_command_line(LEDGER, SFT_ENGINE, "sft_trainer_engine", overrides, selection, key_owner)
    return read_dialect(LEDGER, tree, here=here, key_owner=key_owner)
