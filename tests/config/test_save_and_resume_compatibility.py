"""Saved run files, and the comparison of two starts of one run."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strop.config.load.loader import load_run, load_values
from strop.config.resume_compatibility import NON_LEARNING_FIELDS, resume_differences
from strop.config.save import save_resolved
from strop.config.schema.walk import all_keys

BASE = {"model": {"path": "m"}, "data": {"train": {"path": "t.jsonl"}}, "reward": "exact"}


def test_saving_and_loading_gives_the_same_run(run_file: Path, tmp_path: Path) -> None:
    run = load_run(run_file, ["trainer.schedule.warmup=2.5 %", "trainer.duration=1.5 epochs"]).run
    save_resolved(run, tmp_path / "saved.yaml")
    assert load_run(tmp_path / "saved.yaml").run == run


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.sampled_from("ab $ {}\\:#'\"\n-é"), max_size=12))
def test_any_text_survives(tmp_path: Path, text: str) -> None:
    run = load_values(BASE).run
    run = run.model_copy(update={"output": f"x{text}"})
    save_resolved(run, tmp_path / "saved.yaml")
    assert load_run(tmp_path / "saved.yaml").run.output == f"x{text}"


@pytest.mark.parametrize(
    "override",
    [
        "name=other",
        "output=elsewhere",
        "folder=x",
        "resume=never",
        "checkpoint.every=2 steps",
        "checkpoint.keep=1",
        "record.report=false",
        "rollout.max_error_fraction=0.5",
        "reward.workers=3",
        "reward.timeout_seconds=1",
        "data.tokenize_workers=4",
        "evaluate.every=1 step",
        "trainer.duration=9 epochs",
    ],
)
def test_fields_that_may_change(override: str) -> None:
    assert resume_differences(load_values(BASE).run, load_values(BASE, [override]).run) == []


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
    assert expected in resume_differences(load_values(BASE).run, load_values(BASE, [override]).run)


PARTS = {
    **BASE,
    "reward": {
        "models": [{"path": "rm"}],
        "judges": [{"url": "http://one/v1", "model": "wise"}, {"url": "http://two/v1", "model": "wise"}],
    },
}


@pytest.mark.parametrize(
    "override",
    [
        "reward.models.0.device=cpu",
        "reward.models.0.microbatch=9 sequences",
        "reward.judge_calls.max_calls=9",
        "reward.judges.1.url=http://three/v1",
        "reward.judges.0.api_key_env=KEY",
    ],
)
def test_locations_and_budgets_of_models_and_judges_may_change(override: str) -> None:
    assert resume_differences(load_values(PARTS).run, load_values(PARTS, [override]).run) == []


@pytest.mark.parametrize("override", ["reward.judges.1.model=fool", "reward.models.0.weight=2"])
def test_scores_of_judges_may_not_change(override: str) -> None:
    assert len(resume_differences(load_values(PARTS).run, load_values(PARTS, [override]).run)) == 1


def test_the_duration_may_not_change_if_the_critics_rate_depends_on_it() -> None:
    critic = ["algorithm=ppo", "algorithm.critic.schedule=cosine"]
    short, long = (load_values(BASE, [*critic, f"trainer.duration={n} steps"]).run for n in (5, 9))
    assert resume_differences(short, long) == ["trainer.duration was 5 steps, is 9 steps"]


def test_an_empty_warmup_does_not_depend_on_the_duration() -> None:
    schedule = "trainer.schedule.warmup=0 %"
    short, long = (load_values(BASE, [schedule, f"trainer.duration={n} steps"]).run for n in (5, 9))
    assert resume_differences(short, long) == []


@pytest.mark.parametrize(
    "schedule", ["trainer.schedule=cosine", "trainer.schedule=linear", "trainer.schedule.warmup=1 %"]
)
def test_the_duration_may_not_change_if_the_learning_rate_depends_on_it(schedule: str) -> None:
    short, long = (load_values(BASE, [schedule, f"trainer.duration={n} steps"]).run for n in (5, 9))
    assert resume_differences(short, long) == ["trainer.duration was 5 steps, is 9 steps"]


def test_a_redacted_secret_is_no_difference(tmp_path: Path) -> None:
    run = load_values(BASE, ["+reward.functions.0.args.api_key=x"]).run
    save_resolved(run, tmp_path / "saved.yaml")
    assert resume_differences(load_run(tmp_path / "saved.yaml").run, run) == []


def test_non_learning_fields_exist() -> None:
    known = set(all_keys())
    assert all(field.replace(".*", "") in known for field in NON_LEARNING_FIELDS)
