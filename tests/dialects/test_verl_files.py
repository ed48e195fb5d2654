"""Keys as verl's own YAML files have them: nulls, marks of missing values, and defaults are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from strop.config.schema import Run
from strop.config.schema.algorithm import OnlineDpoConfig
from strop.config.schema.synchronizer import CollectiveSyncConfig, FixedStyleConfig
from strop.dialects.hydra.selection import ConfigSelection
from strop.dialects.ledger.writer import write_dialect
from strop.dialects.verl.file_keys import NULL_IS_UNSET
from strop.dialects.verl.ppo_trainer import LEDGER, read_verl
from strop.dialects.verl.sft_trainer import read_verl_sft
from strop.errors import ConfigError

SPIN_KEYS = ("trainer.ref_update_freq", "actor_rollout_ref.rollout.n")


def run_of(*overrides: str) -> Run:
    return read_verl(overrides, here=True).run


@pytest.mark.parametrize("key", NULL_IS_UNSET)
def test_null_leaves_a_key_at_its_default(key: str) -> None:
    assert run_of(f"{key}=null") == run_of()


def test_an_interpolated_null_leaves_a_key_at_its_default(tmp_path: Path) -> None:
    file = tmp_path / "ppo.yaml"
    file.write_text(
        "critic:\n  ppo_micro_batch_size: null\n"
        "  ppo_micro_batch_size_per_gpu: ${oc.select:.ppo_micro_batch_size,null}\n"
    )
    assert read_verl([], config=file, here=True).run.algorithm == run_of().algorithm


def test_a_missing_value_matters_only_where_it_is_read(tmp_path: Path) -> None:
    file = tmp_path / "ppo.yaml"
    file.write_text("actor_rollout_ref:\n  actor: {strategy: '???'}\n  rollout: {name: '???'}\n")
    assert read_verl([], config=file, here=True).run == run_of()
    file.write_text("data: {train_batch_size: '???'}\n")
    with pytest.raises(ConfigError, match=r"data\.train_batch_size: '\?\?\?' marks a value"):
        read_verl([], config=file, here=True)


@pytest.mark.parametrize(
    "setting",
    [
        "critic.enable=null",
        "critic.enable=True",
        "critic.optim.total_training_steps=-1",
        "critic.optim.optimizer=AdamW",
        "critic.optim.override_optimizer_config=null",
        "critic.model.lora_alpha=16",
        "critic.checkpoint.load_contents=[model,optimizer,extra]",
        "actor_rollout_ref.rollout.agent.custom_async_server={path:null,name:null}",
        "actor_rollout_ref.rollout.skip.enable=False",
        "actor_rollout_ref.actor.optim.muon_momentum=0.95",
        "data.continuous_token.enable=False",
    ],
)
def test_a_default_of_verls_files_changes_nothing(setting: str) -> None:
    written, unwritten = run_of(setting), run_of()
    assert written.algorithm == unwritten.algorithm
    assert written.trainer == unwritten.trainer


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("critic.enable=False", "critic.enable=False is not supported: a critic is trained for"),
        ("critic.optim.optimizer=sgd", "the critic is trained with AdamW"),
        ("critic.optim.eps=1e-6", "AdamW's epsilon is 1e-8"),
        ("actor_rollout_ref.actor.optim.betas=[]", "betas must be a list of two numbers, got []"),
        ("++reward.reward_model.model_path=2", "reward.reward_model.model_path must be a string"),
        (
            "data.gen_batch_size=100",
            "override data.gen_batch_size=100: data.gen_batch_size (100) is not a mult",
        ),
        (
            "distillation.enabled=True",
            "override distillation.enabled=True: distillation.enabled is True, and",
        ),
        ("trainer.ref_update_freq=2", "is then a policy of some steps before"),
        ("actor_rollout_ref.rollout.skip_rollout=True", "does not replay rollouts"),
    ],
)
def test_another_value_is_refused(setting: str, said: str) -> None:
    with pytest.raises(ConfigError) as failure:
        run_of(setting)
    assert said in str(failure.value)


def test_a_long_reason_is_said_once() -> None:
    with pytest.raises(ConfigError) as failure:
        run_of("async_training.replay=1", "async_training.buffer=4")
    lines = str(failure.value).splitlines()
    assert "async_training.replay=1 is not supported: the fully asynchronous trainer" in lines[0]
    assert lines[1].endswith("=4 is not supported, for the reason given for async_training.replay.")


def test_a_default_is_that_of_the_keys_own_name() -> None:
    """`trainer.val_generations_to_log_to_wandb` is the name of `trainer.log_val_generations` in 0.3."""
    loaded = read_verl((), here=True)
    assert loaded.sources["record.eval_answers"].foreign_key.startswith("trainer.log_val_generations=")


def test_the_value_loss_is_aggregated_as_the_policys() -> None:
    """verl's critic.yaml: `loss_agg_mode: ${actor_rollout_ref.actor.loss_agg_mode}`."""
    mode = "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean"
    assert run_of(mode).algorithm.critic.aggregation == "seq-mean-token-mean"  # type: ignore[union-attr]
    apart = run_of(mode, "critic.loss_agg_mode=token-mean").algorithm.critic  # type: ignore[union-attr]
    assert apart.aggregation == "token-mean"
    assert run_of().algorithm.critic.aggregation == "token-mean"  # type: ignore[union-attr]


