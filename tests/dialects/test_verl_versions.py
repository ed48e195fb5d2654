"""Tests of the keys of later versions of verl, and of defaults that differ between versions."""

from __future__ import annotations

from typing import Any

import pytest

from strop.config.schema import Run
from strop.config.schema.algorithm import RewardResamplingConfig
from strop.config.schema.policy_loss import (
    ClipCovLossConfig,
    DppoKlLossConfig,
    DppoTvLossConfig,
    DroLossConfig,
    GmpoLossConfig,
    KlCovLossConfig,
    SapoLossConfig,
)
from strop.config.units import Amount
from strop.dialects.hydra.selection import ConfigSelection
from strop.dialects.ledger.writer import write_dialect
from strop.dialects.verl.generation import read_verl_generate
from strop.dialects.verl.ppo_trainer import LEDGER, read_verl
from strop.dialects.verl.sft_trainer import read_verl_sft
from strop.errors import ConfigError

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
BASE = ("algorithm.adv_estimator=grpo", f"{ROLLOUT}.n=4", "data.val_files=null")
MEGATRON = ConfigSelection(name="ppo_megatron_trainer")
BUFFER = "algorithm.overlong_penalty.buffer_tokens"


def field(run: Any, name: str) -> Any:
    for part in name.split("."):
        run = run[int(part)] if part.isdigit() else getattr(run, part)
    return run


@pytest.mark.parametrize(
    ("overrides", "name", "expected"),
    [
        (["reward.custom_reward_function.path=f.py"], "reward.functions.0.function", "f.py:compute_score"),
        (
            [f"reward_model.overlong_buffer.{word}" for word in ("enable=True", "len=64")],
            "algorithm.overlong_penalty.buffer_tokens",
            64,
        ),
        (
            [f"reward.reward_kwargs.overlong_buffer_cfg.{word}" for word in ("enable=True", "len=32")],
            BUFFER,
            32,
        ),
        ([f"{ACTOR}.optim.lr_scheduler_type=cosine"], "trainer.schedule.type", "cosine"),
        ([f"{ACTOR}.optim.clip_grad=0.5"], "trainer.max_grad_norm", 0.5),
        (
            [f"{ACTOR}.policy_loss.loss_mode=cispo", f"{ACTOR}.clip_ratio_high=3"],
            "algorithm.policy_loss.clip_high",
            3,
        ),
        (
            ["algorithm.rollout_correction.rollout_is=sequence"],
            "algorithm.importance_correction.level",
            "sequence",
        ),
        (["algorithm.adv_estimator=gpg"], "algorithm.scale", "nonzero"),
        (["algorithm.adv_estimator=tir_optimal_token_baseline"], "algorithm.type", "optimal_token_baseline"),
        (
            [
                "algorithm.adv_estimator=gae",
                "algorithm.use_pf_ppo=True",
                "algorithm.pf_ppo.reweight_method=max_min",
                "algorithm.pf_ppo.weight_pow=3",
            ],
            "algorithm.resampling",
            RewardResamplingConfig(method="max_min", power=3),
        ),
        (
            [
                "algorithm.adv_estimator=gdpo",
                "+algorithm.gdpo_reward_keys=[acc,format]",
                "custom_reward_function.path=f.py",
                "reward.reward_manager.name=gdpo",
            ],
            "algorithm.reward_parts",
            ("compute_score/acc", "compute_score/format"),
        ),
        (["data.gen_batch_size=512"], "trainer.tasks_per_step", 512),
        (["data.gen_batch_size=4096", "algorithm.filter_groups.enable=True"], "trainer.tasks_per_step", 1024),
        (
            ["algorithm.filter_groups={enable: True, metric: acc}"],
            "algorithm.dynamic_sampling.metric",
            "verl_by_source",
        ),
        (["data.train_max_samples=64"], "data.train.limit_tasks", 64),
        (
            ["+data.apply_chat_template_kwargs.enable_thinking=False"],
            "data.chat_template_args",
            {"enable_thinking": False},
        ),
        (["trainer.rollout_data_dir=x"], "record.rollouts_every", Amount(1, "steps")),
        (["model_engine=veomni"], "trainer.schedule.type", "cosine"),
    ],
)
def test_keys_of_later_versions(overrides: list[str], name: str, expected: object) -> None:
    assert field(read_verl([*BASE, *overrides], here=True).run, name) == expected


LOSS = "algorithm.policy_loss"


