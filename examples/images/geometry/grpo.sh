#!/bin/bash
# GRPO on Geometry3K, as a launch script of verl's has it; --here makes one process of it on this machine.
#   python examples/images/geometry/prepare.py --hub --out data/geo3k && bash examples/images/geometry/grpo.sh
# "$@" takes further overrides, such as actor_rollout_ref.model.path of a smaller model.
set -e
data=${GEOMETRY_DATA:-data/geo3k}
strop verl ppo --here \
    data.train_files="$data/train.parquet" \
    data.val_files="$data/test.parquet" \
    data.train_batch_size=512 \
    data.max_prompt_length=1024 \
    data.max_response_length=2048 \
    data.filter_overlong_prompts=True \
    data.truncation=error \
    data.image_key=images \
    actor_rollout_ref.model.path=Qwen/Qwen2.5-VL-7B-Instruct \
    actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.actor.ppo_mini_batch_size=128 \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=10 \
    actor_rollout_ref.actor.use_kl_loss=True \
    actor_rollout_ref.actor.kl_loss_coef=0.01 \
    actor_rollout_ref.actor.kl_loss_type=low_var_kl \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.n=5 \
    algorithm.adv_estimator=grpo \
    trainer.logger=[console] \
    trainer.project_name=geometry \
    trainer.experiment_name=grpo \
    trainer.test_freq=5 \
    trainer.total_epochs=15 \
    "$@"
