"""Interactions between verl's keys: optimizers, reward models, critics, corrections, tools, and versions."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from strop.algorithms.schedules import lr_at
from strop.compat.hydra import ConfigSelection
from strop.compat.verl.generation import read_verl_generate
from strop.compat.verl.ppo_trainer import read_verl
from strop.compat.verl.reward import write_sandbox
from strop.compat.verl.trainer import write_duration
from strop.config.load.loader import LoadedRun
from strop.config.schema.algorithm import PpoConfig
from strop.config.schema.model import ModelConfig
from strop.config.schema.optimizer import CosineScheduleConfig, LinearScheduleConfig
from strop.config.schema.reward import LocalSandboxConfig, SandboxFusionConfig
from strop.config.units import Amount
from strop.errors import ConfigError

from .key_tables import value_of

ACTOR = "actor_rollout_ref.actor"
OPTIM = f"{ACTOR}.optim"
MODEL = "actor_rollout_ref.model"
GRPO = ("algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=4")
MEGATRON = (*GRPO, f"{ACTOR}.strategy=megatron", f"{OPTIM}.lr=1e-5")


def read(*overrides: str) -> LoadedRun:
    return read_verl(overrides, here=True)


def test_megatrons_linear_by_hand() -> None:
    overrides = ("lr_warmup_init=2e-6", "lr_warmup_steps=4", "min_lr=1e-6", "lr_decay_steps=14")
    trainer = read(*MEGATRON, *(f"{OPTIM}.{each}" for each in overrides)).run.trainer
    rates = [
        lr_at(trainer.schedule, 1e-5, p, 100, lambda amount, _: int(amount.count)) for p in (0, 2, 4, 9, 50)
    ]
    assert rates == pytest.approx([2e-6, 6e-6, 1e-5, 5.5e-6, 1e-6])


@pytest.mark.parametrize(
    ("engine", "keys", "kind"),
    [
        ("veomni", ("lr_min=1e-6",), "cosine"),
        ("torchtitan", ("decay_type=linear", "min_lr_factor=0.1"), "linear"),
    ],
)
def test_a_critic_has_the_schedule_of_its_engine(engine: str, keys: tuple[str, ...], kind: str) -> None:
    critic = [f"critic.optim.{each}" for each in ("lr=1e-5", *keys)]
    run = read(f"model_engine={engine}", f"{OPTIM}.lr=1e-5", *(f"{OPTIM}.{key}" for key in keys), *critic).run
    assert isinstance(run.algorithm, PpoConfig)
    schedule = run.algorithm.critic.schedule
    assert isinstance(schedule, CosineScheduleConfig | LinearScheduleConfig)
    assert (schedule.type, schedule.min_ratio) == (kind, 0.1)
    assert run.trainer.schedule == schedule


def test_megatrons_parallel_sizes_are_placement() -> None:
    loaded = read(*MEGATRON, f"+{ACTOR}.megatron.tensor_model_parallel_size=4")
    assert f"{ACTOR}.megatron.tensor_model_parallel_size" in {item.key for item in loaded.overridden}
    with pytest.raises(ConfigError, match="adds no such loss"):
        read(*MEGATRON, f"+{ACTOR}.megatron.override_transformer_config.mtp_loss_scaling_factor=0.1")


def test_schedules_span_the_steps_and_epochs_may_end_a_run() -> None:
    for words in (("total_epochs=2", "total_training_steps=5"), ("total_training_steps=5", "total_epochs=2")):
        trainer = read(*GRPO, *(f"trainer.{word}" for word in words)).run.trainer
        assert (trainer.duration, trainer.stop_after) == (Amount(5, "steps"), Amount(2, "epochs"))
    never = read(*GRPO, "trainer.total_training_steps=5", "trainer.total_epochs=1000000").run
    assert never.trainer.stop_after is None
    assert write_duration(never) == {"trainer.total_training_steps": 5, "trainer.total_epochs": 1_000_000}


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


def test_a_sandbox_server() -> None:
    at, url = "reward_model.sandbox_fusion", "http://sandbox:8080/run_code"
    run = read(*GRPO, f"+{at}.url={url}", f"+{at}.memory_limit_mb=512", f"+{at}.max_concurrent=8").run
    assert run.reward.sandbox == SandboxFusionConfig(url=url, memory_mb=512)
    assert write_sandbox(run) == {f"{at}.url": url, f"{at}.memory_limit_mb": 512}
    assert read(*GRPO).run.reward.sandbox == LocalSandboxConfig()


# -- tools, interactions and agent loops --------------------------------------------------------------------

TOOLS_MODEL = "actor_rollout_ref.model.path=m"
ROLLOUT = "actor_rollout_ref.rollout"
TURNS = f"{ROLLOUT}.multi_turn"


def workflow(*overrides: str) -> tuple[str, dict[str, Any]]:
    run = read_verl([TOOLS_MODEL, f"{ROLLOUT}.n=4", *overrides], here=True).run
    return run.rollout.workflow.name, run.rollout.workflow.args


def test_agent_loops_of_the_user_get_the_configuration() -> None:
    """Among it the name of a format that only the user's loop can parse."""
    name, args = workflow(
        f"{ROLLOUT}.agent.default_agent_loop=mine",
        f"{ROLLOUT}.agent.agent_loop_config_path=agents.yaml",
        f"{TURNS}.format=mine",
    )
    assert "form" not in args["tools"]
    assert args["config"]["actor_rollout_ref"]["rollout"]["multi_turn"]["format"] == "mine"
    assert (name, args["default_agent"], args["agent_loops"]) == ("verl_agents", "mine", "agents.yaml")
    assert args["config"]["actor_rollout_ref"]["rollout"]["response_length"] == 512
    assert args["config"]["data"]["max_prompt_length"] == 512


