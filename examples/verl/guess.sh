#!/bin/bash
# GRPO on conversations with a tool and a simulated user, as a launch script of verl's has it.
#   python examples/verl/make.py runs/verl && bash examples/verl/guess.sh
# "$@" takes further overrides.
set -e
folder=${VERL_EXAMPLE:-runs/verl}
strop verl ppo --here \
    data.train_files="$folder/digits.jsonl" \
    data.val_files=null \
    data.train_batch_size=4 \
    data.max_prompt_length=512 \
    data.max_response_length=192 \
    data.return_raw_chat=True \
    actor_rollout_ref.model.path="$folder/model" \
    actor_rollout_ref.actor.optim.lr=3e-3 \
    actor_rollout_ref.actor.ppo_mini_batch_size=4 \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8 \
    actor_rollout_ref.rollout.name=sglang \
    actor_rollout_ref.rollout.n=8 \
    actor_rollout_ref.rollout.multi_turn.enable=True \
    actor_rollout_ref.rollout.multi_turn.max_assistant_turns=3 \
    actor_rollout_ref.rollout.multi_turn.tool_config_path=examples/verl/tools.yaml \
    actor_rollout_ref.rollout.multi_turn.interaction_config_path=examples/verl/interactions.yaml \
    custom_reward_function.path=examples/verl/reward.py \
    algorithm.adv_estimator=grpo \
    trainer.logger=[console] \
    trainer.project_name=verl \
    trainer.experiment_name=guess \
    trainer.default_local_dir="$folder/checkpoints" \
    trainer.test_freq=-1 \
    trainer.total_training_steps=20 \
    "$@"
