"""Small runs of each batch selection, in one process and distributed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import strop
from strop.errors import ConfigError, StoreError
from strop.run.entry.explore import explore
from strop.run.entry.train import train
from strop.runs.folder import RunFolder
from tests.files import digest

from .groups_by_id import assert_each_once
from .groups_by_id import states as states_of
from .test_distributed import numbers, rows_of, run_distributed

pytest.importorskip("sqlalchemy")
WEIGHTS = "model.safetensors"
BY_ARRIVAL = [f"groups/{name}" for name in ("trained", "missing", "stale_dropped", "evicted", "queued")]


@pytest.fixture
def worked(tmp_path):
    """Demonstrations of the tiny tasks."""
    rows = [{"prompt": f"max {a} {b}", "answer": str(max(a, b))} for a in range(10) for b in range(5)]
    path = tmp_path / "worked.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def warming_up(values, worked, **changes):
    """Two steps of demonstrations, three of rollouts."""
    answers = [{"name": "worked", "path": worked, "response": "answer"}]
    sample = {"type": "warmup", "steps": "2 steps", "demonstrations_per_update": 6}
    return values(
        data__demonstrations=answers, trainer__batch_selection=sample, trainer__duration="5 steps", **changes
    )


def test_rollouts_begin_after_an_sft_warm_up(values, worked):
    result = strop.train(strop.load(warming_up(values, worked, trainer__optimizer__lr=1e-2)))
    rows = rows_of(result.folder)
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4, 5]
    assert [("sft_loss" in row, "reward/mean" in row) for row in rows[1:]] == [
        (True, False),
        (True, False),
        (False, True),
        (False, True),
        (False, True),
    ]
    assert [row["updates"] for row in rows[1:]] == [2] * 5, "updates go on as in any step"
    assert rows[2]["sft_loss"] < rows[1]["sft_loss"] - 0.1
    assert rows[2]["eval/held-out/reward"] >= rows[0]["eval/held-out/reward"]


def test_the_warm_up_has_the_batches_and_losses_of_sft(values, worked):
    """The same rows in the same updates under algorithm sft give the same losses, bit for bit."""
    run = warming_up(values, worked)
    found = rows_of(strop.train(strop.load(run)).folder)[1:3]
    given = {"path": worked, "response": "answer"}
    alone = values(
        name="sft", algorithm={"type": "sft"}, data__train=given, data__eval=[], record={"report": False},
        evaluate={}, trainer__duration="2 steps", trainer__tasks_per_step=12, trainer__tasks_per_update=6,
    )  # fmt: skip
    alone.pop("reward")
    expected = rows_of(strop.train(strop.load(alone)).folder)[-2:]
    for name in ("sft_loss", "grad_norm", "lr", "trained_tokens"):
        assert [row[name] for row in found] == [row[name] for row in expected], name


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [1, 2])
def test_a_run_stopped_in_or_after_the_warm_up_resumes_bit_for_bit(values, worked, stopped):
    whole = strop.train(strop.load(warming_up(values, worked, name="whole")))
    run = warming_up(values, worked, name="parts", checkpoint__every="1 steps")
    first = strop.train(strop.load(run, ["trainer.duration=3 steps"]))
    for later in range(stopped + 1, 4):
        shutil.rmtree(first.folder / "checkpoints" / f"step-{later:06d}")
    second = strop.train(strop.load(run))
    assert digest(second.model / WEIGHTS) == digest(whole.model / WEIGHTS)


def run_both(values, worked, style):
    """The same warm-up in one process and in two: rows and folder of each."""
    whole = strop.train(strop.load(warming_up(values, worked, name="one")))
    section = {"type": "checkpoint", "style": style}
    folder = run_distributed(warming_up(values, worked, name="two", synchronizer=section))
    rows = [{k: v for k, v in row.items() if k not in BY_ARRIVAL} for row in rows_of(folder)]
    assert min(row["sampled_version"] for row in sampled(folder)) == 2
    return rows_of(whole.folder), whole.folder, rows, folder


@pytest.mark.slow
def test_a_distributed_warm_up_gives_the_same_run(values, worked):
    """The explorer begins with the weights after the warm-up."""
    one, whole, two, folder = run_both(values, worked, {"type": "fixed"})
    assert two == one
    assert digest(folder / "model" / WEIGHTS) == digest(whole / "model" / WEIGHTS)


@pytest.mark.slow
def test_a_distributed_warm_up_without_staleness_samples_the_same_rollouts(values, worked):
    """Groups are trained on in the order of arrival, so that the minibatches of a step may differ."""
    one, _, two, _ = run_both(values, worked, {"type": "bounded", "max_staleness": "0 steps"})
    first_updates = 4  # rows up to the first step of rollouts, which is sampled before any such update
    for row, other in zip(one[:first_updates], two[:first_updates], strict=True):
        for name in row:
            if name.startswith(("reward/", "rollouts/", "sft_loss", "eval/")):
                assert row[name] == other[name], name


def sampled(folder):
    lines = RunFolder(folder).explorer.metrics.read_text().splitlines()
    return [row for row in map(json.loads, lines) if "sampled_version" in row]


def test_too_few_groups_end_a_run_early_with_a_message(values, capsys):
    """Groups without reward variance are filtered out of eight per step; the rest make fewer steps."""
    algorithm = {"type": "grpo", "rollouts_per_task": 4, "dynamic_sampling": {"max_tries": 1}}
    style = {"type": "checkpoint", "style": {"type": "bounded", "max_staleness": "1 steps"}}
    folder = run_distributed(values(algorithm=algorithm, synchronizer=style, trainer__duration="6 steps"))
    left_out = sum(row["groups/filtered"] for row in sampled(folder))
    ids, trained = states_of(folder), numbers(folder, "groups/trained")
    assert left_out > 0
    assert len(ids) == 48 - left_out and set(ids.values()) == {"done"}
    assert_each_once(folder, ids)
    assert [*trained[:-1], trained[-1]] == [8] * (len(ids) // 8) + ([len(ids) % 8] if len(ids) % 8 else [])
    assert max(numbers(folder, "staleness/max")) <= 2
    if len(trained) < 6:
        assert f"The run ends after step {len(trained)} of 6" in capsys.readouterr().out
    assert any("eval/held-out/reward" in row for row in rows_of(folder)[1:]), "its last weights are measured"


def test_stale_groups_are_dropped_and_counted(values, capsys):
    """An explorer that never waits fills the buffer with answers of the model as it was; step by step they
    grow older than one step, and only the first two steps find any that are young enough."""
    run = values(
        synchronizer={"type": "checkpoint", "style": {"type": "latest"}},
        trainer__batch_selection={"type": "staleness", "max_staleness": "1 steps"},
        buffer="file",
        data__eval=[],
        evaluate={},
    )
    explore(strop.load(run, ["mode=explore"]))
    result = strop.train(strop.load(run, ["mode=train"]))
    assert result.steps == 2
    assert numbers(result.folder, "staleness/max") == [0, 1]
    assert "The run ends after step 2 of 4" in capsys.readouterr().out
    done = (result.folder / "experiences" / "done.txt").read_text().split()
    assert len(done) == len(set(done)) == 32, "what was thrown away is done, too"


def test_an_explorer_without_any_group_is_an_error(values):
    algorithm = {"type": "grpo", "rollouts_per_task": 2, "dynamic_sampling": {"max_tries": 1}}
    constant = values(
        algorithm=algorithm,
        reward=f"{Path(__file__).parent / 'rewards.py'}:constant",
        synchronizer={"type": "checkpoint", "style": "bounded"},
        data__eval=[],
        evaluate={},
    )
    with pytest.raises(StoreError, match="without a single group to train on"):
        run_distributed(constant)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"trainer__batch_selection": {"type": "warmup", "steps": "2 steps"}},
            "data.demonstrations: missing",
        ),
        ({"data__demonstrations": [{"path": "x", "response": "y"}]}, r"\(answers\) is not used"),
        (
            {
                "trainer__batch_selection": {"type": "staleness", "max_staleness": "1 steps"},
                "synchronizer": {"type": "checkpoint", "style": {"type": "fixed", "max_lead": "2 steps"}},
            },
            "would drop whole steps",
        ),
        (
            {
                "trainer__batch_selection": {"type": "warmup", "steps": "1 steps"},
                "data__demonstrations": [{"path": "x", "response": "y"}],
                "algorithm": {"type": "ppo", "critic": {"warmup_steps": 1}},
            },
            "critic.warmup_steps trains the critic on the rollouts",
        ),
    ],
)
def test_incompatible_settings_are_refused(values, changes, says):
    with pytest.raises(ConfigError, match=says):
        strop.load(values(**changes))


def test_a_warm_up_that_leaves_no_rollouts_is_refused(values, worked):
    with pytest.raises(ConfigError, match=r"trainer.batch_selection.steps \(2\) leaves none of the 2 steps"):
        train(strop.load(warming_up(values, worked), ["trainer.duration=2 steps"]))


def test_mix_and_its_warm_up_use_two_datasets_by_name(values, worked, tmp_path):
    other = tmp_path / "other.jsonl"
    other.write_text('{"prompt": "max 1 2", "answer": "2"}\n' * 16)
    run = warming_up(values, worked, algorithm={"type": "mix", "rollouts_per_task": 4, "expert": "expert"})
    run["data"]["demonstrations"].append({"name": "expert", "path": str(other), "response": "answer"})
    run["trainer"]["batch_selection"]["demonstrations"] = "worked"
    rows = rows_of(strop.train(strop.load(run)).folder)[1:]
    assert ["policy_loss" in row for row in rows] == [False, False, True, True, True]
    assert all("sft_loss" in row for row in rows)
    assert np.mean([row["sft_loss"] for row in rows[2:]]) > 0
