"""Tests of Trinity keys outside its page: those of version 0.6, those that Trinity sets itself, and the values that
OmegaConf converts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from strop.config.schema.task_order import ColumnOrderConfig, DifficultyOrderConfig
from strop.dialects.ledger.writer import write_dialect
from strop.dialects.trinity.reader import LEDGER
from strop.errors import ConfigError

from .trinity_file import ACTOR, BASE, BUFFER, TASKSET, read, value

VERL = "trainer.trainer_config"
pytestmark = pytest.mark.usefixtures("trinity_file")


@pytest.mark.parametrize(
    ("overrides", "field", "expected"),
    [
        (["algorithm.repeat_times='4'"], "algorithm.rollouts_per_task", 4),
        (["+explorer.eval_on_startup='False'"], "evaluate.at_start", False),
        (["+algorithm.optimizer.lr='2e-5'"], "trainer.optimizer.lr", 2e-5),
        (["algorithm.repeat_times=${oc.env:STROP_TEST_COUNT}"], "algorithm.rollouts_per_task", 6),
        ([f"+{TASKSET}.format.prompt_type=MESSAGES"], "data.train.prompt", "message"),
    ],
)
def test_texts_are_converted(
    overrides: list[str], field: str, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STROP_TEST_COUNT", "6")
    assert value(read(*overrides), field) == expected


@pytest.mark.parametrize(
    ("setting", "instead"),
    [
        ("+explorer.over_rollout.ratio=0.2", "starts further tasks while slow ones run"),
        ("+explorer.dynamic_timeout.enable=true", r"write the limit of a rollout as explorer\.max_timeout"),
    ],
)
def test_a_value_that_strop_lacks_is_refused_with_what_to_write_instead(setting: str, instead: str) -> None:
    with pytest.raises(ConfigError, match=f"is not supported: .*{instead}"):
        read(setting)


def test_gigpo_both_ways() -> None:
    run = read(
        "algorithm.algorithm_type=gigpo", "+algorithm.advantage_fn_args={omega: 0.5, gamma: 0.9, fnorm: std}"
    ).run
    assert run.algorithm.type == "gigpo"
    assert (run.algorithm.turn_weight, run.algorithm.gamma, run.algorithm.divide_by_std) == (0.5, 0.9, True)
    assert run.algorithm.states_over == "step"
    written = write_dialect(LEDGER, run).values
    assert written["algorithm.algorithm_type"] == "gigpo"
    assert [written[f"algorithm.advantage_fn_args.{name}"] for name in ("omega", "gamma", "fnorm")] == [
        0.5,
        0.9,
        "std",
    ]
    with pytest.raises(ConfigError, match=r"env_state_hash_key.*write these names"):
        read("algorithm.algorithm_type=gigpo", "+algorithm.advantage_fn_args.env_state_hash_key=other")


@pytest.mark.parametrize("section", ["task_selector", "data_selector"])
def test_easy_to_hard_sorts_by_the_column_with_the_largest_value_first(section: str) -> None:
    kind = f"+{TASKSET}.{section}.selector_type=offline_easy2hard"
    run = read(kind, f"+{TASKSET}.{section}.feature_keys=[pass_rate]").run
    assert run.data.order == ColumnOrderConfig(column="pass_rate", descending=True)
    assert not run.data.shuffle
    written = write_dialect(LEDGER, run).values
    assert written[f"{TASKSET}.task_selector.selector_type"] == "offline_easy2hard"
    assert written[f"{TASKSET}.task_selector.feature_keys"] == ["pass_rate"]
    for columns in ("[]", "[pass_rate,length]"):
        with pytest.raises(ConfigError, match="sorts by one; write one, or sort the file"):
            read(kind, f"+{TASKSET}.{section}.feature_keys={columns}")


OPERATOR = "+data_processor.experience_pipeline.operators=[{name: pass_rate_calculator}]"


@pytest.mark.parametrize("section", ["task_selector", "data_selector"])
def test_difficulty_based_is_the_order_by_difficulty(section: str) -> None:
    at = f"{TASKSET}.{section}"
    kind, columns = f"+{at}.selector_type=difficulty_based", f"+{at}.feature_keys=[weak,strong]"
    loaded = read(kind, columns, OPERATOR)
    assert loaded.run.data.order == DifficultyOrderConfig(
        columns=("weak", "strong"),
        target=1.0,
        temperature=1.0,
        thompson_sampling=False,
        forgetting=0.2,
        interpolation_weight=0.2,
    )
    assert not loaded.run.data.shuffle
    assert any("updates the estimates after each step" in note for note in loaded.notes)
    kwargs = "{m: 8, lamb: 0.1, rho: 0.3, adaptive_rho: true, target_reward: 0.5, tau: 0, do_sample: true}"
    run = read(kind, columns, OPERATOR, f"+{at}.kwargs={kwargs}").run
    assert run.data.order == DifficultyOrderConfig(
        columns=("weak", "strong"), interpolation_weight=0.3, halve_weight=True, counts_per_group=8
    )
    written = write_dialect(LEDGER, run).values
    assert written[f"{TASKSET}.task_selector.selector_type"] == "difficulty_based"
    assert written[f"{TASKSET}.task_selector.feature_keys"] == ["weak", "strong"]
    assert written[f"{TASKSET}.task_selector.kwargs"] == {
        "m": 8,
        "lamb": 0.1,
        "rho": 0.3,
        "adaptive_rho": True,
        "target_reward": 0.5,
        "tau": 0,
        "do_sample": True,
    }
    assert written["data_processor.experience_pipeline.operators.0.name"] == "pass_rate_calculator"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([OPERATOR], "has 0 columns, and difficulty_based interpolates"),
        ([f"+{TASKSET}.data_selector.feature_keys=[weak,strong]"], "add `- name: pass_rate_calculator`"),
        (
            [f"+{TASKSET}.data_selector.feature_keys=[a,b]", f"+{TASKSET}.data_selector.kwargs={{temp: 1}}"],
            "kwargs has temp; difficulty_based has m, lamb",
        ),
        (
            [
                f"+{TASKSET}.data_selector.feature_keys=[a,b]",
                "+data_processor.experience_pipeline.operators=[{name: reward_filter},{name: pass_rate_calculator}]",
            ],
            "pass_rate_calculator after reward_filter",
        ),
    ],
)
def test_difficulty_based_without_what_it_needs_is_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(f"+{TASKSET}.data_selector.selector_type=difficulty_based", *overrides)


def test_columns_of_another_selector_have_no_effect() -> None:
    loaded = read(f"+{TASKSET}.data_selector.feature_keys=[pass_rate]")
    assert loaded.run.data.order is None
    assert any("feature_keys" in note for note in loaded.notes)


@pytest.mark.parametrize("count", ["'four'", "'4.5'"])
def test_other_texts_are_no_numbers(count: str) -> None:
    with pytest.raises(ConfigError, match="must be an integer"):
        read(f"algorithm.repeat_times={count}")


@pytest.mark.parametrize(
    ("overrides", "field", "expected"),
    [
        (["+algorithm.bypass_old_logprobs=false"], "algorithm.old_policy", "trainer"),
        (["+algorithm.rollout_correction={bypass_mode: true}"], "algorithm.old_policy", "sampler"),
        (["+algorithm.optimizer.clip_grad=0.5", "+trainer.grad_clip=2.0"], "trainer.max_grad_norm", 0.5),
        (["+trainer.max_checkpoints_to_keep=0"], "checkpoint.keep", None),
        (["algorithm.algorithm_type=rloo"], "algorithm.type", "rloo"),
        (["algorithm.algorithm_type=reinforceplusplus"], "algorithm.type", "reinforce_plus_plus"),
        (["+algorithm.advantage_fn=opmd_verl"], "algorithm.type", "opmd"),
        (["+algorithm.advantage_fn=asymre_verl"], "algorithm.baseline_shift", -0.1),
        (["+model.lora_configs=[{path: adapter, exclude_modules: head}]"], "model.lora.adapter", "adapter"),
        (["+model.lora_configs=[{path: adapter, exclude_modules: head}]"], "model.lora.exclude", "head"),
        ([f"+{ACTOR}.grad_clip=null", f"+{ACTOR}.strategy=null"], "trainer.max_grad_norm", 1.0),
        ([f"+{ACTOR}.optim.lr_scheduler_type=cosine"], "trainer.schedule.type", "cosine"),
    ],
)
def test_later_keys(overrides: list[str], field: str, expected: Any) -> None:
    assert value(read(*overrides), field) == expected


def test_weights_of_version_05() -> None:
    at = f"+{VERL}.algorithm.rollout_correction"
    loaded = read(f"{at}.bypass_mode=false", f"{at}.rollout_is=token", f"{at}.rollout_is_threshold=3.0")
    assert value(loaded, "algorithm.importance_correction.cap") == 3.0
    assert value(loaded, "algorithm.old_policy") == "trainer"


def test_a_correction_that_trinity_does_not_apply_is_refused() -> None:
    with pytest.raises(ConfigError, match="corrects nothing"):
        read("+algorithm.rollout_correction={rollout_is: token}")


@pytest.mark.parametrize(
    "override",
    [
        f"+{ACTOR}.clip_ratio=0.3",
        f"+{ACTOR}.ppo_mini_batch_size=8",
        f"+{ACTOR}.optim.total_training_steps=7",
        f"+{VERL}.trainer.total_training_steps=7",
        f"+{VERL}.algorithm.kl_penalty=low_var_kl",
        f"+{VERL}.custom_reward_function.path=x",
        f"+{VERL}.trainer.logger=[wandb]",
        f"+{TASKSET}.repeat_times=3",
        f"+{TASKSET}.rollout_args.n=3",
        "+checkpoint_job_dir=x",
        f"+{BUFFER}.rollout_args.n=2",
        "+explorer.rollout_model.api_key=EMPTY",
    ],
)
def test_unread_keys_change_nothing_and_are_reported(override: str) -> None:
    loaded = read(override)
    assert loaded.run == read().run
    key = override.removeprefix("+").partition("=")[0]
    assert any(f"({key})" in note or key in note for note in loaded.notes)


def test_a_list_of_one_taskset_is_the_taskset(tmp_path: Path) -> None:
    listed = BASE.replace("    taskset: {", "    tasksets: [{").replace("answer}}\n", "answer}}]\n")
    plain = read().run
    Path("t.yaml").write_text(listed, encoding="utf-8")
    assert "tasksets: [" in listed and read().run == plain
    Path("t.yaml").write_text(listed.replace("}}]", "}}, {path: b.jsonl}]"), encoding="utf-8")
    with pytest.raises(ConfigError, match="write one taskset and convert"):
        read()
