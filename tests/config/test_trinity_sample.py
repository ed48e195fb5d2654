"""Trinity's sample strategies, and the auxiliary buffers that they read."""

from __future__ import annotations

import re

import pytest

from strop.config.schema.data import Auxiliary
from strop.config.schema.sample import DefaultSample, StalenessSample, WarmUpSample
from strop.errors import ConfigError

from .trinity_file import read

pytestmark = pytest.mark.usefixtures("trinity_file")
BUFFERS = "+buffer.trainer_input.auxiliary_buffers"
ARGS = "algorithm.sample_strategy_args"
STEPS = "+buffer.trainer_input.sft_warmup_steps=5"
WARMUP = ("algorithm.sample_strategy=warmup", STEPS)
STALENESS = "algorithm.sample_strategy=staleness_control"


def answers(name: str, **fields: object) -> Auxiliary:
    whole = {"path": "a.jsonl", "answer": None, "response": "response", **fields}
    return Auxiliary.model_validate({"name": name, **whole})


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
def test_a_warm_up_reads_one_buffer_of_answers(buffer: str, expected: Auxiliary) -> None:
    run = read(*WARMUP, buffer).run
    assert run.data.auxiliary == (expected,)
    assert run.trainer.sample == WarmUpSample(steps="5 steps", answers=expected.name)  # type: ignore[arg-type]


def test_the_buffer_is_named_by_the_strategys_arguments() -> None:
    run = read(*WARMUP, f"{BUFFERS}.mine={{path: a.jsonl}}", f"+{ARGS}.sft_dataset_name=mine").run
    assert run.data.auxiliary == (answers("mine"),)


def test_staleness_counts_from_the_step_that_learns() -> None:
    """On-policy is 1 there and 0 here."""
    assert read(STALENESS, f"+{ARGS}.max_staleness=1").run.trainer.sample == StalenessSample(
        max_staleness="0 steps"  # type: ignore[arg-type]
    )
    assert read(STALENESS).run.trainer.sample == DefaultSample(), "upstream's default is no bound"


@pytest.mark.parametrize(
    ("overrides", "note"),
    [
        (["algorithm.sample_strategy=warmup"], "it warms nothing up, because .*sft_warmup_steps is None"),
        ([STEPS], "inactive, because sample_strategy is default"),
        ([f"+{ARGS}.max_staleness=3"], "inactive, because sample_strategy is default"),
        ([f"{BUFFERS}.sft_dataset={{path: a.jsonl}}"], "sample_strategy default, which read none"),
        (
            [*WARMUP, f"{BUFFERS}.sft_dataset={{path: a.jsonl, use_priority_queue: true}}"],
            "accepted without effect: takes effect for a queue alone",
        ),
    ],
)
def test_what_means_nothing_is_said(overrides: list[str], note: str) -> None:
    notes = "\n".join(read(*overrides).notes)
    assert re.search(note, notes), notes


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ([STALENESS, f"+{ARGS}.max_staleness=0"], "throws everything away: .* Write 1 or more"),
        ([*WARMUP], "learns from the auxiliary buffer .*sft_dataset, and there is none"),
        (
            [*WARMUP, f"{BUFFERS}={{sft_dataset: {{path: a.jsonl}}, other: {{path: b.jsonl}}}}"],
            r"auxiliary_buffers\.other is read by nothing: .*Take it out",
        ),
        (
            [*WARMUP, f"{BUFFERS}.sft_dataset={{path: a.jsonl, storage_type: queue}}"],
            "must all be there at the start; write file, or sql",
        ),
        (
            ["algorithm.algorithm_type=sft", "mode=train", "algorithm.sample_strategy=warmup"],
            "warmup does not go with algorithm_type sft here; write default",
        ),
        (
            [
                STALENESS,
                f"+{ARGS}.max_staleness=1",
                "+synchronizer.sync_interval=4",
                "+synchronizer.sync_offset=0",
            ],
            "would throw whole steps away",
        ),
    ],
)
def test_what_cannot_be_had_is_refused(overrides: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read(*overrides)
