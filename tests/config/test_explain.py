"""What a newcomer reads before a run."""

from __future__ import annotations

from pathlib import Path

from strop.config.explain import lines, summary, unit_of
from strop.config.load import load_run
from strop.config.schema.walk import leaves
from strop.config.units import Amount


def test_the_paragraph_says_which_model_is_left(run_file: Path) -> None:
    text = summary(load_run(run_file, ["+checkpoint.best={metric: eval/held-out/pass@1}"]))
    assert "every 20 steps, after each evaluation and at the end, of which the last 3 stay, the best" in text
    assert "model of the step with the best eval/held-out/pass@1 will be in" in text


def test_the_paragraph(run_file: Path) -> None:
    overrides = [
        "trainer.tasks_per_update=16",
        "trainer.passes=2",
        "trainer.duration=10 steps",
        "evaluate.every=2 steps",
    ]
    text = summary(load_run(run_file, overrides))
    for part in (
        "a LoRA adapter of rank 8 on m by GRPO on train.jsonl, scored by exact",
        "8 rollouts to each of 64 tasks (512 rollouts",
        "makes 8 updates",
        "10 steps: 5120 rollouts in all",
        "(held-out) are measured at the start, every 2 steps and at the end",
        "every 20 steps and at the end, of which the last 3 stay",
        "runs/sums/first/model",
    ):
        assert part in text


def test_every_value_has_a_line_and_every_line_an_effect(run_file: Path) -> None:
    loaded = load_run(run_file)
    explained = lines(loaded)
    assert [line.field for line in explained] == [".".join(leaf.keys) for leaf in leaves(loaded.run)]
    assert [line.field for line in explained if not line.effect] == []


def test_units() -> None:
    assert unit_of("every", Amount(20, "steps")) == "steps"
    assert unit_of("max_prompt_tokens", 3) == "tokens"
    assert unit_of("timeout_seconds", 3) == "seconds"
    assert unit_of("tasks_per_step", 3) == "tasks"
    assert unit_of("rollouts_per_task", 3) == "rollouts"
    assert unit_of("shuffle_passes", False) == ""
    assert unit_of("lr", 1e-6) == ""
