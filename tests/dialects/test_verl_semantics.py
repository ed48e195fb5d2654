"""Tests of interactions between verl's keys: Megatron's optimizer, reward models, critics, precedence."""

from __future__ import annotations

from typing import Any

import pytest

from strop.algorithms.schedules import lr_at
from strop.config.load.loader import LoadedRun
from strop.config.schema.optimizer import AdamWConfig, SgdConfig, WeightDecayIncreaseConfig
from strop.config.schema.reward import RewardModelConfig
from strop.config.schema.router_loss import RouterLossConfig
from strop.config.schema.sandbox import LocalSandboxConfig, SandboxFusionConfig
from strop.config.schema.schedule import (
    ConstantScheduleConfig,
    CosineScheduleConfig,
    InverseSqrtScheduleConfig,
    LinearScheduleConfig,
    WsdScheduleConfig,
)
from strop.config.units import Amount
from strop.dialects.verl.ppo_trainer import read_verl
from strop.dialects.verl.reward import write_sandbox
from strop.dialects.verl.trainer import write_duration
from strop.errors import ConfigError

ACTOR = "actor_rollout_ref.actor"
OPTIM = f"{ACTOR}.optim"
MODEL = "actor_rollout_ref.model"
GRPO = ("algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=4")
MEGATRON = (*GRPO, f"{ACTOR}.strategy=megatron", f"{OPTIM}.lr=1e-5")


def read(*overrides: str) -> LoadedRun:
    return read_verl(overrides, here=True)


@pytest.mark.parametrize(
    ("overrides", "schedule"),
    [
        ((), LinearScheduleConfig(warmup=Amount(0, "%"))),
        (("lr_decay_style=constant", "lr_warmup_steps=5"), ConstantScheduleConfig(warmup=Amount(5, "steps"))),
        (
            ("lr_decay_style=cosine", "min_lr=1e-6", "lr_decay_steps=80", "lr_warmup_steps_ratio=0.1"),
            CosineScheduleConfig(warmup=Amount(8, "steps"), min_ratio=0.1, length=Amount(80, "steps")),
        ),
        (
            ("lr_warmup_init=1e-6", "lr_warmup_steps_ratio=0.1"),
            LinearScheduleConfig(warmup=Amount(10, "%"), start_ratio=0.1),
        ),
        (
            ("lr_decay_style=inverse_square_root",),
            InverseSqrtScheduleConfig(warmup=Amount(0, "%"), timescale=Amount(1, "steps")),
        ),
        (
            ("lr_decay_style=WSD", "lr_wsd_decay_steps=10", "lr_warmup_steps=2"),
            WsdScheduleConfig(warmup=Amount(2, "steps"), decay=Amount(10, "steps"), style="exponential"),
        ),
    ],
)
def test_megatrons_schedules(overrides: tuple[str, ...], schedule: object) -> None:
    assert read(*MEGATRON, *(f"{OPTIM}.{each}" for each in overrides)).run.trainer.schedule == schedule


def test_megatrons_linear_by_hand() -> None:
    overrides = ("lr_warmup_init=2e-6", "lr_warmup_steps=4", "min_lr=1e-6", "lr_decay_steps=14")
    trainer = read(*MEGATRON, *(f"{OPTIM}.{each}" for each in overrides)).run.trainer
    rates = [
        lr_at(trainer.schedule, 1e-5, p, 100, lambda amount: int(amount.count)) for p in (0, 2, 4, 9, 50)
    ]
    assert rates == pytest.approx([2e-6, 6e-6, 1e-5, 5.5e-6, 1e-6])


