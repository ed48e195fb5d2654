"""Tests of verl's keys: conversion to run-file fields, inactive keys, refusals and placement."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from strop.config.load.config_tree import ConfigTree, Source, split_key
from strop.config.load.loader import LoadedRun
from strop.config.schema.group_baselines import RlooConfig
from strop.config.schema.policy_gradient import (
    AdaptiveKlConfig,
    DynamicSamplingConfig,
    KlRewardConfig,
    OverlongPenaltyConfig,
)
from strop.config.schema.policy_loss import ClippedLossConfig, GpgLossConfig, GspoLossConfig
from strop.config.schema.schedule import CosineScheduleConfig
from strop.config.units import Amount
from strop.dialects.verl.ppo_trainer import LEDGER, read_verl
from strop.errors import ConfigError, PlacementError, StropError

from .verl_page import page_copy

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
TRUSTED = ("data.trust_remote_code=True",)
"""The page's default, which takes effect only where it is set."""
BASE = ("algorithm.adv_estimator=grpo", f"{ROLLOUT}.n=4")


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strop.dialects.verl.gpus.count_cuda_devices", lambda: 0)
    monkeypatch.delenv("STROP_HERE", raising=False)


def read(*overrides: str, here: bool = False) -> LoadedRun:
    return read_verl([*BASE, *overrides], here=here)


def value(loaded: LoadedRun, field: str) -> Any:
    found: Any = loaded.run
    for part in field.split("."):
        found = found[int(part)] if part.isdigit() else getattr(found, part)
    return found


def test_page_defaults() -> None:
    loaded = read()
    run = loaded.run
    assert (run.data.max_prompt_tokens, run.data.max_response_tokens) == (512, 512)
    assert (run.trainer.tasks_per_step, run.trainer.tasks_per_update) == (1024, 256)
    assert (run.trainer.microbatch, run.trainer.duration) == (Amount(8, "sequences"), Amount(30, "epochs"))
    assert (run.trainer.optimizer.lr, run.trainer.optimizer.weight_decay) == (1e-6, 0.01)
    assert (run.evaluate.every, run.evaluate.at_start) == (Amount(2, "steps"), True)
    assert (run.checkpoint.every, run.checkpoint.keep) == (None, None)
    assert (run.data.train.answer, run.data.train.source) == ("reward_model.ground_truth", "data_source")
    assert run.reward.functions[0].function == "verl_by_source"
    assert run.algorithm.kl_loss is None
    assert run.record.monitors == ("console",)
    assert (run.model.dtype, run.model.compute_dtype, run.rollout.engine.dtype) == (
        "float32",
        "bfloat16",
        "bfloat16",
    )
    assert run.folder_path == Path("checkpoints/verl_examples/gsm8k")
    assert loaded.overridden == () and loaded.notes == ()
    assert loaded.sources["trainer.tasks_per_step"].location == "data.train_batch_size (page default)"
    assert loaded.sources["trainer.optimizer.betas"].location == f"{ACTOR}.optim.betas (unstated default)"


