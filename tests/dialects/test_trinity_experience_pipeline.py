"""Tests of Trinity's experience pipeline, and of limits that other keys decide."""

from __future__ import annotations

from typing import Any

import pytest

from strop.config.schema.pipeline import (
    CorrectnessFilterConfig,
    DataJuicerConfig,
    RewardFilterConfig,
    RewardShapingConfig,
    RewardStdFilterConfig,
    RewardTermConfig,
)
from strop.dialects.ledger.writer import write_dialect
from strop.dialects.trinity.reader import LEDGER
from strop.errors import ConfigError

from .trinity_file import read, value

pytestmark = pytest.mark.usefixtures("trinity_file")
OPERATORS = "data_processor.experience_pipeline.operators"
SHAPING = (
    "{name: reward_shaping_mapper, args: {reward_shaping_configs: [{stats_key: q, op_type: MUL, weight: 2}]}}"
)
JUICER = "{name: data_juicer, args: {config_path: dj.yaml}}"
URL = "service.data_juicer.server_url=http://localhost:5005"


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (
            [f"+{OPERATORS}=[{{name: reward_filter, args: {{threshold: 0.1}}}}]"],
            [RewardFilterConfig(min_reward=0.1)],
        ),
        ([f"+{OPERATORS}=[{{name: reward_std_filter}}]"], [RewardStdFilterConfig()]),
        (
            [f"+{OPERATORS}=[{{name: dapo_dynamic_sampling}}]"],
            [CorrectnessFilterConfig(metric="accuracy")],
        ),
        (
            [
                f"+{OPERATORS}=[{{name: dapo_dynamic_sampling, args: {{metric_key: score, correct_threshold: 0.5}}}}]"
            ],
            [CorrectnessFilterConfig(metric="score", threshold=0.5)],
        ),
        ([f"+{OPERATORS}=[{{name: invalid_reward_filter}}, {{name: pass_rate_calculator}}]"], []),
        (
            [f"+{OPERATORS}=[{SHAPING}]"],
            [RewardShapingConfig(terms=(RewardTermConfig(stat="q", operation="multiply", weight=2),))],
        ),
        (
            [f"+{OPERATORS}=[{JUICER}]", f"+{URL}"],
            [DataJuicerConfig(url="http://localhost:5005", config="dj.yaml")],
        ),
    ],
)
def test_operators(overrides: list[str], expected: list[Any]) -> None:
    loaded = read(*overrides)
    assert value(loaded, "buffer.pipeline") == tuple(expected)
    assert write_dialect(LEDGER, loaded.run).unsupported == ()


def test_truncated_responses_without_a_loss() -> None:
    loaded = read(f"+{OPERATORS}=[{{name: mask_response_truncated}}, {{name: dapo_dynamic_sampling}}]")
    assert value(loaded, "algorithm.mask_truncated") is True
    assert value(loaded, "buffer.pipeline") == (CorrectnessFilterConfig(metric="accuracy"),)
    written = write_dialect(LEDGER, loaded.run)
    assert written.unsupported == ()
    assert "mask_response_truncated" in str(written)


def test_dynamic_sampling_finds_the_accuracy_of_a_reward_with_a_penalty_of_long_responses() -> None:
    args = "{enable_overlong_penalty: true, max_response_length: 64, cache_length: 16, penalty_factor: 1.0}"
    loaded = read(
        "buffer.explorer_input.default_reward_fn_type=math_dapo_reward",
        f"+buffer.explorer_input.taskset.reward_fn_args={args}",
    )
    names = [part.name for part in value(loaded, "reward.functions")]
    assert CorrectnessFilterConfig(metric="accuracy").metric in names
    assert value(loaded, "algorithm.overlong_penalty.buffer_tokens") == 16


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        (f"+{OPERATORS}=[{{name: mine}}]", "it has reward_filter, .*type: custom"),
        (f"+{OPERATORS}=[{JUICER}]", r"write service\.data_juicer\.server_url"),
        (f"+{OPERATORS}=[{{name: data_juicer, args: {{paths: x}}}}]", "paths; data_juicer has config_path"),
        (f"+{OPERATORS}=[{{name: reward_filter, args: {{min: 1}}}}]", "min; reward_filter has threshold"),
        (f"+{OPERATORS}=[{SHAPING.replace('MUL', 'POW')}]", "ADD, SUB, MUL, DIV"),
    ],
)
def test_refused(override: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        read(override)


def test_limits_of_the_rollout_model_are_those_of_the_model() -> None:
    """Config._check_explorer (Trinity 0.3) replaces both."""
    loaded = read("model.max_response_tokens=64", "+explorer.rollout_model.max_response_tokens=2048")
    assert value(loaded, "data.max_response_tokens") == 64


def test_a_workflow_that_trains_on_verdicts_has_its_own_number_of_experiences() -> None:
    kind = "buffer.explorer_input.default_workflow_type=math_trainable_ruler_workflow"
    loaded = read(f"+{kind}", "buffer.train_batch_size=33")
    assert value(loaded, "trainer.tasks_per_step") == 4
