"""Component `verl_trainer_component` of AzureML: verl's keys under other names and with other defaults."""

from __future__ import annotations

from strop.compat.azureml.component import ComponentInput
from strop.compat.azureml.rft_trainer import ACTOR, MODEL, REF, ROLLOUT, model_input, parse_target_modules
from strop.compat.azureml.verl_inputs import verl_component, verl_input
from strop.compat.ledger.key_mapping import UNSET, only, placement
from strop.compat.verl.algorithm import ESTIMATORS
from strop.config.load.job import ComponentOutput

_ENGINE = f"{ROLLOUT}.name"
_DATA: tuple[ComponentInput, ...] = (
    verl_input("ENGINE", "string", "vllm", _ENGINE),
    verl_input("data_train_files", "uri_file", UNSET, "data.train_files", required=True),
    verl_input("data_val_files", "uri_file", UNSET, "data.val_files", required=True, note=""),
    verl_input("data_train_batch_size", "integer", 512, "data.train_batch_size"),
    verl_input("data_max_prompt_length", "integer", 1024, "data.max_prompt_length"),
    verl_input("data_max_response_length", "integer", 2048, "data.max_response_length"),
    verl_input("data_filter_overlong_prompts", "boolean", True, "data.filter_overlong_prompts"),
    verl_input("data_truncation", "string", "error", "data.truncation"),
    verl_input("data_image_key", "string", "images", "data.image_key"),
)
_ACTOR: tuple[ComponentInput, ...] = (
    model_input("actor_model_path"),
    verl_input("actor_optim_lr", "number", 3e-6, f"{ACTOR}.optim.lr"),
    verl_input("actor_model_use_remove_padding", "boolean", True, f"{MODEL}.use_remove_padding"),
    verl_input(
        "actor_strategy",
        "string",
        "fsdp2",
        f"{ACTOR}.strategy",
        enum=("fsdp", "fsdp2"),
        also=("megatron",),
    ),
    verl_input("actor_fsdp_config_offload_policy", "boolean", True, f"{ACTOR}.fsdp_config.offload_policy"),
    verl_input("actor_ppo_mini_batch_size", "integer", 128, f"{ACTOR}.ppo_mini_batch_size"),
    verl_input("actor_ppo_micro_batch_size_per_gpu", "integer", 10, f"{ACTOR}.ppo_micro_batch_size_per_gpu"),
    verl_input("actor_model_lora_rank", "integer", 64, f"{MODEL}.lora_rank"),
    verl_input("actor_model_lora_alpha", "integer", 32, f"{MODEL}.lora_alpha"),
    verl_input(
        "actor_model_target_modules",
        "string",
        "all-linear",
        f"{MODEL}.target_modules",
        convert=parse_target_modules,
    ),
    verl_input(
        "actor_model_exclude_modules",
        "string",
        ".*visual.*",
        f"{MODEL}.exclude_modules",
        convert=parse_target_modules,
    ),
    verl_input("actor_use_kl_loss", "boolean", True, f"{ACTOR}.use_kl_loss"),
    verl_input("actor_kl_loss_coef", "number", 0.01, f"{ACTOR}.kl_loss_coef"),
    verl_input("actor_kl_loss_type", "string", "low_var_kl", f"{ACTOR}.kl_loss_type"),
    verl_input("actor_entropy_coeff", "integer", 0, f"{ACTOR}.entropy_coeff"),
    verl_input(
        "actor_model_enable_gradient_checkpointing", "boolean", True, f"{MODEL}.enable_gradient_checkpointing"
    ),
    verl_input("actor_fsdp_param_offload", "boolean", False, f"{ACTOR}.fsdp_config.param_offload"),
    verl_input("actor_fsdp_optimizer_offload", "boolean", False, f"{ACTOR}.fsdp_config.optimizer_offload"),
)
_ROLLOUT: tuple[ComponentInput, ...] = (
    verl_input(
        "rollout_log_prob_micro_batch_size_per_gpu",
        "integer",
        20,
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu",
    ),
    verl_input("rollout_tensor_model_parallel_size", "integer", 2, f"{ROLLOUT}.tensor_model_parallel_size"),
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
    verl_input("rollout_gpu_memory_utilization", "number", 0.6, f"{ROLLOUT}.gpu_memory_utilization"),
    verl_input("rollout_enable_chunked_prefill", "boolean", False, f"{ROLLOUT}.enable_chunked_prefill"),
    verl_input("rollout_enforce_eager", "boolean", False, f"{ROLLOUT}.enforce_eager"),
    verl_input("rollout_free_cache_engine", "boolean", False, f"{ROLLOUT}.free_cache_engine"),
    verl_input("rollout_n", "integer", 5, f"{ROLLOUT}.n"),
)
_REST: tuple[ComponentInput, ...] = (
    verl_input(
        "ref_log_prob_micro_batch_size_per_gpu", "integer", 20, f"{REF}.log_prob_micro_batch_size_per_gpu"
    ),
    verl_input("ref_fsdp_param_offload", "boolean", True, f"{REF}.fsdp_config.param_offload"),
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
    verl_input("trainer_n_gpus_per_node", "integer", 8, "trainer.n_gpus_per_node"),
    verl_input("trainer_nnodes", "integer", 1, "trainer.nnodes"),
    verl_input("trainer_save_freq", "integer", 20, "trainer.save_freq"),
    verl_input("trainer_test_freq", "integer", 5, "trainer.test_freq"),
    verl_input("trainer_total_epochs", "integer", 15, "trainer.total_epochs"),
    verl_input("total_training_steps", "integer", UNSET, "trainer.total_training_steps"),
)
VERL_TRAINER = verl_component(
    "verl_trainer",
    "verl_trainer_component",
    (*_DATA, *_ACTOR, *_ROLLOUT, *_REST),
    (ComponentOutput("model_output", "uri_folder", "model"),),
    default_overrides={
        "algorithm.kl_ctrl.kl_coef": 0.001,
        "trainer.project_name": "verl_trainer",
        "trainer.experiment_name": "run",
    },
)