@pytest.mark.parametrize(
    ("overrides", "field", "expected"),
    [
        (["data.train_files=a.parquet"], "data.train.path", "a.parquet"),
        (["data.train_files=[a.parquet,b.parquet]"], "data.train.path", ("a.parquet", "b.parquet")),
        (["data.val_files=null"], "data.eval", ()),
        (["data.prompt_key=q"], "data.eval.0.prompt", "q"),
        (["data.tokenizer=t"], "model.tokenizer", "t"),
        (["data.seed=7"], "seed", 7),
        (["data.truncation=left"], "data.overlong", "left"),
        (["data.filter_overlong_prompts=True", "data.truncation=left"], "data.overlong", "filter"),
        (["data.train_batch_size=512"], "trainer.tasks_per_step", 512),
        (["data.max_response_length=200000"], "rollout.engine.kv_cache_tokens", 200512),
        (["data.trust_remote_code=True"], "model.trust_remote_code", True),
        (["actor_rollout_ref.model.trust_remote_code=True"], "model.trust_remote_code", True),
        (["data.trust_remote_code=False"], "model.trust_remote_code", False),
        (["+actor_rollout_ref.model.lora_rank=32"], "model.lora.rank", 32),
        (["actor_rollout_ref.model.lora_rank=32"], "model.lora.alpha", 16),
        (["actor_rollout_ref.model.lora_alpha=32"], "model.lora", None),
        (
            ["actor_rollout_ref.model.lora_rank=8", "actor_rollout_ref.model.target_modules=[q_proj]"],
            "model.lora.targets",
            ("q_proj",),
        ),
        (
            [f"{ACTOR}.use_dynamic_bsz=True", f"{ACTOR}.ppo_max_token_len_per_gpu=4096"],
            "trainer.microbatch",
            Amount(4096, "tokens"),
        ),
        ([f"{ACTOR}.ppo_micro_batch_size_per_gpu=2"], "trainer.microbatch", Amount(2, "sequences")),
        ([f"{ACTOR}.ppo_micro_batch_size=64"], "trainer.microbatch", Amount(8, "sequences")),
        ([f"{ACTOR}.clip_ratio=0.3"], "algorithm.policy_loss.clip_high", 0.3),
        ([f"{ACTOR}.clip_ratio_high=0.28"], "algorithm.policy_loss.clip_low", 0.2),
        ([f"{ACTOR}.clip_ratio_high=0.28"], "algorithm.policy_loss.clip_high", 0.28),
        ([f"{ACTOR}.clip_ratio_c=10"], "algorithm.policy_loss.dual_clip", 10),
        ([f"{ACTOR}.use_kl_loss=True"], "algorithm.kl_loss.estimator", "k3"),
        ([f"{ACTOR}.use_kl_loss=True", f"{ACTOR}.kl_loss_type=mse"], "algorithm.kl_loss.estimator", "k2"),
        ([f"{ACTOR}.use_kl_loss=True", f"{ACTOR}.kl_loss_type=full"], "algorithm.kl_loss.estimator", "full"),
        ([f"{ACTOR}.use_kl_loss=True", f"{ACTOR}.kl_loss_coef=0.5"], "algorithm.kl_loss.coef", 0.5),
        ([f"{ACTOR}.kl_loss_coef=0.5"], "algorithm.kl_loss", None),
        ([f"{ACTOR}.loss_agg_mode=seq-mean-token-mean"], "algorithm.aggregation", "seq-mean-token-mean"),
        (["algorithm.norm_adv_by_std_in_grpo=False"], "algorithm.divide_by_std", False),
        (["algorithm.adv_estimator=rloo"], "algorithm", RlooConfig(rollouts_per_task=4)),
        (["algorithm.adv_estimator=gae", "algorithm.lam=0.95"], "algorithm.lam", 0.95),
        (["algorithm.adv_estimator=gae"], "algorithm.critic.optimizer.lr", 1e-5),
        (["algorithm.adv_estimator=gae"], "algorithm.critic.tasks_per_update", 256),
        (["algorithm.adv_estimator=gae"], "algorithm.critic.model", None),
        (["algorithm.adv_estimator=gae", "critic.model.path=c"], "algorithm.critic.model.path", "c"),
        (["algorithm.adv_estimator=gae", "trainer.critic_warmup=3"], "algorithm.critic.warmup_steps", 3),
        (["algorithm.filter_groups.enable=True"], "algorithm.dynamic_sampling", DynamicSamplingConfig()),
        (
            ["algorithm.filter_groups.enable=True", "algorithm.filter_groups.max_num_gen_batches=4"],
            "algorithm.dynamic_sampling.max_tries",
            4,
        ),
        (["algorithm.adv_estimator=opo"], "algorithm.type", "opo"),
        (["algorithm.adv_estimator=remax", f"{ROLLOUT}.n=1"], "algorithm.rollouts_per_task", 1),
        (["algorithm.adv_estimator=grpo_passk"], "algorithm.divide_by_std", True),
        (["algorithm.adv_estimator=gpg"], "algorithm.policy_loss", ClippedLossConfig()),
        (["algorithm.adv_estimator=reinforce_plus_plus", "algorithm.gamma=0.9"], "algorithm.gamma", 0.9),
        ([f"+{ACTOR}.policy_loss.loss_mode=gpg"], "algorithm.policy_loss", GpgLossConfig()),
        (
            [f"+{ACTOR}.policy_loss.loss_mode=gspo", f"{ACTOR}.clip_ratio=3e-4"],
            "algorithm.policy_loss",
            GspoLossConfig(clip_low=3e-4, clip_high=3e-4),
        ),
        (["algorithm.use_kl_in_reward=True"], "algorithm.kl_reward", KlRewardConfig(coef=0.005)),
        (
            ["algorithm.use_kl_in_reward=True", "algorithm.kl_penalty=full"],
            "algorithm.kl_reward.estimator",
            "full",
        ),
        (
            [
                "algorithm.use_kl_in_reward=True",
                "algorithm.kl_ctrl.type=adaptive",
                "algorithm.kl_penalty=mse",
            ],
            "algorithm.kl_reward",
            KlRewardConfig(
                estimator="k2", coef=0.005, adaptive=AdaptiveKlConfig(target_kl=0.1, horizon=10000)
            ),
        ),
        (
            [
                "reward_model.reward_kwargs.overlong_buffer_cfg.enable=True",
                "reward_model.reward_kwargs.overlong_buffer_cfg.len=64",
            ],
            "algorithm.overlong_penalty",
            OverlongPenaltyConfig(buffer_tokens=64),
        ),
        ([f"{ACTOR}.optim.lr_warmup_steps=10"], "trainer.schedule.warmup", Amount(10, "steps")),
        ([f"{ACTOR}.optim.lr_warmup_steps_ratio=0.1"], "trainer.schedule.warmup", Amount(10, "%")),
        (
            [f"{ACTOR}.optim.lr_warmup_steps=5", f"{ACTOR}.optim.lr_warmup_steps_ratio=0.1"],
            "trainer.schedule.warmup",
            Amount(5, "steps"),
        ),
        ([f"{ACTOR}.optim.warmup_style=cosine"], "trainer.schedule.interval", "steps"),
        (
            [f"{ACTOR}.optim.warmup_style=cosine", f"{ACTOR}.optim.min_lr_ratio=0.1"],
            "trainer.schedule",
            CosineScheduleConfig(warmup=Amount(0, "%"), min_ratio=0.1),
        ),
        ([f"{ACTOR}.optim.betas=[0.9,0.95]"], "trainer.optimizer.betas", (0.9, 0.95)),
        ([f"{ACTOR}.checkpoint.save_contents=[model,extra]"], "checkpoint.save_optimizer", False),
        ([f"{ACTOR}.checkpoint.save_contents=[model,optimizer,extra,hf_model]"], "checkpoint.export", True),
        ([f"{ACTOR}.checkpoint.save_contents=[hf_model]"], "checkpoint.export", True),
        ([f"{ROLLOUT}.top_k=-1"], "rollout.sampling.top_k", 0),
        ([f"{ROLLOUT}.top_k=5"], "rollout.sampling.top_k", 5),
        ([f"{ROLLOUT}.ignore_eos=True"], "data.eval.0.sampling.ignore_eos", True),
        ([f"{ROLLOUT}.dtype=float32"], "rollout.engine.dtype", "float32"),
        ([f"{ROLLOUT}.val_kwargs.temperature=0.7"], "data.eval.0.sampling.temperature", 0),
        (
            [f"{ROLLOUT}.val_kwargs.temperature=0.7", f"{ROLLOUT}.val_kwargs.do_sample=True"],
            "data.eval.0.sampling.temperature",
            0.7,
        ),
        ([f"{ROLLOUT}.val_kwargs.n=4"], "data.eval.0.rollouts_per_task", 4),
        (["trainer.val_only=True"], "mode", "bench"),
        (["trainer.experiment_name=''"], "name", "run"),
        (
            ["custom_reward_function.path=r.py", "+reward.custom_reward_function.reward_kwargs.bonus=2"],
            "reward.functions.0.args",
            {"bonus": 2},
        ),
        (
            [f"{ACTOR}.model_engine=megatron", f"{ACTOR}.clip_cov_lb=2", f"{ACTOR}.loss_mode=clip_cov"],
            "algorithm.policy_loss.covariance_low",
            2,
        ),
        (
            ["actor_rollout_ref.model.lora_rank=8", "+actor_rollout_ref.model.lora_adapter_path=a"],
            "model.lora.adapter",
            "a",
        ),
        (["custom_reward_function.path=r.py"], "reward.functions.0.function", "r.py:compute_score"),
        (
            ["custom_reward_function.path=r.py", "custom_reward_function.name=f"],
            "reward.functions.0.function",
            "r.py:f",
        ),
        (["trainer.total_epochs=3"], "trainer.duration", Amount(3, "epochs")),
        (
            ["trainer.total_epochs=3", "trainer.total_training_steps=9"],
            "trainer.duration",
            Amount(9, "steps"),
        ),
        (
            ["trainer.total_epochs=3", "trainer.total_training_steps=9"],
            "trainer.stop_after",
            Amount(3, "epochs"),
        ),
        (["trainer.test_freq=-1"], "evaluate.at_end", False),
        (["trainer.save_freq=20"], "checkpoint.every", Amount(20, "steps")),
        (["trainer.test_freq=-1"], "evaluate.every", None),
        (["trainer.remove_previous_ckpt_in_save=True"], "checkpoint.keep", 1),
        (["trainer.max_actor_ckpt_to_keep=4"], "checkpoint.keep", 4),
        (["trainer.resume_mode=disable"], "resume", "never"),
        (["trainer.resume_mode=resume_path", "trainer.resume_from_path=c"], "resume", "c"),
        (["trainer.logger=console"], "record.monitors", ("console",)),
        (["trainer.logger=[]"], "record.monitors", ()),
        (["trainer.logger='[console,wandb]'"], "record.monitors", ("console", "wandb")),
        (["trainer.logger=[console,tensorboard]"], "record.monitors", ("console", "tensorboard")),
        ([], "checkpoint.mirror", None),
        (["trainer.default_hdfs_dir=hdfs://x"], "checkpoint.mirror", "hdfs://x"),
        (["trainer.log_val_generations=5"], "record.eval_answers", 5),
        (["trainer.experiment_name=e"], "folder_path", Path("checkpoints/verl_examples/e")),
        (
            ["trainer.experiment_name=e", "trainer.default_local_dir=ck/${trainer.experiment_name}"],
            "folder_path",
            Path("ck/e"),
        ),
    ],
)
def test_mapped(overrides: list[str], field: str, expected: object) -> None:
    assert value(read(*overrides), field) == expected


