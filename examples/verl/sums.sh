#!/bin/bash
# GRPO on the quickstart's two-digit sums, as a launch script of verl's has it.
#   python examples/verl/sums.py data/sums && bash examples/verl/sums.sh
# "$@" takes further overrides.
set -e
strop verl ppo --here \
    algorithm.adv_estimator=grpo \
    data.train_files=data/sums/train.parquet \
    data.val_files=data/sums/test.parquet \
    data.train_batch_size=64 \
    data.max_prompt_length=16 \
    data.max_response_length=6 \
    data.filter_overlong_prompts=True \
    data.truncation=error \
    custom_reward_function.path=examples/verl/sums_reward.py \
    custom_reward_function.name=compute_score \
    actor_rollout_ref.model.path=data/sums/warm-start \
    actor_rollout_ref.model.use_remove_padding=True \
    actor_rollout_ref.actor.optim.lr=5e-4 \
    actor_rollout_ref.actor.ppo_mini_batch_size=16 \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=256 \
    actor_rollout_ref.actor.use_kl_loss=False \
    actor_rollout_ref.actor.entropy_coeff=0 \
    actor_rollout_ref.actor.fsdp_config.param_offload=False \
    actor_rollout_ref.actor.fsdp_config.optimizer_offload=False \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.6 \
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=256 \
    actor_rollout_ref.rollout.n=16 \
    algorithm.use_kl_in_reward=False \
    trainer.critic_warmup=0 \
    trainer.logger=[console,tensorboard] \
    trainer.project_name=sums \
    trainer.experiment_name=tiny \
    trainer.n_gpus_per_node=8 \
    trainer.nnodes=1 \
    trainer.save_freq=25 \
    trainer.test_freq=25 \
    trainer.total_training_steps=50 "$@"
