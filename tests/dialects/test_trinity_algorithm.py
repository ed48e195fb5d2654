"""Tests of Trinity's `algorithm` section: presets of each `algorithm_type`, functions and their arguments."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from strop.config.schema.algorithm import PpoConfig, SftConfig
from strop.config.schema.critic import CriticConfig
from strop.config.schema.group_baselines import MixConfig
from strop.config.schema.model import ModelConfig
from strop.config.schema.optimizer import AdamWConfig
from strop.config.schema.policy_gradient import EntropyFilterConfig, KlLossConfig, KlRewardConfig
from strop.config.schema.policy_loss import ClippedLossConfig, GspoLossConfig, M2poLossConfig, OpmdLossConfig
from strop.config.schema.schedule import ConstantScheduleConfig, CosineScheduleConfig
from strop.config.units import Amount
from strop.dialects.ledger.writer import write_dialect
from strop.dialects.trinity.reader import LEDGER
from strop.errors import ConfigError

from .trinity_file import ACTOR, read, value

pytestmark = pytest.mark.usefixtures("trinity_file")
NO_WARMUP = Amount(0.0, "%")
SFT = (
    "algorithm.algorithm_type=sft",
    "mode=train",
    "+buffer.trainer_input.experience_buffer={path: demonstrations.jsonl, storage_type: file}",
)
PPO = "algorithm.algorithm_type=ppo"
CRITIC = "trainer.trainer_config.critic"
MIX = (
    "algorithm.algorithm_type=mix",
    "+buffer.trainer_input.auxiliary_buffers.sft_dataset={path: expert.jsonl, "
    "format: {prompt_key: q, response_key: a}}",
)


def test_ppo_critic_defaults_equal_the_page() -> None:
    run = read(PPO, "~algorithm.repeat_times").run
    assert isinstance(run.algorithm, PpoConfig)
    assert (run.algorithm.rollouts_per_task, run.algorithm.gamma, run.algorithm.lam) == (1, 1.0, 1.0)
    assert run.algorithm.kl_loss == KlLossConfig(estimator="k2", coef=0.001)
    assert run.algorithm.critic == CriticConfig(
        model=ModelConfig(path="m", gradient_checkpointing=True, compute_dtype="bfloat16"),
        head="normal",
        value_clip=0.5,
        epochs_per_step=1,
        microbatch=Amount(32768, "tokens"),
        optimizer=AdamWConfig(lr=1e-5, weight_decay=0.01),
        schedule=ConstantScheduleConfig(warmup=NO_WARMUP),
        max_grad_norm=1.0,
    )


@pytest.mark.parametrize(
    ("overrides", "field", "expected"),
    [
        (["model.critic_model_path=c"], "model.path", "c"),
        (["model.critic_model_path=''"], "model.path", "m"),
        ([f"{CRITIC}.model.enable_gradient_checkpointing=False"], "model.gradient_checkpointing", False),
        ([f"{CRITIC}.optim.lr=3e-5"], "optimizer.lr", 3e-5),
        ([f"{CRITIC}.cliprange_value=0.2"], "value_clip", 0.2),
        ([f"{CRITIC}.grad_clip=0.5"], "max_grad_norm", 0.5),
        ([f"{CRITIC}.model.override_config={{a: 1}}"], "model.override", {"a": 1}),
        (["trainer.trainer_config.actor_rollout_ref.model.external_lib=x"], "model.imports", ("x",)),
        ([f"{CRITIC}.optim.min_lr_ratio=null"], "schedule.type", "constant"),
        ([f"{CRITIC}.ppo_epochs=3"], "epochs_per_step", 3),
        ([f"{ACTOR}.ppo_epochs=3"], "epochs_per_step", 3),
        ([f"{ACTOR}.use_dynamic_bsz=False"], "microbatch", Amount(8, "sequences")),
        (["trainer.trainer_config.trainer.critic_warmup=4"], "warmup_steps", 4),
        (
            [f"{CRITIC}.optim.warmup_style=cosine", f"{CRITIC}.optim.min_lr_ratio=0.1"],
            "schedule",
            CosineScheduleConfig(warmup=NO_WARMUP, min_ratio=0.1),
        ),
    ],
)
def test_the_critics_keys(overrides: list[str], field: str, expected: Any) -> None:
    assert value(read(PPO, *overrides), f"algorithm.critic.{field}") == expected


def test_advantage_fn_selects_the_algorithm() -> None:
    """The page has a fragment of grpo with the advantage function of ppo, which has a critic."""
    page = read("algorithm.advantage_fn=ppo").run.algorithm
    assert isinstance(page, PpoConfig) and page.rollouts_per_task == 8
    assert value(read(PPO, "algorithm.advantage_fn=grpo"), "algorithm.type") == "grpo"


def test_mix_is_grpo_with_expert_responses() -> None:
    run = read(*MIX, "algorithm.policy_loss_fn_args={mu: 0.3, clip_range: 0.1}").run
    assert isinstance(run.algorithm, MixConfig)
    (expert,) = run.data.demonstrations
    assert run.algorithm.expert == expert.name == "sft_dataset"
    assert (run.algorithm.mu, run.algorithm.expert_fraction, run.algorithm.rollouts_per_task) == (0.3, 0.5, 8)
    assert run.algorithm.policy_loss == ClippedLossConfig(clip_low=0.1, clip_high=0.1, dual_clip=None)
    assert (expert.path, expert.prompt, expert.response) == ("expert.jsonl", "q", "a")
    source = read(*MIX).sources["data.demonstrations.0.path"]
    assert str(source).startswith("override +buffer.trainer_input.auxiliary")


def test_train_batch_size_counts_expert_responses() -> None:
    """4 tasks x 8 rollouts and the same number of expert responses; a quarter of 43 is 11, which leaves
    32."""
    ratio = "+algorithm.sample_strategy_args.expert_data_ratio"
    assert value(read(*MIX, "buffer.train_batch_size=64"), "algorithm.expert_fraction") == 0.5
    loaded = read(*MIX, "buffer.train_batch_size=43", f"{ratio}=0.25")
    assert (value(loaded, "algorithm.expert_fraction"), loaded.run.trainer.tasks_per_step) == (11 / 43, 4)
    with pytest.raises(ConfigError, match=r"\(32\) with 16 expert responses.*Write 64, or remove it"):
        read(*MIX, "buffer.train_batch_size=32")


@pytest.mark.parametrize(
    ("overrides", "field", "expected"),
    [
        (["algorithm.policy_loss_fn=ppo"], "policy_loss", ClippedLossConfig(dual_clip=None)),
        (["algorithm.policy_loss_fn_args.clip_ratio_c=3.0"], "policy_loss.dual_clip", 3.0),
        (["algorithm.policy_loss_fn_args.clip_range_high=0.28"], "policy_loss.clip_high", 0.28),
        (["algorithm.policy_loss_fn=gspo"], "policy_loss", GspoLossConfig(clip_low=3e-4, clip_high=4e-4)),
        (["algorithm.policy_loss_fn=gspo"], "aggregation", "seq-mean-token-mean"),
        (
            ["algorithm.policy_loss_fn=gspo", "algorithm.policy_loss_fn_args.clip_range=0.01"],
            "policy_loss",
            GspoLossConfig(clip_low=0.01, clip_high=0.01),
        ),
        (["algorithm.policy_loss_fn=opmd"], "policy_loss", OpmdLossConfig(tau=1.0)),
        (
            ["algorithm.policy_loss_fn_args.loss_agg_mode=seq-mean-token-sum"],
            "aggregation",
            "seq-mean-token-sum",
        ),
        (["algorithm.sample_strategy=default"], "type", "grpo"),
        (
            ["algorithm.kl_penalty_fn=abs", "algorithm.kl_penalty_fn_args.kl_coef=0.2"],
            "kl_reward",
            KlRewardConfig(estimator="abs", coef=0.2),
        ),
        (["algorithm.entropy_loss_fn_args.entropy_coef=0.01"], "entropy_coef", 0.01),
        (
            ["algorithm.entropy_loss_fn=none", "algorithm.entropy_loss_fn_args.entropy_coef=0.01"],
            "entropy_coef",
            0.0,
        ),
        (
            [
                "algorithm.algorithm_type=opmd",
                "algorithm.advantage_fn_args={opmd_baseline: logavgexp, tau: 0.5}",
            ],
            "baseline.tau",
            0.5,
        ),
    ],
)
def test_functions_and_their_arguments(overrides: list[str], field: str, expected: Any) -> None:
    assert value(read(*overrides), f"algorithm.{field}") == expected


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (
            ["algorithm.policy_loss_fn=mix"],
            r"policy_loss_fn mix is incompatible with .* grpo; write one of ppo",
        ),
        ([*MIX, "algorithm.policy_loss_fn=ppo"], "write policy_loss_fn mix"),
        ([*MIX, "algorithm.advantage_fn=rloo"], "write advantage_fn: grpo"),
        ([*MIX[:1]], r"reads the auxiliary buffer .*sft_dataset, but no buffer is configured"),
        ([*MIX, "algorithm.sample_strategy_args.sft_dataset_name=other"], "but the buffers are sft_dataset"),
        ([*MIX, "+buffer.trainer_input.auxiliary_buffers.sft_dataset.capacity=3"], "no such key"),
        ([*MIX, "+buffer.trainer_input.auxiliary_buffers.sft_dataset.pat=3"], "no such key"),
        ([*MIX, "algorithm.sample_strategy=warmup"], "is incompatible with algorithm_type mix; write mix"),
        (["algorithm.sample_strategy=mix"], "is incompatible with algorithm_type grpo"),
        (["algorithm.policy_loss_fn_args.mask_clip=0.1"], "unknown argument"),
        (
            [*MIX, "algorithm.entropy_loss_fn=default", "algorithm.entropy_loss_fn_args.entropy_coef=0.1"],
            "write entropy_loss_fn: mix",
        ),
        ([PPO, f"{CRITIC}.shuffle=True"], r"write actor_rollout_ref\.actor\.shuffle"),
        ([PPO, "trainer.trainer_config.trainer.max_critic_ckpt_to_keep=2"], "the same number for this key"),
    ],
)
def test_incompatible_options_are_refused(overrides: list[str], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected) as caught:
        read(*overrides)
    assert "\n\n" not in str(caught.value)


def test_inactive_keys_have_notices() -> None:
    notes = read(f"{CRITIC}.optim.lr=1e-4", "algorithm.advantage_fn_args.lam=0.9", *MIX[1:]).notes
    assert Counter(note.partition("inactive, because ")[2] for note in notes) == {
        "the advantages are grpo's.": 2,
        "algorithm_type grpo with sample_strategy default reads no demonstrations.": 3,
    }
    assert read(PPO, f"{CRITIC}.optim.lr=1e-4").notes == ()


@pytest.mark.parametrize(("loss", "weight"), [("sft", "none"), ("sft_is", "p"), ("sft_phi", "p_one_minus_p")])
def test_weights_of_demonstrations(loss: str, weight: str) -> None:
    """trinity/algorithm/policy_loss_fn/chord_policy_loss.py"""
    run = read(*SFT, f"algorithm.policy_loss_fn={loss}").run
    assert run.algorithm == SftConfig.model_validate({"type": "sft", "token_weight": weight})


CPT = ("algorithm.algorithm_type=cpt", *SFT[1:])


def test_continued_pretraining() -> None:
    """trinity/buffer/schema/formatter.py (CPTFormatter): the column `prompt_key`, tokenized as it is, and all
    tokens but the first trained on; trinity/algorithm/algorithm.py (CPTAlgorithm): a kind of SFTAlgorithm."""
    at = "buffer.trainer_input.experience_buffer.format"
    read_of = read(*CPT, f"+{at}.prompt_type=plaintext", f"+{at}.prompt_key=body")
    assert read_of.run.algorithm == SftConfig()
    assert read_of.run.data.train.text == "body" and read_of.run.data.train.response is None
    assert read(*CPT).run.data.train.text == "prompt"
    written = write_dialect(LEDGER, read_of.run).values
    assert written["algorithm.algorithm_type"] == "cpt" and written[f"{at}.prompt_key"] == "body"
    notes = "\n".join(map(str, read(*CPT, f"+{at}.response_key=answer").notes))
    assert f"{at}.response_key" in notes and "inactive, because algorithm_type is cpt" in notes
    with pytest.raises(ConfigError, match=r"cpt trains on plain text.*algorithm_type: sft"):
        read(*CPT, f"+{at}.messages_key=messages")
    weighted = read(*CPT, "algorithm.policy_loss_fn=sft_phi").run.algorithm
    assert weighted == SftConfig(token_weight="p_one_minus_p")


def test_the_type_m2po() -> None:
    """tests/algorithm/test_m2po_policy_loss.py (test_m2po_is_registered_with_paper_defaults)"""
    algorithm: Any = read("algorithm.algorithm_type=m2po", "~algorithm.repeat_times").run.algorithm
    assert (algorithm.type, algorithm.rollouts_per_task, algorithm.old_policy) == ("grpo", 8, "sampler")
    assert algorithm.policy_loss == M2poLossConfig(max_second_moment=0.04)
    assert algorithm.kl_loss is None and algorithm.kl_reward is None and not algorithm.entropy_coef


def test_m2po() -> None:
    """trinity/algorithm/policy_loss_fn/m2po_policy_loss.py"""
    loss = "algorithm.policy_loss_fn=m2po"
    args = "algorithm.policy_loss_fn_args"
    algorithm = read(loss, f"+{args}.m2_threshold=0.1", f"+{args}.log_ratio_clip=20").run.algorithm
    assert algorithm.policy_loss == M2poLossConfig(max_second_moment=0.1)  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="bounded to 20"):
        read(loss, f"+{args}.log_ratio_clip=5")


@pytest.mark.parametrize(
    ("kind", "rollouts", "loss", "kl"),
    [("grpo_verl", 2, "clip", True), ("gspo", 2, "gspo", True), ("dapo", 16, "clip", False)],
)
def test_further_types(kind: str, rollouts: int, loss: str, kl: bool) -> None:
    """trinity/algorithm/algorithm.py"""
    algorithm: Any = read(f"algorithm.algorithm_type={kind}", "~algorithm.repeat_times").run.algorithm
    assert algorithm.type == "grpo" and algorithm.rollouts_per_task == rollouts
    assert algorithm.policy_loss.type == loss and (algorithm.kl_loss is not None) == kl


def test_clip_b() -> None:
    """trinity/algorithm/advantage_fn/clipb_advantage.py"""
    kind = ("algorithm.algorithm_type=grpo_verl", "+algorithm.advantage_fn=clipb")
    for mu, expected in (("", 2.5), ("+algorithm.advantage_fn_args.mu=2", 2)):
        algorithm: Any = read(*kind, *filter(None, [mu])).run.algorithm
        assert algorithm.type == "grpo" and algorithm.divide_by_std
        assert algorithm.entropy_filter == EntropyFilterConfig(deviations=expected)


def test_options_of_step_wise_advantages() -> None:
    """trinity/algorithm/advantage_fn/multi_step_grpo_advantage.py"""
    args = "+algorithm.advantage_fn_args"
    options = (f"{args}.std_threshold=0.0001", f"{args}.enable_step_norm=true")
    algorithm: Any = read("algorithm.algorithm_type=multi_step_grpo", *options).run.algorithm
    assert (algorithm.min_reward_std, algorithm.divide_by_sequences) == (0.0001, True)
    loaded = read("algorithm.algorithm_type=grpo", *options)
    algorithm = loaded.run.algorithm
    assert (algorithm.min_reward_std, algorithm.divide_by_sequences) == (0.0001, False)
    assert any("enable_step_norm" in note for note in loaded.notes)


def test_groups_that_are_duplicated() -> None:
    """trinity/algorithm/advantage_fn/grpo_advantage.py, _duplicate_experiences: only with std_threshold."""
    args = "+algorithm.advantage_fn_args"
    kind, duplicates = "algorithm.algorithm_type=grpo", f"{args}.duplicate_experiences=true"
    algorithm: Any = read(kind, f"{args}.std_threshold=0.1", duplicates).run.algorithm
    assert (algorithm.min_reward_std, algorithm.repeat_groups) == (0.1, True)
    algorithm = read(kind, f"{args}.std_threshold=0.1").run.algorithm
    assert not algorithm.repeat_groups
    loaded = read(kind, duplicates)
    algorithm = loaded.run.algorithm
    assert not algorithm.repeat_groups
    assert any("no group is left out" in note for note in loaded.notes)