def test_torchtitan_decays_after_the_warm_up() -> None:
    """torchtitan's LRSchedulersContainer without decay_ratio, as verl's torchtitan engine builds it."""
    engine, optim = "model_engine=torchtitan", "actor_rollout_ref.actor.optim"
    linear = run_of(engine).trainer.schedule
    assert (linear.type, linear.min_ratio) == ("linear", 0.0)  # type: ignore[union-attr]
    cosine = run_of(engine, f"{optim}.decay_type=cosine", f"{optim}.min_lr_factor=0.1").trainer.schedule
    assert (cosine.type, cosine.min_ratio) == ("cosine", 0.1)  # type: ignore[union-attr]
    assert run_of(engine, f"{optim}.min_lr_factor=1.0").trainer.schedule.type == "constant"
    assert run_of().trainer.schedule.type == "constant"
    with pytest.raises(ConfigError, match="decay_type is sqrt"):
        run_of(engine, f"{optim}.decay_type=sqrt")


def test_betas_may_be_quoted() -> None:
    for section in ("actor_rollout_ref.actor", "critic"):
        assert run_of(f"{section}.optim.betas='[0.9, 0.95]'") == run_of(f"{section}.optim.betas=[0.9,0.95]")
    sft = read_verl_sft(["optim.betas='[0.8, 0.9]'"], here=True).run
    assert sft.trainer.optimizer.betas == (0.8, 0.9)  # type: ignore[union-attr]


def test_the_length_of_responses_is_the_scale_of_a_summed_loss() -> None:
    mode, factor = "loss_agg_mode=seq-mean-token-sum-norm", "actor_rollout_ref.actor.loss_scale_factor"
    mode = f"actor_rollout_ref.actor.{mode}"
    assert run_of(mode, f"{factor}=512", "data.max_response_length=512").algorithm == run_of(mode).algorithm
    with pytest.raises(ConfigError, match="loss_scale_factor=7 is not supported"):
        run_of(mode, f"{factor}=7")


def test_the_models_tokenizer() -> None:
    assert run_of("actor_rollout_ref.model.tokenizer_path=words").model.tokenizer == "words"


def test_an_estimator_is_named_once() -> None:
    with pytest.raises(ConfigError) as failure:
        run_of("algorithm.adv_estimator=gea")
    assert str(failure.value).split().count("gae") == 1


def test_sft_keys_of_verl_0_6() -> None:
    run = read_verl_sft(
        ["optim.lr_warmup_steps_ratio=0.2", "trainer.resume_mode=disable", "data.train_max_samples=7"],
        here=True,
    ).run
    assert run.trainer.schedule.warmup.count == 20
    assert run.data.train.limit_tasks == 7
    assert run.resume == "never"


def test_one_step_off_policy_has_an_explorer_one_step_ahead() -> None:
    selected = ConfigSelection(name="one_step_off_ppo_trainer")
    run = read_verl(["rollout.nnodes=1", "rollout.n_gpus_per_node=2"], selection=selected, here=True).run
    assert isinstance(run.synchronizer, CollectiveSyncConfig)
    assert isinstance(run.synchronizer.style, FixedStyleConfig)
    assert run.synchronizer.style.max_lead.count == 1
    assert write_dialect(LEDGER, run).values["actor_rollout_ref.hybrid_engine"] is False
    assert run_of("actor_rollout_ref.hybrid_engine=False").synchronizer == run.synchronizer
    assert run_of().synchronizer.type == "memory"


def test_the_recipe_spin_makes_one_update_on_pairs() -> None:
    read = read_verl([], selection=ConfigSelection(name="spin_trainer"), here=True)
    run = read.run
    assert isinstance(run.algorithm, OnlineDpoConfig)
    assert run.algorithm.rollouts_per_task == 2
    assert run.trainer.tasks_per_update == run.trainer.tasks_per_step == 1024
    assert any("responses to different prompts" in note for note in read.notes)
    written = write_dialect(LEDGER, run).values
    assert written["trainer.ref_update_freq"] == 1
    assert run_of(*(f"{key}={written[key]}" for key in SPIN_KEYS)).algorithm == run.algorithm
    stronger = run_of("trainer.ref_update_freq=1", "actor_rollout_ref.actor.dpo_beta=0.3").algorithm
    assert stronger == run.algorithm.model_copy(update={"beta": 0.3})
    with pytest.raises(ConfigError, match="compares responses two by two"):
        run_of(
            "actor_rollout_ref.actor.dpo_beta=0.1",
            "trainer.ref_update_freq=1",
            "actor_rollout_ref.rollout.n=4",
        )