@pytest.mark.parametrize(
    ("overrides", "note"),
    [
        ([f"{ACTOR}.kl_loss_coef=0.01"], f"{ACTOR}.use_kl_loss is False"),
        (["actor_rollout_ref.model.lora_alpha=32"], "lora_rank is 0"),
        (
            ["data.filter_overlong_prompts=True", "data.truncation=error"],
            "data.filter_overlong_prompts is True",
        ),
        ([f"{ROLLOUT}.val_kwargs.top_p=0.7"], "do_sample is False"),
        ([f"{ACTOR}.optim.min_lr_ratio=0.1"], "warmup_style is constant"),
        (["algorithm.gamma=0.9"], "adv_estimator is grpo"),
        (["critic.optim.lr=1e-5"], "adv_estimator is grpo"),
        (["algorithm.kl_ctrl.kl_coef=0.1"], "use_kl_in_reward is False"),
        (
            [
                "algorithm.use_kl_in_reward=True",
                "algorithm.kl_ctrl.kl_coef=0.1",
                "algorithm.kl_ctrl.horizon=9",
            ],
            "kl_ctrl.type is fixed",
        ),
        (["reward_model.model.path=rm"], "reward_model.enable is False"),
        ([f"{ACTOR}.optim.lr_decay_style=cosine"], "strategy is fsdp"),
        (["trainer.resume_from_path=x"], "resume_mode is auto"),
        (["actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=9"], "no KL term is on"),
        (
            ["trainer.ray_wait_register_center_timeout=5"],
            "accepted without effect: there is a single process",
        ),
        (["data.return_raw_chat=True"], "accepted without effect"),
        ([f"{ACTOR}.ppo_micro_batch_size=64"], "deprecated; write ppo_micro_batch_size_per_gpu"),
    ],
)
def test_keys_without_effect_have_notices(overrides: list[str], note: str) -> None:
    notes = read(*overrides).notes
    assert len(notes) == 1 and note in notes[0] and "override" in notes[0]


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("data.train_batchsize=3", "did you mean 'data.train_batch_size'"),
        ("clip_ratio=0.1", f"did you mean '{ACTOR}.clip_ratio'"),
        ("+data.train_batchsize=3", "did you mean 'data.train_batch_size'"),
        ("actor_rollout_ref.model.external_libs=x", "did you mean 'actor_rollout_ref.model.external_lib'"),
        ("data.train_batch_size=many", "data.train_batch_size must be an integer, got 'many'"),
        ("data.shuffle=3", "data.shuffle must be true or false, got 3"),
        ("data.truncation=up", "error or left or right or middle"),
        (
            "data.train_batch_size=0",
            "override data.train_batch_size=0: must be greater than 0, got 0",
        ),
        ("data.train_batch_size=100", r"\(100\) is not a multiple .* \(256\); the nearest .* 50 and 100"),
        (f"{ACTOR}.kl_loss_type=k4", "k1 or abs"),
        ("algorithm.adv_estimator=a2c", "gae or grpo or"),
        (f"{ROLLOUT}.do_sample=False", "no training signal"),
        (f"{ROLLOUT}.response_length=7", r"write data\.max_response_length"),
        (f"{ROLLOUT}.val_kwargs.do_sample=True", "temperature is 0, which is greedy"),
        (f"{ROLLOUT}.multi_turn.max_turn=3", "does not know this key of verl's"),
        ("algorithm.filter_groups={enable: True, metric: accuracy}", "a reward function of your own"),
        ("reward_model.reward_manager=collabllm", "a manager of a recipe"),
        ("rollout.temperature=1", "did you mean 'actor_rollout_ref.rollout.temperature'"),
        (f"{ACTOR}.fsdp_config.qat.enable=True", "rounds the weights to few bits"),
        ("trainer.logger='[console,nobody]'", "trainer.logger has nobody"),
        (" ", "a backslash followed by a space"),
        ("trainer.spo.enable=True", "keeps a value of each prompt"),
        (
            "reward_model.reward_kwargs.overlong_buffer_cfg.enable=True",
            "also write .*overlong_buffer_cfg.len",
        ),
        ("reward_model.reward_kwargs.max_resp_len=7", r"write data\.max_response_length"),
        (
            f"+{ACTOR}.policy_loss.loss_mode=bypass_mode",
            "a loss that Strop does not have; it has vanilla, gspo",
        ),
        ("data.custom_cls.path=x.py", r"also write data\.custom_cls\.name"),
        (f"{ACTOR}.optim.total_training_steps=5", r"write trainer\.total_training_steps"),
        (f"{ACTOR}.checkpoint.save_contents=[optimizer]", "requires 'model'"),
        (f"{ACTOR}.checkpoint.load_contents=[model]", "has no extra"),
        (f"{ACTOR}.checkpoint.load_contents=[model,extra,hf_model]", "save_contents does not have"),
        ("trainer.logger=consol", "consol, which is not a monitor of verl"),
        ("trainer.resume_mode=resume_path", r"write trainer\.resume_from_path"),
        ("trainer=3", "trainer is a section"),
        ("~data.shuffle", "verl needs the key data.shuffle, so it cannot be removed"),
        ("data.train_files=${oc.env:STROP_TEST_NONE}", "environment variable 'STROP_TEST_NONE' is not set"),
        ("data.train_files=${data.nothing}", "not found"),
        ("data.train_files=[]", "a string or a list of strings"),
    ],
)
def test_refused(override: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected) as caught:
        read(override, here=True)
    assert "\n" not in str(caught.value)


