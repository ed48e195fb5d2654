"""All faults of one configuration are in one message, by kind, and none that only follows from another."""

from __future__ import annotations

from pathlib import Path

import pytest

from strop.compat.azureml.reader import read_component
from strop.compat.trinity.reader import read_trinity
from strop.compat.verl.ppo_trainer import read_verl
from strop.config.load.loader import load_run
from strop.errors import ConfigError, FaultKind, PlacementError

from .trinity_file import BASE

Expected = dict[FaultKind, list[str]]
UNKNOWN, TYPE, REFUSED, PLACEMENT = FaultKind


def check(error: ConfigError, expected: Expected) -> None:
    """Each fault contains its expected text, and the message has them under the headings of their kinds."""
    for kind in FaultKind:
        found = [fault.message for fault in error.faults if fault.kind is kind]
        parts = expected.get(kind, [])
        assert len(found) == len(parts), found
        assert all(any(part in message for message in found) for part in parts), found
    lines = str(error).splitlines()
    assert lines[0] == f"{sum(map(len, expected.values()))} faults in this configuration."
    assert [line for line in lines[1:] if not line.startswith("  ")] == [
        f"{kind.value}:" for kind in FaultKind if kind in expected
    ]


VERL = [
    "data.train_files=t.parquet",
    "actor_rollout_ref.model.path=m",
    "algorithm.adv_estimator=grpo",
    "actor_rollout_ref.rollout.n=8",
]


def test_verl() -> None:
    with pytest.raises(ConfigError) as caught:
        read_verl(
            [
                *VERL,
                "data.max_promt_length=512",
                "+actor_rollout_ref.rollout.frobnicate=1",
                "data.train_batch_size=sixty",
                "actor_rollout_ref.actor.use_kl_loss=perhaps",
                "actor_rollout_ref.rollout.response_length=5",
                "actor_rollout_ref.actor.optim.lr=-1",
                "actor_rollout_ref.rollout.tensor_model_parallel_size=4",
            ]
        )
    assert not isinstance(caught.value, PlacementError)
    check(
        caught.value,
        {
            UNKNOWN: [
                "data.max_promt_length; did you mean 'data.max_prompt_length'?",
                "no key actor_rollout_ref.rollout.frobnicate",
            ],
            TYPE: ["data.train_batch_size must be an integer", "use_kl_loss must be true or false"],
            REFUSED: [
                "response_length=5 is not supported",
                "override actor_rollout_ref.actor.optim.lr=-1: must be greater than or equal to 0, got -1",
            ],
            PLACEMENT: ["actor_rollout_ref.rollout.tensor_model_parallel_size=4"],
        },
    )


