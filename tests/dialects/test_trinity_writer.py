"""Tests that a Trinity file, read and written again, gives the same run."""

from __future__ import annotations

import pytest

from strop.dialects.ledger.writer import write_dialect
from strop.dialects.trinity.reader import LEDGER

from .trinity_file import BUFFER, TASKSET, read

pytestmark = pytest.mark.usefixtures("trinity_file")
CRITIC = "trainer.trainer_config.critic"
EXPERT = "buffer.trainer_input.auxiliary_buffers.sft_dataset"
EVAL = "buffer.explorer_input.eval_tasksets.0"
GIVEN = ("mode=train", f"{BUFFER}.path=given.jsonl", "buffer.train_batch_size=16")


@pytest.mark.parametrize(
    "written",
    [
        ["algorithm.advantage_fn_args.epsilon=1e-4", "algorithm.policy_loss_fn_args.clip_ratio_c=3.0"],
        ["algorithm.policy_loss_fn=gspo", "algorithm.kl_loss_fn=none"],
        ["algorithm.policy_loss_fn_args.loss_agg_mode=seq-mean-token-sum", "algorithm.kl_penalty_fn=k1"],
        ["algorithm.advantage_fn=rloo", "algorithm.policy_loss_fn=opmd"],
        ["algorithm.algorithm_type=opmd", "algorithm.advantage_fn_args.opmd_baseline=logavgexp"],
        [
            "algorithm.algorithm_type=ppo",
            "model.critic_model_path=c",
            "algorithm.advantage_fn_args={gamma: 0.9, lam: 0.8}",
            f"{CRITIC}.optim={{lr: 3e-5, warmup_style: cosine, min_lr_ratio: 0.1}}",
            f"{CRITIC}.cliprange_value=0.3",
        ],
        [
            "algorithm.algorithm_type=mix",
            "algorithm.policy_loss_fn_args.mu=0.3",
            "algorithm.sample_strategy_args.expert_data_ratio=0.25",
            f"+{EXPERT}={{path: e.jsonl, format: {{messages_key: m, tools_key: t}}}}",
        ],
        [
            "algorithm.sample_strategy=warmup",
            "+buffer.trainer_input.sft_warmup_steps=5",
            f"+{EXPERT}={{path: e.jsonl, format: {{prompt_key: q, response_key: a}}}}",
        ],
        ["algorithm.sample_strategy=staleness_control", "algorithm.sample_strategy_args.max_staleness=3"],
        [
            f"+{BUFFER}={{use_priority_queue: true, reuse_cooldown_time: 3, capacity: 9, path: b.db}}",
            "+synchronizer.sync_style=dynamic_by_explorer",
        ],
        [f"+{BUFFER}={{name: n, path: b.jsonl}}"],
        [f"+{BUFFER}={{storage_type: sql, path: 'postgresql://u@h/d', name: n, max_read_timeout: 60}}"],
        [f"+{BUFFER}={{storage_type: file, path: seen}}"],
        [
            f"{TASKSET}.format={{system_prompt_key: s, tools_key: t, reply_prefix: R}}",
            f"+{TASKSET}.reward_fn_args={{a: 1}}",
            f"+{EVAL}.reward_fn_args={{a: 1}}",
        ],
        [f"+{EVAL}.default_reward_fn_type=math_reward", f"+{EVAL}.reward_fn_args={{method: flexible}}"],
        [f"+{TASKSET}.default_reward_fn_type=math_reward"],
        [f"~{TASKSET}", f"+{TASKSET}={{storage_type: sql, path: t.db, name: n}}"],
        [
            f"~{TASKSET}",
            f"+{TASKSET}={{storage_type: queue, path: t.db, name: n}}",
            "+buffer.total_steps=3",
        ],
        ["algorithm.algorithm_type=sft", *GIVEN, f"+{BUFFER}.format={{messages_key: m}}"],
        ["algorithm.algorithm_type=sft", *GIVEN, f"+{BUFFER}.format={{system_prompt_key: s}}"],
        ["algorithm.algorithm_type=dpo", *GIVEN, "algorithm.policy_loss_fn_args={label_smoothing: 0.1}"],
        ["algorithm.algorithm_type=dpo", *GIVEN, "model.min_response_tokens=5"],
        ["model.custom_chat_template='[{{ messages }}]'"],
    ],
    ids=str,
)
def test_round_trip(written: list[str]) -> None:
    assert write_dialect(LEDGER, read(*written).run).unsupported == ()
