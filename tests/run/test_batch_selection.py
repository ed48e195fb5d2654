"""Small runs of each batch selection, in one process and distributed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import strop
from strop.errors import StoreError
from strop.run.entry.explore import explore
from strop.runs.folder import RunFolder

from .conftest import DIGITS, write_rows
from .groups_by_id import assert_each_once
from .groups_by_id import states as states_of
from .results import train, trained_rows, weights
from .test_distributed import numbers, rows_of, run_distributed

pytest.importorskip("sqlalchemy")
BY_ARRIVAL = [f"groups/{name}" for name in ("trained", "missing", "stale_dropped", "evicted", "queued")]


@pytest.fixture
def worked(tmp_path):
    """Demonstrations of the tiny tasks."""
    rows = [{"prompt": f"max {a} {b}", "answer": str(max(a, b))} for a, b in DIGITS if b < 5]
    return str(write_rows(tmp_path / "worked.jsonl", rows))


def warming_up(values, worked, **changes):
    """Two steps of demonstrations, two of rollouts."""
    answers = [{"name": "worked", "path": worked, "response": "answer"}]
    sample = {"type": "warmup", "steps": "2 steps", "demonstrations_per_update": 6}
    return values(data__demonstrations=answers, trainer__batch_selection=sample, **changes)


def test_rollouts_begin_after_a_warm_up_with_the_batches_and_losses_of_sft(values, worked):
    """The same rows in the same updates under algorithm sft give the same losses, bit for bit."""
    rows = trained_rows(warming_up(values, worked, trainer__optimizer__lr=1e-2))
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    assert [("sft_loss" in row, "reward/mean" in row) for row in rows[1:]] == [
        (True, False),
        (True, False),
        (False, True),
        (False, True),
    ]
    assert [row["updates"] for row in rows[1:]] == [2] * 4, "updates go on as in any step"
    assert rows[2]["sft_loss"] < rows[1]["sft_loss"] - 0.1
    assert rows[2]["eval/held-out/reward"] >= rows[0]["eval/held-out/reward"]
    alone = values(
        name="sft", algorithm={"type": "sft"}, data__train={"path": worked, "response": "answer"}, data__eval=[],
        record={"report": False}, evaluate={}, trainer__duration="2 steps", trainer__tasks_per_step=12,
        trainer__tasks_per_update=6, trainer__optimizer__lr=1e-2,
    )  # fmt: skip
    alone.pop("reward")
    expected = trained_rows(alone)[-2:]
    for name in ("sft_loss", "grad_norm", "lr", "trained_tokens"):
        assert [row[name] for row in rows[1:3]] == [row[name] for row in expected], name


@pytest.mark.slow
def test_a_distributed_warm_up_gives_the_same_run(values, worked):
    """The explorer begins with the weights after the warm-up."""
    whole = train(warming_up(values, worked, name="one")).folder
    one = rows_of(whole)
    two, folder = run_two(values, worked, {"type": "fixed"})
    assert two == one
    assert weights(folder) == weights(whole)
    two, _ = run_two(values, worked, {"type": "bounded", "max_staleness": "0 steps"})
    # Groups are trained on in the order of arrival, so that the minibatches of a step may differ: rows up to the
    # first step of rollouts are equal, which is sampled before any such update.
    for row, other in zip(one[:4], two[:4], strict=True):
        for name in row:
            if name.startswith(("reward/", "rollouts/", "sft_loss", "eval/")):
                assert row[name] == other[name], name


def run_two(values, worked, style):
    """The warm-up in two processes: rows and folder."""
    section = {"type": "checkpoint", "style": style}
    folder = run_distributed(warming_up(values, worked, name=style["type"], synchronizer=section))
    assert min(row["sampled_version"] for row in sampled(folder)) == 2
    return [{k: v for k, v in row.items() if k not in BY_ARRIVAL} for row in rows_of(folder)], folder


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


def test_mix_and_its_warm_up_use_two_datasets_by_name(values, worked, tmp_path):
    other = str(write_rows(tmp_path / "other.jsonl", [{"prompt": "max 1 2", "answer": "2"}] * 16))
    run = warming_up(values, worked, algorithm={"type": "mix", "rollouts_per_task": 4, "expert": "expert"})
    run["data"]["demonstrations"].append({"name": "expert", "path": other, "response": "answer"})
    run["trainer"]["batch_selection"]["demonstrations"] = "worked"
    rows = trained_rows(run)[1:]
    assert ["policy_loss" in row for row in rows] == [False, False, True, True]
    assert all("sft_loss" in row for row in rows)
    assert np.mean([row["sft_loss"] for row in rows[2:]]) > 0
