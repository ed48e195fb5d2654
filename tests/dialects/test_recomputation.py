"""Which layers verl's and Trinity's keys recompute, Megatron's of both times included."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from strop.config.load.loader import LoadedRun
from strop.config.schema.model import ModelConfig
from strop.dialects.verl.ppo_trainer import read_verl
from strop.errors import ConfigError

MODEL, ACTOR = "actor_rollout_ref.model", "actor_rollout_ref.actor"
SWITCH = f"{MODEL}.enable_gradient_checkpointing=True"
LATER = f"{ACTOR}.megatron.override_transformer_config.recompute"
EARLIER = f"{MODEL}.gradient_checkpointing_kwargs.activations_checkpoint"
LINE = ("data.train_files=train.parquet", "data.val_files=null", f"{MODEL}.path=m")


def read(*more: str, strategy: str = "megatron") -> LoadedRun:
    return read_verl([*LINE, f"{ACTOR}.strategy={strategy}", *more], here=True)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ((), False),
        ((SWITCH,), True),
        ((f"{LATER}_granularity=full", f"{LATER}_method=uniform", f"{LATER}_num_layers=1"), True),
        ((f"{LATER}_granularity=full", f"{LATER}_method=block", f"{LATER}_num_layers=4"), True),
        ((f"{LATER}_granularity=selective", f"{LATER}_modules=[core_attn,mlp]"), "selective"),
        ((SWITCH, f"{EARLIER}_granularity=full", f"{EARLIER}_method=uniform"), True),
        ((SWITCH, f"{EARLIER}_granularity=selective"), "selective"),
        ((f"{EARLIER}_granularity=selective",), False),  # the switch is off
        ((SWITCH, f"{LATER}_granularity=null"), True),
    ],
)
def test_megatrons_granularity(keys: tuple[str, ...], expected: bool | str) -> None:
    assert read(*keys).run.model.gradient_checkpointing == expected


def test_what_stands_in_is_said() -> None:
    (note,) = [
        each for each in read(f"{LATER}_granularity=selective").notes if "recompute_granularity" in each
    ]
    assert "keeps the results of matrix products" in note


def test_inputs_of_recomputed_layers_are_offloaded() -> None:
    offload = f"{MODEL}.enable_activation_offload=True"
    assert read(SWITCH, offload, strategy="fsdp").run.model.activation_offload
    assert read(SWITCH, offload, strategy="fsdp").overridden == read(SWITCH, strategy="fsdp").overridden
    kept = read(offload, strategy="fsdp")
    assert not kept.run.model.activation_offload
    assert any("enable_activation_offload" in str(each) for each in kept.overridden)


def test_another_granularity_is_refused() -> None:
    with pytest.raises(ConfigError, match="recompute_granularity"):
        read(f"{LATER}_granularity=some")


def test_fsdp_does_not_read_megatrons_keys() -> None:
    loaded = read(SWITCH, f"{LATER}_granularity=selective", strategy="fsdp")
    assert loaded.run.model.gradient_checkpointing is True


def test_the_schema_refuses_compilation_of_selective_layers() -> None:
    with pytest.raises(ValidationError, match=r"torch\.compile decides itself"):
        ModelConfig(path="m", compile=True, gradient_checkpointing="selective")
    assert ModelConfig(path="m", compile=True, gradient_checkpointing=True).gradient_checkpointing is True


CRITIC = "critic.megatron.override_transformer_config.recompute"
VALUES = ("algorithm.adv_estimator=gae", "critic.model.path=c")


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ((), (False, False)),
        ((f"{CRITIC}_granularity=full", f"{CRITIC}_method=block", f"{CRITIC}_num_layers=4"), (True, False)),
        ((f"{CRITIC}_granularity=selective", f"{CRITIC}_modules=[mlp]"), ("selective", False)),
        ((f"{CRITIC}_granularity=full", "critic.model.enable_activation_offload=True"), (True, True)),
        (
            (
                "critic.model.enable_gradient_checkpointing=True",
                "critic.model.gradient_checkpointing_kwargs.activations_checkpoint_granularity=selective",
            ),
            ("selective", False),
        ),
    ],
)
def test_granularity_of_megatrons_critic(keys: tuple[str, ...], expected: tuple[bool | str, bool]) -> None:
    run = read(*VALUES, *keys).run
    model = run.algorithm.critic.model  # type: ignore[union-attr]
    assert model is not None
    assert (model.gradient_checkpointing, model.activation_offload) == expected
    assert run.model.gradient_checkpointing is False


def test_a_critic_from_the_policys_model_is_recomputed_as_the_policy() -> None:
    loaded = read("algorithm.adv_estimator=gae", "critic.model.path=null", f"{CRITIC}_granularity=full")
    assert loaded.run.algorithm.critic.model is None  # type: ignore[union-attr]
    assert any("critic.model.path is null" in note for note in loaded.notes)


def test_nothing_of_the_reference_is_recomputed() -> None:
    key = "actor_rollout_ref.ref.megatron.override_transformer_config.recompute_granularity=full"
    loaded = read(key, f"{ACTOR}.use_kl_loss=True")
    assert loaded.run.model.gradient_checkpointing is False
    assert any("the reference model is not trained" in note for note in loaded.notes)
