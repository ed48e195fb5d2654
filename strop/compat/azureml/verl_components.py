"""Components `rft_trainer` and `verl_trainer_component` of AzureML, whose inputs stand for keys of verl."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from strop.compat.azureml.component import (
    Component,
    ComponentInput,
    InputType,
    component_input,
    model_folder_converter,
)
from strop.compat.azureml.job import REQUIREMENTS
from strop.compat.ledger.key_mapping import (
    UNSET,
    KeyConverter,
    KeyMapping,
    Ledger,
    mapped,
    one_of,
    only,
    placement,
)
from strop.compat.verl.algorithm import ESTIMATORS
from strop.compat.verl.ppo_trainer import LEDGER as VERL
from strop.compat.verl.trainer import every, frequency
from strop.config.load.loader import ComponentOutput
from strop.config.schema import Run
from strop.config.units import Amount

_DOTTED = re.compile(r"(?<!\w)[A-Za-z_]\w*+(?:\.\w+)+")


def verl_input(
    name: str,
    input_type: InputType,
    default: Any,
    key: str,
    *,
    required: bool = False,
    enum: tuple[str, ...] = (),
    convert: Callable[[str], Any] | None = None,
    row: KeyMapping | None = None,
    note: str | None = None,
    also: tuple[str, ...] = (),
    on_page: bool = True,
) -> ComponentInput:
    """An input that stands for verl's `key`; `row` replaces verl's row for it."""
    found = row or VERL.find(key)
    assert found is not None, key
    value_type = one_of(*enum, *also) if enum else found.value_type
    note = found.note if note is None else note
    row = replace(
        found,
        key=name,
        default=default,
        value_type=value_type,
        note=note,
        default_stated=on_page,
        on_page=on_page,
        deprecated="",
    )
    return ComponentInput(input_type, row, key, required, enum, convert, also)


_FURTHER: tuple[tuple[str, InputType, str], ...] = (
    ("actor_loss_agg_mode", "string", "actor_rollout_ref.actor.loss_agg_mode"),
    ("algorithm_norm_adv_by_std_in_grpo", "boolean", "algorithm.norm_adv_by_std_in_grpo"),
    ("critic_optim_lr", "number", "critic.optim.lr"),
    ("critic_ppo_micro_batch_size_per_gpu", "integer", "critic.ppo_micro_batch_size_per_gpu"),
    ("critic_strategy", "string", "critic.strategy"),
    ("critic_model_path", "string", "critic.model.path"),
    ("critic_model_use_remove_padding", "boolean", "critic.model.use_remove_padding"),
    ("critic_model_enable_gradient_checkpointing", "boolean", "critic.model.enable_gradient_checkpointing"),
    ("critic_fsdp_param_offload", "boolean", "critic.model.fsdp_config.param_offload"),
    ("critic_fsdp_optimizer_offload", "boolean", "critic.model.fsdp_config.optimizer_offload"),
    ("critic_cliprange_value", "number", "critic.cliprange_value"),
    ("critic_grad_clip", "number", "critic.grad_clip"),
)


def _further_input(name: str, kind: InputType, key: str) -> ComponentInput:
    row = VERL.find(key)
    assert row is not None, key
    return verl_input(name, kind, row.default, key, on_page=False)


def verl_component(
    name: str,
    azureml_name: str,
    inputs: tuple[ComponentInput, ...],
    outputs: tuple[ComponentOutput, ...],
    *,
    default_overrides: Mapping[str, Any],
    serving_engine: str = "",
) -> Component:
    """A component whose inputs stand for verl's keys. Keys that are no inputs have verl's defaults, unless
    `default_overrides` has another default for the component."""
    by_key = {part.key: part.row for part in inputs}
    names = {part.key: part.name for part in inputs if part.key != part.name}
    rows = tuple(
        replace(by_key[row.key], key=row.key)
        if row.key in by_key
        else replace(row, default=default_overrides.get(row.key, row.default), default_stated=False)
        for row in VERL.rows
    )
    others = tuple(row for key, row in by_key.items() if VERL.find(key) is None)
    shown = tuple(
        replace(part, row=replace(part.row, note=rename_keys(part.row.note, names))) for part in inputs
    )
    return Component(
        name,
        azureml_name,
        shown,
        outputs,
        Ledger(name, rows + others),
        "trainer.default_local_dir",
        names,
        serving_engine,
        tuple(_further_input(*each) for each in _FURTHER),
    )


def rename_keys(text: str, names: Mapping[str, str]) -> str:
    """The text with the input's name in place of every verl key."""
    return _DOTTED.sub(lambda found: names.get(found[0], found[0]), text)


ACTOR = "actor_rollout_ref.actor"
MODEL = "actor_rollout_ref.model"
ROLLOUT = "actor_rollout_ref.rollout"
REF = "actor_rollout_ref.ref"


