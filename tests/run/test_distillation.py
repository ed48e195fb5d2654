"""Runs that learn from a teacher: by the loss and as a reward, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

import strop
from strop.cli.actions import check_run
from strop.errors import ConfigError, DataError, ModelError
from strop.models.tiny import make_model

from .conftest import write_rows
from .results import train, trained_rows

SHORT = {"trainer__duration": "1 steps", "data__eval": [], "evaluate": {}}


def only(teacher: dict[str, Any], **section: Any) -> dict[str, Any]:
    return {"type": "distillation", "distillation": {"teachers": [teacher], **section}}


@pytest.mark.parametrize("divergence", ["reverse_kl", "forward_kl", "jsd"])
def test_the_policy_approaches_its_teacher_by_the_loss(values, teacher, divergence):
    """No reward is written: the teacher is the only signal."""
    run = values(
        algorithm=only(teacher, loss={"divergence": divergence}),
        trainer__optimizer__lr=1e-2,
        trainer__duration="6 steps",
        data__eval=[],
        evaluate={},
    )
    del run["reward"]
    rows = trained_rows(run)[1:]
    first, last = (row["distillation_loss/divergence"] for row in (rows[0], rows[-1]))
    assert 0.05 < last < 0.95 * first
    assert all(row["reward/mean"] == 0 and row["policy_loss"] == 0 for row in rows)


def test_the_teacher_is_a_reward_beside_the_tasks_own(values, teacher):
    """Advantages are the group's plus log q - log p of each token, whose mean is minus the divergence."""
    section = {"teachers": [teacher], "reward": {"coef": 0.5}}
    algorithm = {"type": "grpo", "rollouts_per_task": 4, "distillation": section}
    row = trained_rows(values(algorithm=algorithm, **SHORT))[-1]
    plain = trained_rows(values(name="plain", **SHORT))[-1]
    expected = plain["advantages/mean"] - 0.5 * row["distillation_reward/divergence"]
    assert row["advantages/mean"] == pytest.approx(expected, abs=1e-6)
    assert row["distillation_reward/divergence"] != 0
    assert "distillation_loss" not in row


def test_an_evaluation_loads_no_teacher(values, teacher, tmp_path):
    absent = {"path": str(tmp_path / "absent"), "dtype": "float32"}
    run = strop.load(values(algorithm=only(absent, loss={})))
    assert strop.evaluate(run)


def test_each_source_has_its_teacher(values, teacher, tiny, tmp_path):
    tasks = [json.loads(line) for line in (tiny / "tasks.jsonl").read_text().splitlines()]
    rows = [task | {"source": "even" if int(task["answer"]) % 2 == 0 else "odd"} for task in tasks]
    path = str(write_rows(tmp_path / "tasks.jsonl", rows))
    algorithm = only(teacher | {"sources": ["even"]}, loss={})
    run = values(algorithm=algorithm, data__train={"path": path, "source": "source"}, **SHORT)
    with pytest.raises(DataError, match="no teacher has the data source 'odd'"):
        train(run)
    own = {"path": run["model"]["path"], "dtype": "float32", "sources": ["odd"]}
    algorithm["distillation"]["teachers"].append(own)
    row = trained_rows(run)[-1]
    whole = trained_rows(values(name="one", algorithm=only(teacher, loss={}), **SHORT))[-1]
    # The policy's own copy has no divergence from it.
    assert 0 < row["distillation_loss/divergence"] < 0.9 * whole["distillation_loss/divergence"]


def test_only_a_teacher_of_the_same_vocabulary_passes_the_check(values, teacher, tmp_path, capsys):
    folder = make_model(tmp_path / "other", ["min 3 4"] * 9, vocab_size=280, hidden_size=32)
    run = values(algorithm=only({"path": str(folder)}, loss={}))
    with pytest.raises(ModelError, match=r"teachers\.0: .* tokens are not in the vocabulary of .*other"):
        train(run)
    with pytest.raises(ConfigError, match=r"teachers\.0: .* under the same id: "):
        check_run(strop.load(run))
    check_run(strop.load(values(algorithm=only(teacher, loss={}))))
    assert "The run can start" in capsys.readouterr().out
