"""AzureML's `verl_trainer_component`: verl's keys under names and with defaults of its own."""

from __future__ import annotations

from strop.config.dialects.component.inputs import Input, Output
from strop.config.dialects.component.rft_trainer import ACTOR, MODEL, REF, ROLLOUT, model_input, modules
from strop.config.dialects.component.verl_names import component, verl
from strop.config.dialects.row import UNSET, only, placement
from strop.config.dialects.verl.algorithm import ESTIMATORS

_ENGINE = f"{ROLLOUT}.name"
_DATA: tuple[Input, ...] = (
    verl("ENGINE", "string", "vllm", _ENGINE),
    verl("data_train_files", "uri_file", UNSET, "data.train_files", required=True),
    verl("data_val_files", "uri_file", UNSET, "data.val_files", required=True, note=""),
    verl("data_train_batch_size", "integer", 512, "data.train_batch_size"),
    verl("data_max_prompt_length", "integer", 1024, "data.max_prompt_length"),
    verl("data_max_response_length", "integer", 2048, "data.max_response_length"),
    verl("data_filter_overlong_prompts", "boolean", True, "data.filter_overlong_prompts"),
    verl("data_truncation", "string", "error", "data.truncation"),
    verl("data_image_key", "string", "images", "data.image_key"),
)
_ACTOR: tuple[Input, ...] = (
    model_input("actor_model_path"),
    verl("actor_optim_lr", "number", 3e-6, f"{ACTOR}.optim.lr"),
    verl("actor_model_use_remove_padding", "boolean", True, f"{MODEL}.use_remove_padding"),
    verl("actor_strategy", "string", "fsdp2", f"{ACTOR}.strategy", enum=("fsdp", "fsdp2")),
    verl("actor_fsdp_config_offload_policy", "boolean", True, f"{ACTOR}.fsdp_config.offload_policy"),
    verl("actor_ppo_mini_batch_size", "integer", 128, f"{ACTOR}.ppo_mini_batch_size"),
    verl("actor_ppo_micro_batch_size_per_gpu", "integer", 10, f"{ACTOR}.ppo_micro_batch_size_per_gpu"),
    verl("actor_model_lora_rank", "integer", 64, f"{MODEL}.lora_rank"),
    verl("actor_model_lora_alpha", "integer", 32, f"{MODEL}.lora_alpha"),
    verl("actor_model_target_modules", "string", "all-linear", f"{MODEL}.target_modules", convert=modules),
    verl("actor_model_exclude_modules", "string", ".*visual.*", f"{MODEL}.exclude_modules", convert=modules),
    verl("actor_use_kl_loss", "boolean", True, f"{ACTOR}.use_kl_loss"),
    verl("actor_kl_loss_coef", "number", 0.01, f"{ACTOR}.kl_loss_coef"),
    verl("actor_kl_loss_type", "string", "low_var_kl", f"{ACTOR}.kl_loss_type"),
    verl("actor_entropy_coeff", "integer", 0, f"{ACTOR}.entropy_coeff"),
    verl(
        "actor_model_enable_gradient_checkpointing", "boolean", True, f"{MODEL}.enable_gradient_checkpointing"
    ),
    verl("actor_fsdp_param_offload", "boolean", False, f"{ACTOR}.fsdp_config.param_offload"),
    verl("actor_fsdp_optimizer_offload", "boolean", False, f"{ACTOR}.fsdp_config.optimizer_offload"),
)
_ROLLOUT: tuple[Input, ...] = (
    verl(
        "rollout_log_prob_micro_batch_size_per_gpu",
        "integer",
        20,
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu",
    ),
    verl("rollout_tensor_model_parallel_size", "integer", 2, f"{ROLLOUT}.tensor_model_parallel_size"),
    verl("rollout_name", "string", "vllm", _ENGINE),
    verl("rollout_dtype", "string", "float16", f"{ROLLOUT}.dtype", enum=("float16", "bfloat16", "float32")),
    verl(
        "rollout_disable_mm_preprocessor_cache",
        "boolean",
        True,
        "rollout_disable_mm_preprocessor_cache",
        row=placement("", True, "the native sampler keeps no cache of images", can=only(True)),
    ),
    verl("rollout_gpu_memory_utilization", "number", 0.6, f"{ROLLOUT}.gpu_memory_utilization"),
    verl("rollout_enable_chunked_prefill", "boolean", False, f"{ROLLOUT}.enable_chunked_prefill"),
    verl("rollout_enforce_eager", "boolean", False, f"{ROLLOUT}.enforce_eager"),
    verl("rollout_free_cache_engine", "boolean", False, f"{ROLLOUT}.free_cache_engine"),
    verl("rollout_n", "integer", 5, f"{ROLLOUT}.n"),
)
_REST: tuple[Input, ...] = (
    verl("ref_log_prob_micro_batch_size_per_gpu", "integer", 20, f"{REF}.log_prob_micro_batch_size_per_gpu"),
    verl("ref_fsdp_param_offload", "boolean", True, f"{REF}.fsdp_config.param_offload"),
    verl(
        "algorithm_adv_estimator",
        "string",
        "grpo",
        "algorithm.adv_estimator",
        enum=ESTIMATORS,
        note="gae is PPO, with a critic",
    ),
    verl("algorithm_use_kl_in_reward", "boolean", False, "algorithm.use_kl_in_reward", note="fixed, 0.001"),
    verl("trainer_critic_warmup", "integer", 0, "trainer.critic_warmup"),
    verl("trainer_n_gpus_per_node", "integer", 8, "trainer.n_gpus_per_node"),
    verl("trainer_nnodes", "integer", 1, "trainer.nnodes"),
    verl("trainer_save_freq", "integer", 20, "trainer.save_freq"),
    verl("trainer_test_freq", "integer", 5, "trainer.test_freq"),
    verl("trainer_total_epochs", "integer", 15, "trainer.total_epochs"),
    verl("total_training_steps", "integer", UNSET, "trainer.total_training_steps"),
)
VERL_TRAINER = component(
    "verl_trainer",
    "verl_trainer_component",
    (*_DATA, *_ACTOR, *_ROLLOUT, *_REST),
    (Output("model_output", "uri_folder", "model"),),
    unsaid={
        "algorithm.kl_ctrl.kl_coef": 0.001,
        "trainer.project_name": "verl_trainer",
        "trainer.experiment_name": "run",
    },
)
