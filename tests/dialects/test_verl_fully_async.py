"""verl's `fully_async_policy`, by expectations worked out from its source of 2026-08.

`fully_async_rollouter.py`, lines 493-500 (the prompts under way and the duration), 604 (what a new version leaves of
them) and 1155 (the pause); `fully_async_trainer.py`, lines 147 (prompts of a step), 684 (steps of a version), 812-820
(evaluations count versions) and 890 (so do checkpoints).
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from strop.config.load.loader import LoadedRun
from strop.config.schema import Run
from strop.config.schema.synchronizer import BoundedStyleConfig, CollectiveSyncConfig
from strop.dialects.hydra.selection import ConfigSelection
from strop.dialects.verl.ppo_trainer import read_verl
from strop.errors import ConfigError
from strop.launch.importer import import_script
from strop.models.tiny import make_model

MATH_4_4 = (
    "data.train_batch_size=0",
    "data.gen_batch_size=1",
    "actor_rollout_ref.rollout.n=16",
    "actor_rollout_ref.hybrid_engine=False",
    "actor_rollout_ref.actor.ppo_mini_batch_size=32",
    "rollout.nnodes=1",
    "rollout.n_gpus_per_node=4",
    "rollout.total_rollout_steps=51200",
    "trainer.total_epochs=10",
    "trainer.test_freq=10",
    "trainer.save_freq=-1",
    "async_training.staleness_threshold=0.1",
    "async_training.trigger_parameter_sync_step=4",
    "async_training.require_batches=4",
    "async_training.partial_rollout=True",
)
"""Sizes of `shell/dapo_7b_math_fsdp2_4_4.sh`, lines 70-79."""
DECOUPLED = (
    *MATH_4_4,
    "rollout.total_rollout_steps=204800",
    "async_training.staleness_threshold=0.5",
    "trainer.save_freq=5",
    "algorithm.rollout_correction.bypass_mode=False",
    "algorithm.rollout_correction.rollout_is=token",
    "algorithm.rollout_correction.rollout_is_threshold=2.0",
)
"""Sizes of `shell/dapo_7b_math_fsdp2_64_64_mis.sh`, lines 68-83, with checkpoints."""


def load(*overrides: str) -> LoadedRun:
    return read_verl(overrides, selection=ConfigSelection(name="fully_async_ppo_trainer"), here=True)


def style_of(run: Run) -> BoundedStyleConfig:
    assert isinstance(run.synchronizer, CollectiveSyncConfig)
    assert isinstance(run.synchronizer.style, BoundedStyleConfig)
    return run.synchronizer.style


def test_the_meaning_of_a_script_whose_staleness_is_a_tenth() -> None:
    """int(128 * 1.1 * 4) = 563 prompts per version: four steps, and 51 prompts of the next, which Strop leaves."""
    loaded = load(*MATH_4_4)
    run, style = loaded.run, style_of(loaded.run)
    assert (run.trainer.tasks_per_step, run.trainer.tasks_per_update) == (128, 32)
    assert (style.every.count, style.max_staleness.count, style.pause_mode) == (4, 3, "abort")
    assert run.trainer.duration.count == 51200 // 128
    assert (str(run.trainer.duration), str(run.trainer.stop_after)) == ("400 steps", "10 epochs")
    assert (str(run.evaluate.every), run.evaluate.at_end) == ("40 steps", False)
    assert run.checkpoint.every is None
    assert getattr(run.algorithm, "old_policy", None) == "sampler"
    assert any("also lets 51 of the 128 prompts of the next step" in note for note in loaded.notes)
    assert any("data.train_batch_size=0: inactive" in note for note in loaded.notes)


def test_the_meaning_of_a_script_with_decoupled_ratios() -> None:
    """int(128 * 1.5 * 4) = 768 prompts are six whole steps, so that the bound is verl's own."""
    loaded = load(*DECOUPLED)
    run, style = loaded.run, style_of(loaded.run)
    assert (style.every.count, style.max_staleness.count) == (4, 5)
    assert str(run.trainer.duration) == "1600 steps"
    assert str(run.checkpoint.every) == "20 steps"
    assert getattr(run.algorithm, "old_policy", None) == "trainer"
    assert getattr(run.algorithm, "importance_correction", None) is not None
    assert not any("prompts of the next step" in note for note in loaded.notes)
    assert any("all 4 steps of a version" in note for note in loaded.notes)
    at_once = load(*DECOUPLED, "async_training.trigger_parameter_sync_step=1")
    assert not any("steps of a version" in note for note in at_once.notes)


