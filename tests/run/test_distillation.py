"""Runs that learn from a teacher: by the loss and as a reward, with resume, without a reward, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import strop
from strop.cli.actions import check_run
from strop.errors import ConfigError, DataError, ModelError
from strop.models.tiny import make_model


@pytest.fixture(scope="module")
def teacher(tiny: Path) -> dict[str, Any]:
    """A model with the policy's tokenizer, of another size, whose larger weights make it surer of its tokens."""
    folder = tiny / "teacher"
    size = {"hidden_size": 48, "layers": 1, "initializer_range": 0.2}
    make_model(folder, ["max 1 2"], vocab_size=300, heads=4, kv_heads=2, seed=5, **size)
    return {"path": str(folder), "dtype": "float32"}


def train(run: dict[str, Any]) -> tuple[list[dict[str, float]], Path]:
    result = strop.train(strop.load(run))
    rows = (result.folder / "metrics.jsonl").read_text().splitlines()
    assert result.model is not None
    return [json.loads(row) for row in rows][1:], result.model


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
    )
    del run["reward"]
    rows, _ = train(run)
    first, last = (row["distillation_loss/divergence"] for row in (rows[0], rows[-1]))
    assert 0.05 < last < 0.95 * first
    assert all(row["reward/mean"] == 0 and row["policy_loss"] == 0 for row in rows)


@pytest.mark.slow
def test_the_teacher_is_a_reward_beside_the_tasks_own(values, teacher):
    """Advantages are the group's plus log q - log p of each token, whose mean is minus the divergence."""
    section = {"teachers": [teacher], "reward": {"coef": 0.5}}
    algorithm = {"type": "grpo", "rollouts_per_task": 4, "distillation": section}
    changes = {"trainer__tasks_per_update": 8, "trainer__duration": "2 steps"}
    rows, _ = train(values(algorithm=algorithm, **changes))
    plain, _ = train(values(algorithm={"type": "grpo", "rollouts_per_task": 4}, name="plain", **changes))
    expected = plain[0]["advantages/mean"] - 0.5 * rows[0]["distillation_reward/divergence"]
    assert rows[0]["advantages/mean"] == pytest.approx(expected, abs=1e-6)
    assert rows[0]["distillation_reward/divergence"] != 0
    assert "distillation_loss" not in rows[0]


@pytest.mark.slow
def test_a_resumed_run_is_the_uninterrupted_one(values, teacher):
    """The teacher is read again from its folder, so a checkpoint holds nothing of it."""
    algorithm = only(teacher, loss={"divergence": {"type": "jsd", "top_k": 20}}, reward={})
    run = values(algorithm=algorithm, trainer__optimizer__lr=1e-2)
    whole, expected = train(run | {"name": "whole"})
    train(run | {"name": "parts", "trainer": run["trainer"] | {"duration": "2 steps"}})
    parts, model = train(run | {"name": "parts"})
    names = ("distillation_loss", "distillation_loss/divergence", "distillation_reward/divergence", "loss")
    assert [[row[n] for n in names] for row in parts] == [[row[n] for n in names] for row in whole]
    found, wanted = (load_file(each / "model.safetensors") for each in (model, expected))
    assert all(found[name].equal(tensor) for name, tensor in wanted.items())


def test_an_evaluation_loads_no_teacher(values, teacher, tmp_path):
    absent = {"path": str(tmp_path / "absent"), "dtype": "float32"}
    run = strop.load(values(algorithm=only(absent, loss={})))
    assert strop.evaluate(run)


@pytest.mark.slow
def test_each_source_has_its_teacher(values, teacher, tiny, tmp_path):
    tasks = [json.loads(line) for line in (tiny / "tasks.jsonl").read_text().splitlines()]
    rows = [task | {"source": "even" if int(task["answer"]) % 2 == 0 else "odd"} for task in tasks]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    algorithm = only(teacher | {"sources": ["even"]}, loss={})
    data = {"train": {"path": str(tmp_path / "tasks.jsonl"), "source": "source"}}
    run = values(algorithm=algorithm, trainer__duration="1 steps", data__train=data["train"])
    with pytest.raises(DataError, match="no teacher has the data source 'odd'"):
        train(run)
    own = {"path": run["model"]["path"], "dtype": "float32", "sources": ["odd"]}
    algorithm["distillation"]["teachers"].append(own)
    (row,), _ = train(run)
    (whole,), _ = train(values(name="one", algorithm=only(teacher, loss={}), trainer__duration="1 steps"))
    # The policy's own copy has no divergence from it.
    assert 0 < row["distillation_loss/divergence"] < 0.9 * whole["distillation_loss/divergence"]
    run["data"]["train"].pop("source")
    with pytest.raises(ConfigError, match=r"data\.train\.source: missing"):
        strop.load(run)


def test_a_teacher_of_another_vocabulary_is_refused(values, tmp_path):
    folder = make_model(tmp_path / "other", ["min 3 4"] * 9, vocab_size=280, hidden_size=32)
    run = values(algorithm=only({"path": str(folder)}, loss={}))
    with pytest.raises(ModelError, match=r"teachers\.0: .* tokens are not in the vocabulary of .*other"):
        strop.train(strop.load(run))
    with pytest.raises(ConfigError, match=r"teachers\.0: .* under the same id: "):
        check_run(strop.load(run))


def test_a_teacher_of_the_same_vocabulary_passes_the_check(values, teacher, capsys):
    check_run(strop.load(values(algorithm=only(teacher, loss={}))))
    assert "The run can start" in capsys.readouterr().out