def parse_target_modules(text: str) -> str | list[str]:
    """Parse `[q_proj,v_proj]` as a list; other text is `all-linear` or a regular expression."""
    text = text.strip()
    if text.startswith("[") and text.endswith("]"):
        return [name.strip().strip("'\"") for name in text[1:-1].split(",") if name.strip()]
    return text


def _in_epochs(key: str, field: str, interval: Callable[[Run], Amount | None]) -> KeyConverter:
    """Converter of an interval that counts epochs."""
    return KeyConverter(
        lambda foreign: {field: every(foreign[key], "epochs")},
        lambda run: {key: frequency(run, interval(run), "epochs")},
    )


_SAVED = _in_epochs("trainer.save_freq", "checkpoint.every", lambda run: run.checkpoint.every)
_TESTED = _in_epochs("trainer.test_freq", "evaluate.every", lambda run: run.evaluate.every)
_RFT_ALGORITHM: tuple[ComponentInput, ...] = (
    verl_input(
        "algorithm_adv_estimator",
        "string",
        "grpo",
        "algorithm.adv_estimator",
        enum=("grpo", "reinforce_plus_plus"),
        required=True,
        note="",
    ),
    verl_input(
        "algorithm_use_kl_in_reward",
        "boolean",
        False,
        "algorithm.use_kl_in_reward",
        note="adaptive coefficient that starts at 0.001; independent of actor_use_kl_loss",
    ),
)
_RFT_TRAINER: tuple[ComponentInput, ...] = (
    verl_input("trainer_n_gpus_per_node", "integer", 8, "trainer.n_gpus_per_node"),
    verl_input("trainer_nnodes", "integer", 1, "trainer.nnodes"),
    verl_input(
        "trainer_save_freq",
        "integer",
        20,
        "trainer.save_freq",
        row=mapped("", 20, "checkpoint.every", read=_SAVED, note="counts epochs; -1 means never"),
    ),
    verl_input(
        "trainer_test_freq",
        "integer",
        5,
        "trainer.test_freq",
        row=mapped("", 5, "evaluate.every", read=_TESTED, note="counts epochs; -1 means never"),
    ),
    verl_input("trainer_val_before_train", "boolean", True, "trainer.val_before_train"),
    verl_input("trainer_total_epochs", "integer", 7, "trainer.total_epochs"),
    verl_input("total_training_steps", "integer", UNSET, "trainer.total_training_steps"),
)
_RFT_DATA: tuple[ComponentInput, ...] = (
    verl_input("data_train_files", "uri_file", UNSET, "data.train_files", required=True),
    verl_input("data_val_files", "uri_file", UNSET, "data.val_files", required=True, note=""),
    verl_input("data_train_batch_size", "integer", 512, "data.train_batch_size"),
    verl_input("data_max_prompt_length", "integer", 1024, "data.max_prompt_length"),
    verl_input("data_max_response_length", "integer", 2048, "data.max_response_length"),
    verl_input("data_filter_overlong_prompts", "boolean", True, "data.filter_overlong_prompts"),
    verl_input(
        "data_truncation",
        "string",
        "error",
        "data.truncation",
        enum=("error", "left", "right", "middle"),
        required=True,
    ),
)


_MODEL_NOTE = (
    "a Hugging Face folder, an MLflow model, or an output of the import component with either inside"
)


def model_input(name: str) -> ComponentInput:
    """The input for the model folder."""
    key = f"{MODEL}.path"
    row = mapped(
        "", UNSET, "model.path", "model.tokenizer", read=model_folder_converter(key), note=_MODEL_NOTE
    )
    return verl_input(name, "uri_folder", UNSET, key, required=True, row=row)