@pytest.mark.parametrize("interval", [1, 3, 4])
@pytest.mark.parametrize("threshold", [0, 0.1, 0.34, 0.5, 0.75, 1, 2.5])
def test_no_prompt_is_sampled_that_verl_would_hold_back(threshold: float, interval: int) -> None:
    """verl stops at the prompt max_required_samples after those that the trainer had taken when the weights were
    published; Strop at the end of the last step for which the weights are not too old."""
    size = 6
    run = load(
        f"actor_rollout_ref.actor.ppo_mini_batch_size={size}",
        f"async_training.staleness_threshold={threshold}",
        f"async_training.trigger_parameter_sync_step={interval}",
    ).run
    in_verl = int(size * (threshold + 1) * interval)
    oldest = style_of(run).max_staleness.count
    sampled = [p for p in range(1, 2 * in_verl) if math.ceil(p / size) - 1 <= oldest]
    assert in_verl - size < max(sampled) <= in_verl


def test_without_partial_rollouts_completions_finish_before_new_weights() -> None:
    assert style_of(load(*MATH_4_4, "async_training.partial_rollout=False").run).pause_mode == "finish"


def test_keys_that_this_trainer_does_not_read_are_named() -> None:
    loaded = load(*MATH_4_4, "trainer.total_training_steps=7", "algorithm.filter_groups.enable=True")
    assert str(loaded.run.trainer.duration) == "400 steps"
    assert getattr(loaded.run.algorithm, "dynamic_sampling", None) is None
    assert sum("inactive, because the fully asynchronous trainer" in note for note in loaded.notes) == 4


def test_keys_of_the_first_versions_have_the_meaning_of_their_later_names() -> None:
    """`fully_async_ppo_trainer.yaml` of verl 0.7.0, lines 25, 28, 57 and 60."""
    sizes = [word for word in MATH_4_4 if not word.startswith(("trainer.total_epochs", "trainer.test_freq"))]
    first = load(
        *sizes, "rollout.total_epochs=10", "rollout.test_freq=10", "async_training.use_rollout_log_probs=True"
    )
    assert first.run == load(*MATH_4_4).run
    proximal = load(*MATH_4_4, "async_training.compute_prox_log_prob=True")
    assert proximal.run == load(*MATH_4_4, "algorithm.rollout_correction.bypass_mode=False").run
    assert any(
        "the ratio is that to the weights at the start of each step" in note for note in proximal.notes
    )


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("actor_rollout_ref.hybrid_engine=True", "stops at its start unless it is False"),
        ("data.gen_batch_size=4", "write data.gen_batch_size=1"),
        ("rollout.total_rollout_steps=127", "would end before its first step"),
        ("async_training.require_batches=0", "write a positive number"),
        ("async_training.trigger_parameter_sync_step=0", "write a positive number"),
        ("async_training.staleness_threshold=-1", "write 0 or a positive number"),
        ("async_training.use_rollout_log_probs=False", "write async_training.compute_prox_log_prob=True"),
        ("async_training.unknown=1", "and not this one"),
    ],
)
def test_what_has_no_meaning_is_refused(setting: str, said: str) -> None:
    with pytest.raises(ConfigError) as failure:
        load(*MATH_4_4, setting)
    assert said in " ".join(str(failure.value).split())


@pytest.mark.parametrize(
    ("program", "config"),
    [
        ("verl.experimental.fully_async_policy.fully_async_main", "fully_async_ppo_trainer"),
        ("verl.experimental.one_step_off_policy.main_ppo", "one_step_off_ppo_trainer"),
    ],
)
def test_a_script_that_names_no_configuration_has_the_programs_own(
    program: str, config: str, tmp_path: Path
) -> None:
    script = tmp_path / "run.sh"
    script.write_text(f"python -m {program} rollout.nnodes=1\n")
    commands, _ = import_script(script)
    assert commands[0].program.arguments == (f"--config-name={config}", "rollout.nnodes=1")


@pytest.mark.slow
def test_a_script_runs_two_steps(tmp_path: Path) -> None:
    questions = [f"What is {a} + {b}?" for a in range(4) for b in range(4)]
    rows = [
        {
            "data_source": "openai/gsm8k",
            "prompt": [{"role": "user", "content": question}],
            "reward_model": {"style": "rule", "ground_truth": "7"},
        }
        for question in questions
    ]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    small = {
        "data.train_files": tmp_path / "tasks.jsonl",
        "data.val_files": "null",
        "data.max_prompt_length": 64,
        "data.max_response_length": 4,
        "actor_rollout_ref.model.path": make_model(tmp_path / "model", questions, max_tokens=256),
        "actor_rollout_ref.actor.ppo_mini_batch_size": 2,
        "actor_rollout_ref.rollout.n": 2,
        "async_training.require_batches": 2,
        "async_training.trigger_parameter_sync_step": 1,
        "rollout.total_rollout_steps": 11,
        "trainer.logger": "[console]",
        "trainer.default_local_dir": tmp_path / "run",
    }
    words = [*DECOUPLED, *(f"{key}={value}" for key, value in small.items())]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "strop",
            "verl",
            "ppo",
            "--here",
            "--config-name=fully_async_ppo_trainer",
            *words,
        ],
        env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    steps = [row for row in map(json.loads, lines) if row["step"]]
    assert [step["step"] for step in steps] == [1, 2]
    assert all(step["updates"] == 2 for step in steps)
    assert all(step["staleness/max"] <= 0 for step in steps)