def test_trinity(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    path.write_text(
        BASE.replace("repeat_times: 8", "repeat_time: 8, optimizer: {lr: -1}")
        + """
synchronizer: {sync_interval: often, sync_style: sometimes}
monitor: {monitor_type: wandbb}
cluster: {node_num: 4, gpu_per_node: 8}
explorer: {runer_per_model: 4, rollout_model: {engine_num: many}}
"""
    )
    with pytest.raises(ConfigError) as caught:
        read_trinity(path)
    kinds = [fault.kind for fault in caught.value.faults]
    assert {UNKNOWN, TYPE} <= set(kinds), str(caught.value)
    text = str(caught.value)
    for part in (
        "algorithm.repeat_time; did you mean 'algorithm.repeat_times'?",
        "algorithm.optimizer.lr): must be greater than or equal to 0, got -1",
        "explorer.runer_per_model",
        "monitor.monitor_type",
        "synchronizer.sync_interval must be an integer",
        "synchronizer.sync_style",
        "explorer.rollout_model.engine_num must be an integer",
    ):
        assert part in text, text


def test_component() -> None:
    with pytest.raises(ConfigError) as caught:
        read_component(
            "grpo",
            [
                "--num_generation=4",
                "--frobnicate=1",
                "--max_steps=many",
                "--eval_strategy=step",
                "--learning_rate=-1",
            ],
        )
    text = str(caught.value)
    for part in (
        "no input --num_generation; did you mean 'num_generations'?",
        "no input --frobnicate",
        "--max_steps must be an integer",
        "--eval_strategy must be no or steps or epoch",
        "must be greater than or equal to 0, got -1",
    ):
        assert part in text, text
    assert "num_generations is" not in text


def test_run_file(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(
        """\
modl: {path: m}
seed: many
data: {train: {path: [1]}, shufle: true, max_prompt_tokens: -1}
rollout: {sampling: {temperature: 0}}
trainer: {engine: {type: local, device: cuda}, tasks_per_step: "${data.nowhere}", tasks_per_update: 48}
"""
    )
    with pytest.raises(ConfigError) as caught:
        load_run(path, ["name=a,b", "reward.functons=[]"])
    check(
        caught.value,
        {
            UNKNOWN: [
                f"{path}:1: modl: unknown key; did you mean 'model'?",
                f"{path}:3: data.shufle: unknown key; did you mean 'shuffle'?",
                "there is no key reward.functons",
            ],
            TYPE: ["seed: expected an integer", "data.train.path.0: expected a string, got 1"],
            REFUSED: [
                "override 'name=a,b': a sweep",
                f"{path}:5: trainer.tasks_per_step: interpolation key",
                f"{path}:3: data.max_prompt_tokens: must be greater than 0",
                f"{path}:4: rollout.sampling.temperature is 0",
            ],
            PLACEMENT: ["trainer.engine.device=cuda"],
        },
    )


def test_a_fault_that_follows_from_another_is_left_out() -> None:
    """48 is no divisor of the default batch size, but the user wrote another one, with a typing error."""
    with pytest.raises(ConfigError) as caught:
        read_verl(
            [*VERL, "data.train_batch_siz=96", "actor_rollout_ref.actor.ppo_mini_batch_size=48"], here=True
        )
    assert len(caught.value.faults) == 1
    assert "data.train_batch_siz" in str(caught.value)


def test_a_key_that_is_not_written_blames_no_other_key() -> None:
    with pytest.raises(ConfigError, match=r"^override algorithm\.adv_estimator=opo: .*rollout\.n is 1"):
        read_verl([*VERL[:-2], "algorithm.adv_estimator=opo"], here=True)


def test_many_unknown_keys_are_counted() -> None:
    with pytest.raises(ConfigError) as caught:
        read_verl([*VERL, *(f"zzz{number}=1" for number in range(100))], here=True)
    assert str(caught.value).splitlines()[-1] == "and 75 more."


def test_notices_on_an_error() -> None:
    """Notices about values without a fault; one that depends on a value with a fault is not known."""
    entropy = "actor_rollout_ref.actor.kl_loss_coef=0.5"  # whether it has an effect, use_kl_loss decides
    faulty = ["data.train_batch_size=sixty", "actor_rollout_ref.actor.use_kl_loss=perhaps"]
    with pytest.raises(ConfigError) as caught:
        read_verl([*VERL, *faulty, entropy, "actor_rollout_ref.actor.use_torch_compile=False"], here=True)
    told = "override actor_rollout_ref.actor.use_torch_compile=False: accepted without effect: nothing is compiled."
    assert caught.value.notices == (told,)
    Path("t.yaml").write_text(BASE + "log: {level: INFO}\nstages:\n- {stage_name: a, mode: train}\n")
    with pytest.raises(ConfigError) as caught:
        read_trinity(Path("t.yaml"), ["model.max_prompt_tokens=many"], here=True)
    assert len(caught.value.notices) == len(set(caught.value.notices)) > 0
    arguments = [
        "--data_train_files=t.jsonl",
        "--data_val_files=v.jsonl",
        "--actor_model_path=m",
        "--rollout_n=x",
    ]
    with pytest.raises(ConfigError) as caught:
        read_component("rft_trainer", [*arguments, "--actor_strategy=fsdp"], here=True)
    assert caught.value.notices == (
        "override --actor_strategy=fsdp: accepted without effect: a single process trains.",
    )