_RFT_ACTOR: tuple[ComponentInput, ...] = (
    model_input("actor_model_path"),
    verl_input("actor_optim_lr", "number", 3e-6, f"{ACTOR}.optim.lr"),
    verl_input("actor_model_use_remove_padding", "boolean", True, f"{MODEL}.use_remove_padding"),
    verl_input(
        "actor_strategy", "string", "fsdp2", f"{ACTOR}.strategy", enum=("fsdp", "fsdp2"), also=("megatron",)
    ),
    verl_input("actor_fsdp_config_offload_policy", "boolean", True, f"{ACTOR}.fsdp_config.offload_policy"),
    verl_input("actor_rft_mini_batch_size", "integer", 128, f"{ACTOR}.ppo_mini_batch_size"),
    verl_input("actor_rft_micro_batch_size_per_gpu", "integer", 10, f"{ACTOR}.ppo_micro_batch_size_per_gpu"),
    verl_input("actor_model_lora_rank", "integer", 64, f"{MODEL}.lora_rank"),
    verl_input("actor_model_lora_alpha", "integer", 32, f"{MODEL}.lora_alpha"),
    verl_input(
        "actor_model_target_modules",
        "string",
        "all-linear",
        f"{MODEL}.target_modules",
        convert=parse_target_modules,
    ),
    verl_input("actor_use_kl_loss", "boolean", True, f"{ACTOR}.use_kl_loss"),
    verl_input("actor_kl_loss_coef", "number", 0.01, f"{ACTOR}.kl_loss_coef"),
    verl_input(
        "actor_kl_loss_type",
        "string",
        "low_var_kl",
        f"{ACTOR}.kl_loss_type",
        enum=("low_var_kl", "kl", "abs", "mse"),
    ),
    verl_input("actor_entropy_coeff", "number", 0.0, f"{ACTOR}.entropy_coeff"),
    verl_input(
        "actor_model_enable_gradient_checkpointing", "boolean", True, f"{MODEL}.enable_gradient_checkpointing"
    ),
    verl_input("actor_fsdp_param_offload", "boolean", False, f"{ACTOR}.fsdp_config.param_offload"),
    verl_input("actor_fsdp_optimizer_offload", "boolean", False, f"{ACTOR}.fsdp_config.optimizer_offload"),
)
_RFT_ROLLOUT: tuple[ComponentInput, ...] = (
    verl_input(
        "rollout_log_prob_micro_batch_size_per_gpu",
        "integer",
        20,
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu",
    ),
    verl_input("rollout_tensor_model_parallel_size", "integer", 2, f"{ROLLOUT}.tensor_model_parallel_size"),
    verl_input(
        "rollout_dtype",
        "string",
        "bfloat16",
        f"{ROLLOUT}.dtype",
        enum=("float16", "bfloat16", "float32", "auto"),
    ),
    verl_input("rollout_gpu_memory_utilization", "number", 0.6, f"{ROLLOUT}.gpu_memory_utilization"),
    verl_input("rollout_enable_chunked_prefill", "boolean", False, f"{ROLLOUT}.enable_chunked_prefill"),
    verl_input("rollout_enforce_eager", "boolean", False, f"{ROLLOUT}.enforce_eager"),
    verl_input("rollout_free_cache_engine", "boolean", False, f"{ROLLOUT}.free_cache_engine"),
    verl_input("rollout_n", "integer", 5, f"{ROLLOUT}.n"),
    verl_input("rollout_temperature", "number", 1.0, f"{ROLLOUT}.temperature"),
    verl_input("rollout_top_p", "number", 1.0, f"{ROLLOUT}.top_p"),
    verl_input("rollout_top_k", "integer", -1, f"{ROLLOUT}.top_k"),
    verl_input("rollout_do_sample", "boolean", True, f"{ROLLOUT}.do_sample"),
    verl_input("rollout_val_temperature", "number", 0.7, f"{ROLLOUT}.val_kwargs.temperature"),
    verl_input("rollout_val_top_p", "number", 0.7, f"{ROLLOUT}.val_kwargs.top_p"),
    verl_input("rollout_val_top_k", "integer", -1, f"{ROLLOUT}.val_kwargs.top_k"),
)
_RFT_REST: tuple[ComponentInput, ...] = (
    verl_input(
        "ref_log_prob_micro_batch_size_per_gpu", "integer", 20, f"{REF}.log_prob_micro_batch_size_per_gpu"
    ),
    verl_input("ref_fsdp_param_offload", "boolean", True, f"{REF}.fsdp_config.param_offload"),
    component_input(
        "string",
        KeyMapping(
            "pypi_packages_override",
            UNSET,
            "mapped",
            note="pip installs the packages before heavy libraries are imported",
            value_type=REQUIREMENTS,
        ),
    ),
)
_RFT_INPUTS = (*_RFT_ALGORITHM, *_RFT_TRAINER, *_RFT_DATA, *_RFT_ACTOR, *_RFT_ROLLOUT, *_RFT_REST)
RFT_TRAINER = verl_component(
    "rft_trainer",
    "rft_trainer",
    _RFT_INPUTS,
    (
        ComponentOutput("intermediate_folder", "uri_folder", "run"),
        ComponentOutput("model_output", "uri_folder", "model"),
    ),
    default_overrides={
        "algorithm.kl_ctrl.type": "adaptive",  # its documentation: "classic PPO approach with adaptive KL"
        "algorithm.kl_ctrl.kl_coef": 0.001,
        f"{ACTOR}.checkpoint.save_contents": ["model", "optimizer", "extra", "hf_model"],
        f"{ROLLOUT}.val_kwargs.do_sample": True,
        "trainer.project_name": "rft_trainer",
        "trainer.experiment_name": "run",
    },
    serving_engine="vllm",
)
_ENGINE = f"{ROLLOUT}.name"


