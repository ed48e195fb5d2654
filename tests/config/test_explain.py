"""Summary and explained values of a run."""

from __future__ import annotations

from pathlib import Path

from strop.config.explain.summary import summarize
from strop.config.explain.values import explain_values, unit_of
from strop.config.load.loader import load_run
from strop.config.schema.walk import leaves
from strop.config.units import Amount
from strop.dialects.verl.ppo_trainer import read_verl


def test_the_summary_names_the_final_model(run_file: Path) -> None:
    text = summarize(load_run(run_file, ["+checkpoint.best={metric: eval/held-out/pass@1}"]))
    assert "every 20 steps, after each evaluation and at the end, and the last 3 are kept, including" in text
    assert "model of the step with the best eval/held-out/pass@1 will be in" in text


def test_the_summary(run_file: Path) -> None:
    overrides = [
        "trainer.tasks_per_update=16",
        "trainer.epochs_per_step=2",
        "trainer.duration=10 steps",
        "evaluate.every=2 steps",
    ]
    text = summarize(load_run(run_file, overrides))
    for part in (
        "a LoRA adapter of rank 8 on m by GRPO on train.jsonl, scored by exact",
        "8 rollouts of each of 64 tasks (512 rollouts, with their prompts at most 2048 tokens each and "
        "1,048,576 in total)",
        "makes 8 updates",
        "10 steps: 5120 rollouts in total",
        "(held-out) are evaluated at the start, every 2 steps and at the end",
        "Checkpoints (weights, optimizer and position) are written every 20 steps and at the end, and "
        "the last 3 are kept",
        "runs/sums/first/model",
    ):
        assert part in text


def test_the_duration_in_the_summary(run_file: Path) -> None:
    def said(*overrides: str) -> str:
        return summarize(load_run(run_file, list(overrides)))

    epochs = "lasts 2 epochs; an epoch has a step for every 64 training tasks, and the remaining tasks"
    assert f"{epochs} are skipped." in said("trainer.duration=2 epochs")
    keep = said("trainer.duration=2 epochs", "data.incomplete_batch=keep")
    assert f"{epochs} make a smaller step." in keep
    updates = said("trainer.duration=12 updates", "trainer.tasks_per_update=16")
    assert "lasts 12 updates, which are 3 steps: 1536 rollouts in total." in updates
    assert "lasts 13 updates." in said("trainer.duration=13 updates", "trainer.tasks_per_update=16")
    assert "evaluated at the start, every epoch and at the end" in said("evaluate.every=1 epoch")
    bare = said("checkpoint.save_optimizer=false", "checkpoint.export=true")
    assert "(weights, position and a Hugging Face folder, without the optimizer)" in bare


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
    assert explained["algorithm.rollouts_per_task"] == (
        "4",
        "rollouts",
        "actor_rollout_ref.rollout.n=4",
        f"{path}:1",
    )
    assert explained["trainer.duration"] == ("9", "steps", "trainer.total_training_steps=9", "override")
    assert explained["data.eval.0.sampling.temperature"][2:] == (
        "actor_rollout_ref.rollout.val_kwargs.do_sample=false",
        "page default",
    )
    assert explained["data.train.answer"][2:] == ("", "fixed by verl")
    assert explained["folder"][2:] == ("", "default")
    assert explained["data.train.limit_tasks"][:2] == ("null", ""), "null has no unit"


def test_every_value_is_explained_with_an_effect(run_file: Path) -> None:
    loaded = load_run(run_file)
    explained = explain_values(loaded)
    assert [line.field for line in explained] == [".".join(leaf.keys) for leaf in leaves(loaded.run)]
    assert [line.field for line in explained if not line.effect] == []


def test_units() -> None:
    assert unit_of("every", Amount(20, "steps")) == "steps"
    assert unit_of("max_prompt_tokens", 3) == "tokens"
    assert unit_of("timeout_seconds", 3) == "seconds"
    assert unit_of("tasks_per_step", 3) == "tasks"
    assert unit_of("rollouts_per_task", 3) == "rollouts"
    assert unit_of("shuffle_each_epoch", False) == ""
    assert unit_of("lr", 1e-6) == ""


def test_the_mirror_is_shown_without_its_password(run_file: Path) -> None:
    loaded = load_run(run_file, ["+checkpoint.mirror='s3://me:word@bucket/x'"])
    assert "they are copied to s3://***@bucket/x" in summarize(loaded)


def test_a_workflow_has_a_default_reward(run_file: Path) -> None:
    run_file.write_text(run_file.read_text().replace("reward: exact\n", ""))
    scored = [
        summarize(load_run(run_file, [f"+rollout.workflow={name}"])) for name in ("math", "mine.py:play")
    ]
    assert "scored by math." in scored[0]
    assert "scored by its workflow (mine.py:play)." in scored[1]
    assert "scored by nothing yet." in summarize(load_run(run_file))