def test_grpo_on_single_responses_has_the_reward_as_the_advantage() -> None:
    """compute_grpo_outcome_advantage (verl 0.4 to 0.9): a group of one has mean 0 and standard deviation 1."""
    loaded = read(f"{ROLLOUT}.n=1", "algorithm.norm_adv_by_std_in_grpo=True")
    assert loaded.run.algorithm.type == "reinforce"
    assert any("rollout.n is 1" in note and "norm_adv_by_std" in note for note in loaded.notes)
    assert read(f"{ROLLOUT}.n=1", "algorithm.adv_estimator=rloo").run.algorithm.type == "reinforce"
    with pytest.raises(ConfigError, match=r"for example, actor_rollout_ref\.rollout\.n=8"):
        read(f"{ROLLOUT}.n=1", "algorithm.adv_estimator=opo")


def test_partial_rollouts_belong_to_the_fully_asynchronous_trainer() -> None:
    loaded = read("+async_training.partial_rollout=True")
    assert loaded.run.synchronizer == read().run.synchronizer
    assert any("partial_rollout=True: inactive, because the trainer is not" in note for note in loaded.notes)


@pytest.mark.parametrize(
    "override",
    [
        "trainer.n_gpus_per_node=8",
        "trainer.n_gpus_per_node=1",
        "trainer.nnodes=2",
        f"{ROLLOUT}.name=hf",
        f"{ROLLOUT}.tensor_model_parallel_size=2",
        f"{ROLLOUT}.gpu_memory_utilization=0.6",
        f"{ROLLOUT}.dtype=float16",
        f"{ROLLOUT}.mode=async",
        f"{ROLLOUT}.max_model_len=100",
        f"+{ROLLOUT}.engine_kwargs.vllm.disable_mm_preprocessor_cache=True",
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=9",
        f"{ACTOR}.fsdp_config.param_offload=True",
        f"{ACTOR}.ulysses_sequence_parallel_size=2",
        f"{ACTOR}.strategy=megatron",
        f"{ACTOR}.use_torch_compile=True",
        "actor_rollout_ref.model.use_remove_padding=False",
    ],
)
def test_placement_is_refused_or_overridden(override: str, monkeypatch: pytest.MonkeyPatch) -> None:
    key, _, said = override.removeprefix("+").partition("=")
    with pytest.raises(PlacementError, match="--here") as caught:
        read(override)
    assert f"{key}={said}" in str(caught.value)
    loaded = read(override, here=True)
    assert [(item.key, str(item.value)) for item in loaded.overridden] == [(key, said)]
    plain = read().run
    if key not in (f"{ROLLOUT}.dtype", f"{ACTOR}.strategy"):  # Megatron's optimizer has keys of its own
        assert loaded.run == plain
    monkeypatch.setenv("STROP_HERE", "1")
    assert read(override).overridden == loaded.overridden