def test_megatrons_optimizer() -> None:
    trainer = read(*MEGATRON).run.trainer
    assert trainer.optimizer == AdamWConfig(lr=1e-5, weight_decay=0.01) and trainer.max_grad_norm == 1.0
    trainer = read(
        *MEGATRON,
        f"{OPTIM}.optimizer=sgd",
        f"{OPTIM}.clip_grad=0",
        f"{OPTIM}.weight_decay=0.1",
        f"{OPTIM}.weight_decay_incr_style=cosine",
    ).run.trainer
    assert trainer.optimizer == SgdConfig(lr=1e-5, weight_decay=0.1, momentum=0.9)
    assert trainer.max_grad_norm is None
    assert trainer.weight_decay_increase == WeightDecayIncreaseConfig(style="cosine", start=0.1)


@pytest.mark.parametrize(
    "key", ["warmup_style=cosine", "min_lr_ratio=0.1", "num_cycles=1.0", "betas=[0.8,0.9]"]
)
def test_fsdps_keys_are_inactive_under_megatron(key: str) -> None:
    loaded = read(*MEGATRON, f"{OPTIM}.{key}")
    (note,) = loaded.notes
    assert "strategy is megatron" in note and loaded.run == read(*MEGATRON).run


def test_megatrons_parallel_sizes_are_placement() -> None:
    loaded = read(*MEGATRON, f"+{ACTOR}.megatron.tensor_model_parallel_size=4")
    assert f"{ACTOR}.megatron.tensor_model_parallel_size" in {item.key for item in loaded.overridden}
    with pytest.raises(ConfigError, match="adds no such loss"):
        read(*MEGATRON, f"+{ACTOR}.megatron.override_transformer_config.mtp_loss_scaling_factor=0.1")


def test_losses_of_routers() -> None:
    """verl/models/mcore/config_converter.py switches the balance off, unless its type is written."""
    at = f"+{ACTOR}.megatron.override_transformer_config"
    coefficients = (f"{at}.moe_z_loss_coeff=0.001", f"{at}.moe_aux_loss_coeff=0.01")
    loaded = read(*MEGATRON, *coefficients)
    assert loaded.run.trainer.router_loss == RouterLossConfig(z_coef=0.001)
    assert any("moe_router_load_balancing_type is none" in note for note in loaded.notes)
    loaded = read(*MEGATRON, *coefficients, f"{at}.moe_router_load_balancing_type=aux_loss")
    assert loaded.run.trainer.router_loss == RouterLossConfig(z_coef=0.001, balance_coef=0.01)
    assert read(*MEGATRON, f"{at}.moe_aux_loss_coeff=0").run.trainer.router_loss is None
    with pytest.raises(ConfigError, match="each sequence on its own"):
        read(*MEGATRON, *coefficients, f"{at}.moe_router_load_balancing_type=seq_aux_loss")


def test_only_the_reward_models_score_counts() -> None:
    words = ("reward_model.enable=True", "reward_model.model.path=rm", "reward_model.max_length=100")
    loaded = read(*GRPO, *words, "custom_reward_function.path=mine.py", f"{MODEL}.path=m")
    (model,) = loaded.run.reward.models
    assert loaded.run.reward.functions == ()
    assert model == RewardModelConfig(
        path="rm",
        dtype="bfloat16",
        microbatch=Amount(16, "sequences"),
        max_tokens=100,
        overlong="right",
    )
    (note,) = loaded.notes
    assert "custom_reward_function.path" in note and "only the reward model's score counts" in note


def test_a_reward_model_of_the_same_template_reads_the_policys_tokens() -> None:
    words = ("reward_model.enable=True", "reward_model.model.input_tokenizer=null", f"{MODEL}.path=m")
    (model,) = read(*GRPO, *words).run.reward.models
    assert (model.tokenizer, model.max_tokens) == ("m", 1024)
    (model,) = read(*GRPO, *words, "data.tokenizer=t").run.reward.models
    assert model.tokenizer == "t"


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([f"+{MODEL}.override_config.attention_dropout=0.1"], {"attention_dropout": 0.1}),
        ([f"+{MODEL}.override_config.model_config.attention_dropout=0.1"], {"attention_dropout": 0.1}),
        ([f"+{MODEL}.override_config={{a: 1, model_config: {{b: 2}}}}"], {"a": 1, "b": 2}),
        ([f"+{MODEL}.override_config.rope_scaling.factor=2.0"], {"rope_scaling": {"factor": 2.0}}),
        ([], {}),
    ],
)
def test_values_of_the_models_config(overrides: list[str], expected: dict[str, Any]) -> None:
    assert read(*GRPO, *overrides).run.model.override == expected