# -- recomputed layers --------------------------------------------------------------------------------------

SWITCH = f"{MODEL}.enable_gradient_checkpointing=True"
LATER = f"{ACTOR}.megatron.override_transformer_config.recompute"
LINE = ("data.train_files=train.parquet", "data.val_files=null", f"{MODEL}.path=m")


def recomputed(*more: str, strategy: str = "megatron") -> LoadedRun:
    return read_verl([*LINE, f"{ACTOR}.strategy={strategy}", *more], here=True)


def test_inputs_of_recomputed_layers_are_offloaded() -> None:
    offload = f"{MODEL}.enable_activation_offload=True"
    assert recomputed(SWITCH, offload, strategy="fsdp").run.model.activation_offload
    assert (
        recomputed(SWITCH, offload, strategy="fsdp").overridden
        == recomputed(SWITCH, strategy="fsdp").overridden
    )
    kept = recomputed(offload, strategy="fsdp")
    assert not kept.run.model.activation_offload
    assert any("enable_activation_offload" in str(each) for each in kept.overridden)


def test_the_schema_refuses_compilation_of_selective_layers() -> None:
    with pytest.raises(ValidationError, match=r"torch\.compile decides itself"):
        ModelConfig(path="m", compile=True, gradient_checkpointing="selective")
    assert ModelConfig(path="m", compile=True, gradient_checkpointing=True).gradient_checkpointing is True


# -- keys of later versions ---------------------------------------------------------------------------------

BASE = ("algorithm.adv_estimator=grpo", f"{ROLLOUT}.n=4", "data.val_files=null")
MEGATRON_FILE = ConfigSelection(name="ppo_megatron_trainer")


@pytest.mark.parametrize("engine", ["mindspeed", "megatron"])
def test_mindspeed_has_the_optimizer_of_megatron(engine: str) -> None:
    """verl 0.9.0's `actor/mindspeed_actor.yaml`, lines 3-9: the optimizer and the engine's keys are Megatron's."""
    words = [f"model_engine={engine}", f"{ACTOR}.optim.lr_decay_style=cosine", f"{ACTOR}.optim.min_lr=1e-7"]
    sizes = [f"{ACTOR}.{engine}.tensor_model_parallel_size=2"]
    loaded = read_verl([*BASE, *words, *sizes], here=True)
    assert value_of(loaded, "trainer.schedule.type") == "cosine"
    assert value_of(loaded, "trainer.schedule.min_ratio") == pytest.approx(0.1)


def test_engine_settings_are_placement() -> None:
    words = [
        f"{ACTOR}.megatron.use_mbridge=True",
        f"{ROLLOUT}.checkpoint_engine.backend=nccl",
        f"{ROLLOUT}.server.timeout=60",
        f"{ROLLOUT}.sglang_rollout_mode=server",
        "trainer.device=npu",
    ]
    loaded = read_verl([*BASE, *words], selection=MEGATRON_FILE, here=True)
    assert {word.split("=")[0] for word in words} <= {key.key for key in loaded.overridden}


def test_generation_server_keeps_all_tokens() -> None:
    words = ["data.train_files=t.parquet", "data.output_path=o.parquet"]
    words += [f"{ROLLOUT}.top_k=50", f"{ROLLOUT}.n=3", "actor_rollout_ref.model.path=m"]
    generation = read_verl_generate(words, here=True).generation
    assert (generation.rollouts_per_task, generation.sampling.top_k, generation.sampling.top_p) == (3, 0, 1)
    assert (generation.model.path, generation.data.train.path) == ("m", "t.parquet")