@pytest.mark.parametrize(
    "override",
    [
        "trainer.nnodes=1",
        f"{ROLLOUT}.tensor_model_parallel_size=1",
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=8",
        f"{ROLLOUT}.max_model_len=4096",
        f"{ACTOR}.fsdp_config.param_offload=False",
        f"{ACTOR}.strategy=fsdp2",
        "actor_rollout_ref.model.use_remove_padding=True",
        "algorithm.use_kl_in_reward=False",
        "reward_model.enable=False",
        "reward_model.reward_manager=prime",
    ],
)
def test_available_placement_is_accepted(override: str) -> None:
    assert read(override).overridden == ()


def test_one_gpu_is_accepted_if_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strop.dialects.verl.gpus.count_cuda_devices", lambda: 1)
    assert read("trainer.n_gpus_per_node=1").overridden == ()
    with pytest.raises(PlacementError):
        read("trainer.n_gpus_per_node=8")


def test_contradicting_micro_batch_sizes() -> None:
    with pytest.raises(ConfigError, match="set the same option"):
        read(f"{ACTOR}.ppo_micro_batch_size=64", f"{ACTOR}.ppo_micro_batch_size_per_gpu=8")


def test_all_faults_are_reported() -> None:
    with pytest.raises(ConfigError) as caught:
        read_verl(["trainer.logger=consol", "algorithm.adv_estimator=opo"])
    assert len(str(caught.value).splitlines()) == 2


