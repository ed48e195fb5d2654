"""Tests of Trinity's sample strategies and of the auxiliary buffers that they read."""

from __future__ import annotations

import re

import pytest

from strop.config.schema.batch_selection import (
    DefaultSelectionConfig,
    StalenessSelectionConfig,
    WarmupSelectionConfig,
)
from strop.config.schema.data import DemonstrationsConfig
from strop.errors import ConfigError

from .trinity_file import read

pytestmark = pytest.mark.usefixtures("trinity_file")
BUFFERS = "+buffer.trainer_input.auxiliary_buffers"
ARGS = "algorithm.sample_strategy_args"
STEPS = "+buffer.trainer_input.sft_warmup_steps=5"
WARMUP = ("algorithm.sample_strategy=warmup", STEPS)
STALENESS = "algorithm.sample_strategy=staleness_control"


def answers(name: str, **fields: object) -> DemonstrationsConfig:
    whole = {"path": "a.jsonl", "answer": None, "response": "response", **fields}
    return DemonstrationsConfig.model_validate({"name": name, **whole})


@pytest.mark.parametrize(
    ("buffer", "expected"),
    [
        (f"{BUFFERS}.sft_dataset={{path: a.jsonl}}", answers("sft_dataset")),
        (
            f"{BUFFERS}.sft_dataset={{path: a.db, storage_type: sql, name: worked, max_read_timeout: 9}}",
            answers("sft_dataset", path="sqlite:///a.db", table="worked"),
        ),
        (
            f"{BUFFERS}.sft_dataset={{path: a, subset_name: s, format: {{messages_key: m}}}}",
            answers("sft_dataset", path="a", subset="s", split="train", response="m", trained_turns="last"),
        ),
        (
            "+buffer.trainer_input.sft_warmup_dataset={path: a.jsonl, format: {prompt_key: q}}",
            answers("sft_warmup_dataset", prompt="q"),
        ),
    ],
    ids=["file", "sql", "messages", "upstream's older key"],
)
def test_warmup_reads_one_auxiliary_buffer(buffer: str, expected: DemonstrationsConfig) -> None:
    run = read(*WARMUP, buffer).run
    assert run.data.demonstrations == (expected,)
    assert run.trainer.batch_selection == WarmupSelectionConfig(steps="5 steps", demonstrations=expected.name)  # type: ignore[arg-type]


def test_strategy_arguments_name_the_buffer() -> None:
    run = read(*WARMUP, f"{BUFFERS}.mine={{path: a.jsonl}}", f"+{ARGS}.sft_dataset_name=mine").run
    assert run.data.demonstrations == (answers("mine"),)


def test_staleness_counts_from_the_training_step() -> None:
    """An on-policy rollout has staleness 1 in Trinity and 0 in Strop."""
    assert read(
        STALENESS, f"+{ARGS}.max_staleness=1"
    ).run.trainer.batch_selection == StalenessSelectionConfig(
        max_staleness="0 steps"  # type: ignore[arg-type]
    )
    assert read(STALENESS).run.trainer.batch_selection == DefaultSelectionConfig(), (
        "upstream's default is no bound"
    )


@pytest.mark.parametrize(
    ("overrides", "note"),
    [
        (["algorithm.sample_strategy=warmup"], "there is no warm-up, because .*sft_warmup_steps is None"),
        ([STEPS], "inactive, because sample_strategy is default"),
        ([f"+{ARGS}.max_staleness=3"], "inactive, because sample_strategy is default"),
        ([f"{BUFFERS}.sft_dataset={{path: a.jsonl}}"], "sample_strategy default reads no demonstrations"),
        (
            [*WARMUP, f"{BUFFERS}.sft_dataset={{path: a.jsonl, use_priority_queue: true}}"],
            "accepted without effect: applies only to queues",
        ),
    ],
)
def test_inactive_keys_have_notices(overrides: list[str], note: str) -> None:
    notes = "\n".join(read(*overrides).notes)
    assert re.search(note, notes), notes


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ([STALENESS, f"+{ARGS}.max_staleness=0"], "would drop all rollouts: .* Write 1 or more"),
        ([*WARMUP], "reads the auxiliary buffer .*sft_dataset, but no buffer is configured"),
        (
            [*WARMUP, f"{BUFFERS}={{sft_dataset: {{path: a.jsonl}}, other: {{path: b.jsonl}}}}"],
            r"auxiliary_buffers\.other is not used: .*Remove it",
        ),
        (
            [*WARMUP, f"{BUFFERS}.sft_dataset={{path: a.jsonl, storage_type: queue}}"],
            "must exist when the run starts; write file or sql",
        ),
        (
            ["algorithm.algorithm_type=sft", "mode=train", "algorithm.sample_strategy=warmup"],
            "warmup is incompatible with algorithm_type sft; write default",
        ),
        (
            [
                STALENESS,
                f"+{ARGS}.max_staleness=1",
                "+synchronizer.sync_interval=4",
                "+synchronizer.sync_offset=0",
            ],
            "would drop whole steps",
        ),
    ],
)
def test_unsupported_options_are_refused(overrides: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read(*overrides)