def test_contradicting_config_overrides() -> None:
    words = (f"+{MODEL}.override_config.a=1", f"+{MODEL}.override_config.model_config.a=2")
    with pytest.raises(ConfigError, match="write it once"):
        read(*GRPO, *words)


def test_libraries_are_imported_once() -> None:
    assert read(*GRPO, f"{MODEL}.external_lib=a").run.model.imports == ("a",)
    assert read(*GRPO, f"{MODEL}.external_lib=[a,b.c]").run.model.imports == ("a", "b.c")
    words = ("reward_model.enable=True", "reward_model.model.external_lib=d")
    assert read(*GRPO, f"{MODEL}.external_lib=a", *words).run.model.imports == ("a", "d")


def test_the_critics_own_keys() -> None:
    words = (
        "critic.model.path=c",
        "critic.model.external_lib=lib",
        "critic.model.tokenizer_path=t",
        "+critic.model.override_config.x=1",
        "critic.optim.lr_warmup_steps=7",
        "critic.optim.warmup_style=cosine",
        "critic.optim.min_lr_ratio=0.1",
        "critic.ppo_micro_batch_size_per_gpu=2",
    )
    critic = read("algorithm.adv_estimator=gae", *words).run.algorithm.critic  # type: ignore[union-attr]
    assert critic.model is not None
    assert (critic.model.path, critic.model.tokenizer, critic.model.imports) == ("c", "t", ("lib",))
    assert critic.model.override == {"x": 1} and critic.microbatch == Amount(2, "sequences")
    assert critic.schedule == CosineScheduleConfig(warmup=Amount(7, "steps"), min_ratio=0.1)


def test_actor_and_critic_have_one_strategy() -> None:
    critic = read("algorithm.adv_estimator=gae", f"{ACTOR}.strategy=megatron").run.algorithm.critic  # type: ignore[union-attr]
    assert isinstance(critic.schedule, LinearScheduleConfig)
    with pytest.raises(ConfigError, match=r"critic\.strategy is fsdp.*actor\.strategy is megatron"):
        read("algorithm.adv_estimator=gae", f"{ACTOR}.strategy=megatron", "critic.strategy=fsdp")


def test_duration_is_the_trainers_key() -> None:
    words = (f"{OPTIM}.total_training_steps=9", "trainer.total_training_steps=9")
    assert read(*GRPO, *words).run.trainer.duration == Amount(9, "steps")
    with pytest.raises(ConfigError, match=r"write trainer\.total_training_steps"):
        read(*GRPO, words[0])


def test_shuffle_seed() -> None:
    words = (f"{ACTOR}.shuffle=True", f"{ACTOR}.data_loader_seed=5")
    assert read(*GRPO, *words).run.trainer.shuffle_seed == 5
    assert read(*GRPO, words[0]).run.trainer.shuffle_seed is None


def test_groups_are_filtered_by_a_reward_part() -> None:
    words = ("algorithm.filter_groups={enable: True, metric: acc}", "custom_reward_function.path=r.py")
    algorithm: Any = read(*GRPO, *words).run.algorithm
    assert algorithm.dynamic_sampling.metric == "compute_score/acc"


def test_checkpoint_without_optimizer_has_a_notice() -> None:
    loaded = read(*GRPO, f"{ACTOR}.checkpoint.save_contents=[model,extra]")
    (note,) = loaded.notes
    assert "differs from an uninterrupted one" in note
    assert not loaded.run.checkpoint.save_optimizer and not loaded.run.checkpoint.resume_optimizer
    loaded = read(*GRPO, f"{ACTOR}.checkpoint.load_contents=[model,extra]")
    assert loaded.run.checkpoint.save_optimizer and not loaded.run.checkpoint.resume_optimizer


