"""Errors of a run: one clear paragraph, and nothing is lost."""

from __future__ import annotations

import json
import os

import pytest

import strop
from strop.errors import RolloutError, RunFolderError, TrainingError


def train(values):
    return strop.train(strop.load(values))


@pytest.mark.parametrize(
    ("reward", "says"),
    [
        ("raises", "no such thing"),
        ("not_a_number", "nan"),
        ("a_string", "'0.5'"),
    ],
)
def test_a_failing_reward_stops_the_run_and_names_task_and_cause(values, reward, says):
    run = values()
    run["reward"] = run["reward"].replace("digit_share", reward)
    with pytest.raises(RolloutError) as caught:
        train(run)
    message = str(caught.value)
    assert says in message
    assert "train:" in message or "held-out:" in message, "names the task"
    assert "\n\n" not in message


def test_a_hanging_reward_is_ended_by_its_time_limit(values):
    run = values()
    run["reward"] = {
        "functions": [{"function": run["reward"].replace("digit_share", "hangs")}],
        "timeout_seconds": 0.3,
    }
    run["evaluate"] = {"at_start": False}
    run["trainer"] |= {"tasks_per_step": 1, "tasks_per_update": 1}
    with pytest.raises(RolloutError, match=r"0\.3"):
        train(run)


def test_failed_rollouts_are_counted_and_never_get_reward_zero(values):
    run = values(rollout={"max_error_fraction": 0.5})
    run["reward"] = run["reward"].replace("digit_share", "breaks_on_some")
    result = train(run)
    rows = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
    assert result.steps == 4
    assert any(0 < row["rollouts/error_fraction"] < 0.5 for row in rows[1:])


def test_a_run_folder_of_another_configuration_is_refused_and_kept(values):
    first = train(values())
    before = (first.folder / "metrics.jsonl").read_text()
    with pytest.raises(RunFolderError, match=r"trainer\.optimizer\.lr") as caught:
        train(values(trainer__optimizer__lr=5e-3))
    assert "resume: never" in str(caught.value)
    assert (first.folder / "metrics.jsonl").read_text() == before


def test_resume_never_archives_the_old_folder(values):
    first = train(values())
    second = train(values(resume="never"))
    assert second.folder == first.folder
    aside = [p for p in first.folder.parent.iterdir() if p != first.folder]
    assert len(aside) == 1 and (aside[0] / "metrics.jsonl").exists()


def test_a_finished_run_reports_that_nothing_is_left_to_do(values, capsys):
    train(values())
    train(values())
    assert "nothing is left to do" in capsys.readouterr().out


def test_a_longer_duration_continues_a_finished_run(values):
    assert train(values()).steps == 4
    assert train(values(trainer__duration="6 steps")).steps == 6


def test_a_damaged_checkpoint_is_skipped_and_reported(values, capsys):
    result = train(values())
    newest = max((result.folder / "checkpoints").iterdir())
    weights = max(newest.glob("*.safetensors"), key=lambda p: p.stat().st_size)
    os.truncate(weights, weights.stat().st_size // 2)
    again = train(values(trainer__duration="6 steps"))
    shown = capsys.readouterr().out
    assert "is skipped" in shown and newest.name in shown
    assert "Resuming after step 2" in shown
    assert again.steps == 6


def test_an_unwritable_output_folder_is_reported_before_the_start(values, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="cannot be written"):
        train(values(output=str(tmp_path / "file" / "runs")))


def test_a_non_finite_loss_stops_the_run_and_names_the_last_good_checkpoint(values):
    run = values(trainer__optimizer__lr=1e30, trainer__max_grad_norm=None)
    with pytest.raises(TrainingError, match=r"Step 1: The loss of a micro-batch is nan.*no checkpoint yet"):
        train(run)
