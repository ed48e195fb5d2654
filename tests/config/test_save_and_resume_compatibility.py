"""Saved run files, and the comparison of two starts of one run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strop.config.load.loader import load_run, load_values
from strop.config.save import save_resolved
from strop.config.schema.run import all_keys
from strop.config.semantic_diff import NON_LEARNING_FIELDS, resume_differences

BASE: dict[str, Any] = {"model": {"path": "m"}, "data": {"train": {"path": "t.jsonl"}}, "reward": "exact"}
JUDGES = [{"url": "http://one/v1", "model": "wise"}, {"url": "http://two/v1", "model": "wise"}]
SCORED = {**BASE, "reward": {"models": [{"path": "rm"}], "judges": JUDGES}}


def test_saving_and_loading_gives_the_same_run(run_file: Path, tmp_path: Path) -> None:
    run = load_run(run_file, ["trainer.schedule.warmup=2.5 %", "trainer.duration=1.5 epochs"]).run
    save_resolved(run, tmp_path / "saved.yaml")
    assert load_run(tmp_path / "saved.yaml").run == run


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.sampled_from("ab $ {}\\:#'\"\n-é"), max_size=12))
def test_any_text_survives(tmp_path: Path, text: str) -> None:
    run = load_values(BASE).run.model_copy(update={"output": f"x{text}"})
    save_resolved(run, tmp_path / "saved.yaml")
    assert load_run(tmp_path / "saved.yaml").run.output == f"x{text}"


def differences(values: dict[str, Any], override: str) -> list[str]:
    return resume_differences(load_values(values).run, load_values(values, [override]).run)


@pytest.mark.parametrize(
    "override",
    [
        *("name=other", "output=elsewhere", "folder=x", "resume=never"),
        *("checkpoint.every=2 steps", "checkpoint.keep=1", "record.report=false", "evaluate.every=1 step"),
        *("rollout.max_error_fraction=0.5", "reward.workers=3", "reward.timeout_seconds=1"),
        *("data.tokenize_workers=4", "trainer.duration=9 epochs"),
        *("reward.models.0.device=cpu", "reward.models.0.microbatch=9 sequences"),
        *("reward.judge_calls.max_calls=9", "reward.judges.1.url=http://three/v1"),
        "reward.judges.0.api_key_env=KEY",
    ],
)
def test_fields_that_may_change(override: str) -> None:
    assert differences(SCORED, override) == []


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("seed=2", "seed was 1, is 2"),
        ("model.path=n", "model.path was m, is n"),
        ("trainer.optimizer.lr=1", "trainer.optimizer.lr was 1e-06, is 1.0"),
        ("algorithm.kl_loss={coef: 0.5}", "algorithm.kl_loss.coef was unset, is 0.5"),
        ("data.max_response_tokens=5", "data.max_response_tokens was 1024, is 5"),
        ("reward=math", "reward.functions.0.function was exact, is math"),
    ],
)
def test_fields_that_may_not_change(override: str, expected: str) -> None:
    assert expected in differences(BASE, override)


@pytest.mark.parametrize("override", ["reward.judges.1.model=fool", "reward.models.0.weight=2"])
def test_scores_of_judges_may_not_change(override: str) -> None:
    assert len(differences(SCORED, override)) == 1


@pytest.mark.parametrize(
    ("schedule", "depends"),
    [
        (["trainer.schedule=cosine"], True),
        (["trainer.schedule=linear"], True),
        (["trainer.schedule.warmup=1 %"], True),
        (["trainer.schedule.warmup=0 %"], False),
        (["algorithm=ppo", "algorithm.critic.schedule=cosine"], True),
    ],
)
def test_the_duration_may_not_change_if_a_learning_rate_depends_on_it(
    schedule: list[str], depends: bool
) -> None:
    short, long = (load_values(BASE, [*schedule, f"trainer.duration={n} steps"]).run for n in (5, 9))
    expected = ["trainer.duration was 5 steps, is 9 steps"] if depends else []
    assert resume_differences(short, long) == expected


def test_a_redacted_secret_is_no_difference(tmp_path: Path) -> None:
    run = load_values(BASE, ["+reward.functions.0.args.api_key=x"]).run
    save_resolved(run, tmp_path / "saved.yaml")
    assert resume_differences(load_run(tmp_path / "saved.yaml").run, run) == []


def test_non_learning_fields_exist() -> None:
    known = set(all_keys())
    assert all(field.replace(".*", "") in known for field in NON_LEARNING_FIELDS)
