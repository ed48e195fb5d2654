"""Summary and explained values of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from strop.compat.verl.ppo_trainer import read_verl
from strop.config.explain import explain_values, summarize, unit_of
from strop.config.load.loader import load_run
from strop.config.schema.run import leaves
from strop.config.units import Amount

EPOCHS = "lasts 2 epochs; an epoch has a step for every 64 training tasks, and the remaining tasks"


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (
            ["trainer.tasks_per_update=16", "trainer.epochs_per_step=2", "trainer.duration=10 steps"],
            [
                "a LoRA adapter of rank 8 on m by GRPO on train.jsonl, scored by exact",
                "8 rollouts of each of 64 tasks (512 rollouts, with their prompts at most 2048 tokens each and "
                "1,048,576 in total)",
                "makes 8 updates",
                "10 steps: 5120 rollouts in total",
                "Checkpoints (weights, optimizer and position) are written every 20 steps and at the end, and "
                "the last 3 are kept",
                "runs/sums/first/model",
            ],
        ),
        (["evaluate.every=2 steps"], ["(held-out) are evaluated at the start, every 2 steps and at the end"]),
        (["evaluate.every=1 epoch"], ["evaluated at the start, every epoch and at the end"]),
        (["trainer.duration=2 epochs"], [f"{EPOCHS} are skipped."]),
        (["trainer.duration=2 epochs", "data.incomplete_batch=keep"], [f"{EPOCHS} make a smaller step."]),
        (
            ["trainer.duration=12 updates", "trainer.tasks_per_update=16"],
            ["lasts 12 updates, which are 3 steps: 1536 rollouts in total."],
        ),
        (["trainer.duration=13 updates", "trainer.tasks_per_update=16"], ["lasts 13 updates."]),
        (
            ["checkpoint.save_optimizer=false", "checkpoint.export=true"],
            ["(weights, position and a Hugging Face folder, without the optimizer)"],
        ),
        (
            ["+checkpoint.best={metric: eval/held-out/pass@1}"],
            [
                "every 20 steps, after each evaluation and at the end, and the last 3 are kept, including",
                "model of the step with the best eval/held-out/pass@1 will be in",
            ],
        ),
        (["+checkpoint.mirror='s3://me:word@bucket/x'"], ["they are copied to s3://***@bucket/x"]),
        (["~reward", "+rollout.workflow=math"], ["scored by math."]),
        (["~reward", "+rollout.workflow=mine.py:play"], ["scored by its workflow (mine.py:play)."]),
        (["~reward"], ["scored by nothing yet."]),
        (["synchronizer=checkpoint"], ["two processes of this machine. They take turns."]),
        (["synchronizer=collective"], ["two processes of this machine. They take turns."]),
        (["mode=explore"], ["This is the explorer: it samples"]),
        (
            ["mode=train", "synchronizer.style.max_lead=1 steps"],
            ["at most 1 step ahead, with new weights every 1 step"],
        ),
        (["synchronizer.style={type: bounded, max_staleness: 3 steps}"], ["weights at most 3 steps old"]),
        (["mode=bench"], ["initial model m and of each checkpoint"]),
    ],
)
def test_the_summary(run_file: Path, overrides: list[str], parts: list[str]) -> None:
    text = summarize(load_run(run_file, overrides))
    assert all(part in text for part in parts), text
    if not any(word in str(overrides) for word in ("mode=", "synchronizer")):
        assert "explorer" not in text.lower(), "a single process has no name"


def test_foreign_keys_are_explained(tmp_path: Path) -> None:
    path = tmp_path / "ppo.yaml"
    path.write_text(
        "actor_rollout_ref: {rollout: {n: 4}, model: {path: m}}\nalgorithm: {adv_estimator: grpo}\n"
    )
    loaded = read_verl(["trainer.total_training_steps=9"], config=path, here=True)
    explained = {
        line.field: (line.value, line.unit, line.foreign_key, line.location)
        for line in explain_values(loaded)
    }
    foreign = "actor_rollout_ref.rollout.n=4"
    assert explained["algorithm.rollouts_per_task"] == ("4", "rollouts", foreign, f"{path}:1")
    assert explained["trainer.duration"] == ("9", "steps", "trainer.total_training_steps=9", "override")
    sampled = "actor_rollout_ref.rollout.val_kwargs.do_sample=false"
    assert explained["data.eval.0.sampling.temperature"][2:] == (sampled, "documented default")
    assert explained["data.train.answer"][2:] == ("", "fixed by verl")
    assert explained["folder"][2:] == ("", "default")
    assert explained["data.train.limit_tasks"][:2] == ("null", ""), "null has no unit"


def test_every_value_is_explained_with_an_effect(run_file: Path) -> None:
    loaded = load_run(run_file)
    explained = explain_values(loaded)
    assert [line.field for line in explained] == [".".join(leaf.keys) for leaf in leaves(loaded.run)]
    assert [line.field for line in explained if not line.effect] == []


@pytest.mark.parametrize(
    ("field", "value", "unit"),
    [
        ("every", Amount(20, "steps"), "steps"),
        ("max_prompt_tokens", 3, "tokens"),
        ("timeout_seconds", 3, "seconds"),
        ("tasks_per_step", 3, "tasks"),
        ("rollouts_per_task", 3, "rollouts"),
        ("shuffle_each_epoch", False, ""),
        ("lr", 1e-6, ""),
    ],
)
def test_units(field: str, value: object, unit: str) -> None:
    assert unit_of(field, value) == unit