def test_file_with_overrides(tmp_path: Path) -> None:
    path = tmp_path / "ppo.yaml"
    path.write_text(
        "data:\n  train_batch_size: 64\n  train_files: ${oc.env:STROP_TEST_DATA,d}/train.parquet\n"
        "algorithm:\n  adv_estimator: grpo\n"
        "actor_rollout_ref:\n  rollout: {n: 4}\n  actor: {ppo_mini_batch_size: 64}\n"
    )
    loaded = read_verl(["actor_rollout_ref.rollout.n=8", "~data.train_batch_size"], config=path)
    assert (loaded.run.algorithm.rollouts_per_task, loaded.run.trainer.tasks_per_step) == (8, 1024)
    assert loaded.run.data.train.path == "d/train.parquet"
    assert str(loaded.sources["data.train.path"]) == f"{path}:3 (data.train_files)"
    path.write_text("data: {train_batch: 3}\n")
    with pytest.raises(ConfigError, match=r"ppo\.yaml:1: verl has no key data\.train_batch; did you mean"):
        read_verl(BASE, config=path)


def test_page_as_a_file(tmp_path: Path) -> None:
    tree = ConfigTree()
    for key, default in page_copy().items():
        tree.set(split_key(key), default, Source("python", "the page"))
    path = tmp_path / "ppo_trainer.yaml"
    path.write_text(yaml.safe_dump(tree.values))
    changes = ["trainer.default_hdfs_dir=null", "trainer.logger=[console,clearml]"]
    loaded = read_verl([*BASE, *changes], config=path, here=True)
    written = {item.key for item in loaded.overridden}
    assert {"trainer.n_gpus_per_node", f"{ROLLOUT}.name", f"{ACTOR}.use_torch_compile"} <= written
    assert any("without clearml, which Strop does not have yet" in note for note in loaded.notes)
    written_too = ("trainer.default_local_dir=checkpoints/verl_examples/gsm8k", "data.image_key=images")
    assert loaded.run == read(*written_too, *TRUSTED).run