def test_both_kl_terms_are_legal() -> None:
    run = read(*GRPO, f"{ACTOR}.use_kl_loss=True", "algorithm.use_kl_in_reward=True").run
    assert run.algorithm.kl_loss is not None and run.algorithm.kl_reward is not None  # type: ignore[union-attr]
    assert read(*GRPO).run.algorithm.kl_reward is None  # type: ignore[union-attr]


def test_schedules_span_the_steps_and_epochs_may_end_a_run() -> None:
    for words in (("total_epochs=2", "total_training_steps=5"), ("total_training_steps=5", "total_epochs=2")):
        trainer = read(*GRPO, *(f"trainer.{word}" for word in words)).run.trainer
        assert (trainer.duration, trainer.stop_after) == (Amount(5, "steps"), Amount(2, "epochs"))
    never = read(*GRPO, "trainer.total_training_steps=5", "trainer.total_epochs=1000000").run
    assert never.trainer.stop_after is None
    assert write_duration(never) == {"trainer.total_training_steps": 5, "trainer.total_epochs": 1_000_000}


@pytest.mark.parametrize(
    ("words", "note"),
    [
        ([f"{ACTOR}.clip_ratio=0.3"], "verl's code uses clip_ratio_low and clip_ratio_high, 0.2"),
        ([f"{ACTOR}.clip_ratio=0.3", f"{ACTOR}.clip_ratio_low=0.3", f"{ACTOR}.clip_ratio_high=0.3"], None),
        (
            ["algorithm.use_kl_in_reward=True"],
            "kl_coef is 0.005, as in the YAML of verl's page; verl's code has 0.001",
        ),
        (["algorithm.use_kl_in_reward=True", "algorithm.kl_ctrl.kl_coef=0.001"], None),
    ],
)
def test_differences_between_page_and_code_have_notices(words: list[str], note: str | None) -> None:
    notes = " ".join(read(*GRPO, *words).notes)
    assert (note in notes) if note else ("verl's code" not in notes)


def test_dataset_class_receives_the_data_section() -> None:
    words = ("data.custom_cls.path='~/d.py'", "data.custom_cls.name=Mine", "data.max_prompt_length=99")
    run = read(*GRPO, *words).run
    own = run.data.train.dataset
    assert own is not None and own.name == "~/d.py:Mine" and own == run.data.eval[0].dataset
    more: Any = read(*GRPO, *words, "+data.custom_cls.start=3").run.data.train.dataset
    assert more.config["custom_cls"]["start"] == 3
    assert own.config["max_prompt_length"] == 99 and own.config["prompt_key"] == "prompt"
    (note,) = read(*GRPO, words[1]).notes
    assert "data.custom_cls.path is null" in note


@pytest.mark.parametrize("key", [f"{ACTOR}.ppo_mini_batch_size", "critic.ppo_mini_batch_size"])
def test_mini_batches_divide_a_step(key: str) -> None:
    words = ("algorithm.adv_estimator=gae", "data.train_batch_size=60", f"{ACTOR}.ppo_mini_batch_size=30")
    read(*words)
    with pytest.raises(ConfigError, match=r"the nearest divisors are 6 and 10|are 6 and 5|are 5 and 6"):
        read(*words, f"{key}=7")


def test_a_sandbox_server() -> None:
    at, url = "reward_model.sandbox_fusion", "http://sandbox:8080/run_code"
    run = read(*GRPO, f"+{at}.url={url}", f"+{at}.memory_limit_mb=512", f"+{at}.max_concurrent=8").run
    assert run.reward.sandbox == SandboxFusionConfig(url=url, memory_mb=512)
    assert write_sandbox(run) == {f"{at}.url": url, f"{at}.memory_limit_mb": 512}
    assert read(*GRPO).run.reward.sandbox == LocalSandboxConfig()