@pytest.mark.parametrize(
    ("mode", "overrides", "expected"),
    [
        ("sapo", ["tau_neg=1.2"], SapoLossConfig(tau_pos=1.0, tau_neg=1.2)),
        ("geo_mean", ["clip_ratio=0.4"], GmpoLossConfig(clip_low=0.4, clip_high=0.4)),
        (
            "dppo_tv",
            ["clip_ratio=0.15", "clip_ratio_c=10000"],
            DppoTvLossConfig(divergence_low=0.15, divergence_high=0.15, ratio_cap=10000),
        ),
        (
            "dppo_kl",
            ["clip_ratio_low=0.05", "clip_ratio_high=0.1"],
            DppoKlLossConfig(divergence_low=0.05, divergence_high=0.1, ratio_cap=3.0),
        ),
        ("dro", ["policy_loss.dro_beta=0.5"], DroLossConfig(beta=0.5)),
        (
            "clip-cov",
            ["clip_ratio_high=0.28", "policy_loss.clip_cov_ratio=0.002", "policy_loss.clip_cov_ub=20"],
            ClipCovLossConfig(clip_high=0.28, token_fraction=0.002, covariance_high=20.0),
        ),
        ("kl_cov", ["policy_loss.ppo_kl_coef=1"], KlCovLossConfig(kl_coef=1.0)),
        ("kl_cov", [], KlCovLossConfig(kl_coef=0.1)),
    ],
)
def test_policy_losses(mode: str, overrides: list[str], expected: object) -> None:
    written = [f"{ACTOR}.policy_loss.loss_mode={mode}", *(f"{ACTOR}.{word}" for word in overrides)]
    loaded = read_verl([*BASE, *written], here=True)
    assert field(loaded.run, LOSS) == expected
    assert field(read_verl([*BASE, *back_to_verl(loaded.run)], here=True).run, LOSS) == expected


def back_to_verl(run: Run) -> list[str]:
    """The keys of the policy loss in a run that is written in verl's keys."""
    values = write_dialect(LEDGER, run).values
    return [
        f"{key}={value}"
        for key, value in values.items()
        if key.startswith((f"{ACTOR}.policy_loss", f"{ACTOR}.clip", f"{ACTOR}.tau"))
    ]


@pytest.mark.parametrize("mode", ["sapo", "geo_mean"])
def test_losses_per_response_ignore_the_aggregation(mode: str) -> None:
    """verl/trainer/ppo/core_algos.py passes seq-mean-token-mean, or takes the mean over responses itself."""
    written = [f"{ACTOR}.policy_loss.loss_mode={mode}", f"{ACTOR}.loss_agg_mode=token-mean"]
    loaded = read_verl([*BASE, *written], here=True)
    assert field(loaded.run, "algorithm.aggregation") == "seq-mean-token-mean"
    assert any(f"always averages {mode} over sequences" in note for note in loaded.notes)


@pytest.mark.parametrize(
    ("name", "expected"), [("k3+", "k3+"), ("low_var_kl+", "k3+"), ("kl+", "k1+"), ("mse+", "k2")]
)
def test_estimators_with_the_gradient_of_k2(name: str, expected: str) -> None:
    loss = [f"{ACTOR}.use_kl_loss=True", f"{ACTOR}.kl_loss_type={name}"]
    reward = ["algorithm.use_kl_in_reward=True", f"algorithm.kl_penalty={name}"]
    run = read_verl([*BASE, *loss, *reward], here=True).run
    assert field(run, "algorithm.kl_loss.estimator") == expected
    assert field(run, "algorithm.kl_reward.estimator") == expected.removesuffix("+")


def test_dro_needs_its_coefficient() -> None:
    with pytest.raises(ConfigError, match=r"needs a positive .*policy_loss\.dro_beta"):
        read_verl([*BASE, f"{ACTOR}.policy_loss.loss_mode=dro"], here=True)


def test_megatrons_decay_is_constant_in_later_versions() -> None:
    seed = read_verl(BASE, selection=MEGATRON, here=True)
    later = read_verl([*BASE, f"{ROLLOUT}.data_parallel_size=1"], selection=MEGATRON, here=True)
    assert (seed.run.trainer.schedule.type, later.run.trainer.schedule.type) == ("linear", "constant")