@pytest.mark.parametrize("name", ["t.jsonl", "t.parquet"])
def test_the_column_of_images_is_read_if_rows_have_it(tmp_path: Path, name: str) -> None:
    path, table = tmp_path / name, pa.Table.from_pylist([{"prompt": "?", "images": [1], "videos": [1]}])
    if name == "t.parquet":
        pq.write_table(table, path)
    else:
        path.write_text('{"prompt": "?", "images": [1], "videos": [1]}\n')

    def columns(*words: str) -> tuple[str | None, tuple[str, ...]]:
        run = read(f"data.train_files={path}", "data.video_key=null", *words).run
        assert run.data.eval[0].images == run.data.train.images
        return run.data.train.images, run.data.train.optional_columns

    assert columns() == columns("data.image_key=images") == ("images", ("images",))
    assert columns("data.image_key=pictures") == columns("data.image_key=null") == (None, ())
    with pytest.raises(
        ConfigError, match=r"data\.video_key='videos' is not supported: Strop trains on text and images"
    ):
        read(f"data.train_files={path}")


def test_files_that_are_elsewhere_have_the_images_that_a_key_names() -> None:
    assert read("data.train_files=nowhere.parquet").run.data.train.images is None
    named = read("data.train_files=nowhere.parquet", "data.image_key=pictures").run
    assert named.data.train.images == named.data.eval[0].images == "pictures"


def test_limits_of_images() -> None:
    words = ("+data.mm_processor_kwargs.max_pixels=1000", "+actor_rollout_ref.rollout.limit_images=2")
    images = read(*words).run.data.images
    assert (images.max_pixels, images.min_pixels, images.max_images) == (1000, None, 2)
    with pytest.raises(ConfigError, match="Strop has min_pixels and max_pixels"):
        read("+data.mm_processor_kwargs.fps=2")


def test_sections_and_dicts_as_overrides() -> None:
    loaded = read(f"{ROLLOUT}.val_kwargs={{n: 4, do_sample: True, temperature: 0.5}}")
    assert loaded.run.data.eval[0].rollouts_per_task == 4
    assert loaded.run.data.eval[0].sampling.temperature == 0.5


VALUES = [
    "null",
    "True",
    "-1",
    "0",
    "3",
    "0.5",
    "abc",
    "[]",
    "[a,b]",
    "[1,2]",
    "{a: 1}",
    "''",
    "${data.x}",
    "???",
]


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["", "", "", "+", "~"]),
            st.sampled_from([row.key for row in LEDGER.rows]),
            st.sampled_from(VALUES),
        ),
        max_size=4,
    )
)
def test_any_configuration_is_read_or_refused(line: list[tuple[str, str, str]]) -> None:
    overrides = [f"{sign}{key.replace('*', 'x')}={said}" for sign, key, said in line]
    try:
        read(*overrides, here=True)
    except StropError as error:
        assert "\n\n" not in str(error)