def _as_in_rft_trainer(*names: str) -> tuple[ComponentInput, ...]:
    """Inputs that both components have."""
    known = {part.name: part for part in _RFT_INPUTS}
    return tuple(known[name] for name in names)


_VERL_DATA: tuple[ComponentInput, ...] = (
    verl_input("ENGINE", "string", "vllm", _ENGINE),
    *_as_in_rft_trainer(
        "data_train_files",
        "data_val_files",
        "data_train_batch_size",
        "data_max_prompt_length",
        "data_max_response_length",
        "data_filter_overlong_prompts",
    ),
    verl_input("data_truncation", "string", "error", "data.truncation"),
    verl_input("data_image_key", "string", "images", "data.image_key"),
)
_VERL_ACTOR: tuple[ComponentInput, ...] = (
    *_as_in_rft_trainer(
        "actor_model_path",
        "actor_optim_lr",
        "actor_model_use_remove_padding",
        "actor_strategy",
        "actor_fsdp_config_offload_policy",
    ),
    verl_input("actor_ppo_mini_batch_size", "integer", 128, f"{ACTOR}.ppo_mini_batch_size"),
    verl_input("actor_ppo_micro_batch_size_per_gpu", "integer", 10, f"{ACTOR}.ppo_micro_batch_size_per_gpu"),
    *_as_in_rft_trainer("actor_model_lora_rank", "actor_model_lora_alpha", "actor_model_target_modules"),
    verl_input(
        "actor_model_exclude_modules",
        "string",
        ".*visual.*",
        f"{MODEL}.exclude_modules",
        convert=parse_target_modules,
    ),
    *_as_in_rft_trainer("actor_use_kl_loss", "actor_kl_loss_coef"),
    verl_input("actor_kl_loss_type", "string", "low_var_kl", f"{ACTOR}.kl_loss_type"),
    verl_input("actor_entropy_coeff", "integer", 0, f"{ACTOR}.entropy_coeff"),
    *_as_in_rft_trainer(
        "actor_model_enable_gradient_checkpointing",
        "actor_fsdp_param_offload",
        "actor_fsdp_optimizer_offload",
    ),
)
_VERL_ROLLOUT: tuple[ComponentInput, ...] = (
    *_as_in_rft_trainer("rollout_log_prob_micro_batch_size_per_gpu", "rollout_tensor_model_parallel_size"),
    verl_input("rollout_name", "string", "vllm", _ENGINE),
    verl_input(
        "rollout_dtype", "string", "float16", f"{ROLLOUT}.dtype", enum=("float16", "bfloat16", "float32")
    ),
    verl_input(
        "rollout_disable_mm_preprocessor_cache",
        "boolean",
        True,
        "rollout_disable_mm_preprocessor_cache",
        row=placement("", True, "the native sampler has no image cache", supported=only(True)),
    ),
    *_as_in_rft_trainer(
        "rollout_gpu_memory_utilization",
        "rollout_enable_chunked_prefill",
        "rollout_enforce_eager",
        "rollout_free_cache_engine",
        "rollout_n",
    ),
)
_VERL_REST: tuple[ComponentInput, ...] = (
    *_as_in_rft_trainer("ref_log_prob_micro_batch_size_per_gpu", "ref_fsdp_param_offload"),
    verl_input(
        "algorithm_adv_estimator",
        "string",
        "grpo",
        "algorithm.adv_estimator",
        enum=ESTIMATORS,
        note="gae is PPO with a critic",
    ),
    verl_input(
        "algorithm_use_kl_in_reward",
        "boolean",
        False,
        "algorithm.use_kl_in_reward",
        note="fixed coefficient of 0.001",
    ),
    verl_input("trainer_critic_warmup", "integer", 0, "trainer.critic_warmup"),
    *_as_in_rft_trainer("trainer_n_gpus_per_node", "trainer_nnodes"),
    verl_input("trainer_save_freq", "integer", 20, "trainer.save_freq"),
    verl_input("trainer_test_freq", "integer", 5, "trainer.test_freq"),
    verl_input("trainer_total_epochs", "integer", 15, "trainer.total_epochs"),
    *_as_in_rft_trainer("total_training_steps"),
)
VERL_TRAINER = verl_component(
    "verl_trainer",
    "verl_trainer_component",
    (*_VERL_DATA, *_VERL_ACTOR, *_VERL_ROLLOUT, *_VERL_REST),
    (ComponentOutput("model_output", "uri_folder", "model"),),
    default_overrides={
        "algorithm.kl_ctrl.kl_coef": 0.001,
        "trainer.project_name": "verl_trainer",
        "trainer.experiment_name": "run",
    },
)