def test_lora_of_megatron_has_the_names_of_hugging_face() -> None:
    lora = "actor_rollout_ref.model.lora"
    words = [f"{lora}.rank=8", f"{lora}.target_modules=[linear_qkv,linear_fc2]"]
    adapter = read_verl([*BASE, *words], selection=MEGATRON, here=True).run.model.lora
    assert adapter is not None
    assert (adapter.rank, adapter.targets) == (8, ("q_proj", "k_proj", "v_proj", "down_proj"))
    assert read_verl([*BASE, *words], here=True).run.model.lora is None, "FSDP does not read the section"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([f"{ACTOR}.policy_loss.loss_mode=bypass_mode"], "a loss that Strop does not have; it has vanilla"),
        (["algorithm.adv_estimator=gdpo"], "also write algorithm.gdpo_reward_keys"),
        ([f"{ROLLOUT}.over_sample_rate=0.1"], "Strop finishes every response; write 0"),
        (["reward_model.enable=True", "reward_model.model.type=generative"], "asked by a reward function"),
        ([f"{ROLLOUT}.agent.default_agent_loop=mine"], "agent_loop_config_path, the YAML file"),
        (["actor_rollout_ref.model.mtp={enable: True, enable_train: True}"], "detach_encoder=True"),
        (
            ["custom_reward_function.path=a.py", "reward.custom_reward_function.path=b.py"],
            "is another name of custom_reward_function.path",
        ),
    ],
)
def test_refused_with_a_reason(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        read_verl([*BASE, *overrides], here=True)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("engine", ["mindspeed", "megatron"])
def test_mindspeed_has_the_optimizer_of_megatron(engine: str) -> None:
    """verl 0.9.0's `actor/mindspeed_actor.yaml`, lines 3-9: the optimizer and the engine's keys are Megatron's."""
    words = [f"model_engine={engine}", f"{ACTOR}.optim.lr_decay_style=cosine", f"{ACTOR}.optim.min_lr=1e-7"]
    sizes = [f"{ACTOR}.{engine}.tensor_model_parallel_size=2"]
    loaded = read_verl([*BASE, *words, *sizes], here=True)
    assert field(loaded.run, "trainer.schedule.type") == "cosine"
    assert field(loaded.run, "trainer.schedule.min_ratio") == pytest.approx(0.1)


def test_engine_settings_are_placement() -> None:
    words = [
        f"{ACTOR}.megatron.use_mbridge=True",
        f"{ROLLOUT}.checkpoint_engine.backend=nccl",
        f"{ROLLOUT}.server.timeout=60",
        f"{ROLLOUT}.sglang_rollout_mode=server",
        "trainer.device=npu",
    ]
    loaded = read_verl([*BASE, *words], selection=MEGATRON, here=True)
    assert {word.split("=")[0] for word in words} <= {key.key for key in loaded.overridden}


def test_an_unknown_key_gets_no_suggestion_of_another_meaning() -> None:
    with pytest.raises(ConfigError) as caught:
        read_verl(
            [*BASE, "actor_rollout_ref.nccl_timeouts=1", "trainer.x=1", "data.max_promt_length=1"], here=True
        )
    lines = str(caught.value).splitlines()
    assert len(lines) == 3, "all unknown keys are reported at once"
    assert "did you mean" not in lines[1]
    assert "did you mean 'data.max_prompt_length'" in lines[2]


ENGINE = ("model.path=m", "data.train_files=t.parquet", "trainer.logger=console")


@pytest.mark.parametrize(
    ("overrides", "name", "expected"),
    [
        ([], "data.train.response", "messages"),
        ([], "trainer.optimizer.lr", 1e-3),
        ([], "trainer.optimizer.betas", (0.9, 0.999)),
        ([], "trainer.schedule.type", "constant"),
        ([], "trainer.microbatch", Amount(8192, "tokens")),
        ([], "checkpoint.every", None),
        (["trainer.save_freq=after_each_epoch"], "checkpoint.every", Amount(1, "epochs")),
        (
            ["engine=megatron", "optim=megatron", "optim.lr_decay_style=cosine", "optim.min_lr=1e-4"],
            "trainer.schedule.min_ratio",
            0.1,
        ),
        (["engine=automodel", "optim=automodel"], "trainer.schedule.start_ratio", 0.1),
        (["engine=automodel", "optim=automodel"], "trainer.optimizer.lr", 1e-5),
        (["optim.lr_scheduler_type=cosine", "optim.min_lr_ratio=0.2"], "trainer.schedule.min_ratio", 0.2),
    ],
)
def test_sft_trainer_with_an_engine(overrides: list[str], name: str, expected: object) -> None:
    run = read_verl_sft([*ENGINE, *overrides], here=True).run
    assert (run.algorithm.type, field(run, name)) == ("sft", expected)


def test_generation_server_keeps_all_tokens() -> None:
    words = ["data.train_files=t.parquet", "data.output_path=o.parquet"]
    words += [f"{ROLLOUT}.top_k=50", f"{ROLLOUT}.n=3", "actor_rollout_ref.model.path=m"]
    generation = read_verl_generate(words, here=True).generation
    assert (generation.rollouts_per_task, generation.sampling.top_k, generation.sampling.top_p) == (3, 0, 1)
    assert (generation.model.path, generation.data.train.path) == ("m", "t.parquet")
