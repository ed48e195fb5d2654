"""verl's asynchronous trainers, by expectations worked out from its source of 2026-08.

`fully_async_rollouter.py`, lines 493-500 (the prompts under way and the duration), 604 (what a new version leaves of
them) and 1155 (the pause); `fully_async_trainer.py`, lines 147 (prompts of a step), 684 (steps of a version), 812-820
(evaluations count versions) and 890 (so do checkpoints). `trainer/ppo/v1/trainer_separate_async.py`: `__init__`
(sizes), `on_train_begin` (batches under way); `trainer_base.py`: `fit` (what its steps count) and `step` (a batch is
added per step, and taken in mini-batches).
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from strop.compat.hydra import ConfigSelection
from strop.compat.launch.importer import import_script
from strop.compat.verl.ppo_trainer import read_verl
from strop.config.load.loader import LoadedRun
from strop.config.schema import Run
from strop.config.schema.buffer import BoundedStyleConfig, CollectiveSyncConfig
from strop.models.tiny import make_model
from tests.cases import nightly
from tests.command import run_strop

# -- fully_async_policy -------------------------------------------------------------------------------------

MATH_4_4 = (
    *("data.train_batch_size=0", "data.gen_batch_size=1", "actor_rollout_ref.rollout.n=16"),
    *("actor_rollout_ref.hybrid_engine=False", "actor_rollout_ref.actor.ppo_mini_batch_size=32"),
    *("rollout.nnodes=1", "rollout.n_gpus_per_node=4", "rollout.total_rollout_steps=51200"),
    *("trainer.total_epochs=10", "trainer.test_freq=10", "trainer.save_freq=-1"),
    *("async_training.staleness_threshold=0.1", "async_training.trigger_parameter_sync_step=4"),
    *("async_training.require_batches=4", "async_training.partial_rollout=True"),
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


# -- trainer v1 ---------------------------------------------------------------------------------------------

FILES = ("data.train_files=train.parquet", "data.val_files=null", "actor_rollout_ref.model.path=m")
SEPARATE = (
    *FILES,
    "trainer.v1.trainer_mode=separate_async",
    "data.train_batch_size=64",
    "actor_rollout_ref.actor.ppo_mini_batch_size=16",
)
COLOCATED = (*FILES, "trainer.v1.trainer_mode=colocate_async", "data.train_batch_size=256")
_V1 = "trainer.v1"


def load_v1(*overrides: str) -> LoadedRun:
    return read_verl(overrides, here=True)


def test_mini_batches_of_a_version_are_steps() -> None:
    """With one warm-up batch, 2 * 64 prompts are under way with the weights of one version: 8 steps of 16."""
    run = load_v1(
        *SEPARATE, "trainer.total_training_steps=10", "trainer.test_freq=5", "trainer.save_freq=2"
    ).run
    style = style_of(run)
    assert (run.trainer.tasks_per_step, run.trainer.tasks_per_update) == (16, 16)
    assert (style.every.count, style.max_staleness.count, style.pause_mode) == (4, 7, "abort")
    assert [str(each) for each in (run.trainer.duration, run.evaluate.every, run.checkpoint.every)] == [
        "40 steps",
        "20 steps",
        "8 steps",
    ]
    assert run.evaluate.at_end


@pytest.mark.parametrize(("further", "interval"), [(0, 1), (0, 4), (1, 2), (3, 3), (7, 1)])
def test_as_many_prompts_are_under_way_as_in_verl(further: int, interval: int) -> None:
    at = f"{_V1}.separate_async"
    run = load_v1(
        *SEPARATE,
        f"data.train_batch_size={16 * interval}",
        f"{at}.num_warmup_batches={further}",
        f"{at}.parameter_sync_step={interval}",
    ).run
    in_verl = (further + 1) * 16 * interval
    assert (style_of(run).max_staleness.count + 1) * run.trainer.tasks_per_step == in_verl


def test_the_colocated_mode_trains_on_whole_batches() -> None:
    loaded = load_v1(
        *COLOCATED, f"{_V1}.colocate_async.num_warmup_batches=2", "trainer.total_training_steps=10"
    )
    run, style = loaded.run, style_of(loaded.run)
    assert (run.trainer.tasks_per_step, run.trainer.tasks_per_update) == (256, 256)
    assert (style.every.count, style.max_staleness.count) == (1, 2)
    assert str(run.trainer.duration) == "10 steps"


def test_the_critic_alone_is_trained_for_versions() -> None:
    run: Any = load_v1(*SEPARATE, "algorithm.adv_estimator=gae", "trainer.critic_warmup=3").run
    assert run.algorithm.critic.warmup_steps == 12


def test_the_ratio_that_differs_is_named() -> None:
    assert any("all 4 steps of a version" in note for note in load_v1(*SEPARATE).notes)
    bypass = "+algorithm.rollout_correction.bypass_mode=True"
    assert not any("steps of a version" in note for note in load_v1(*SEPARATE, bypass).notes)
    assert not any("steps of a version" in note for note in load_v1(*COLOCATED).notes)


def test_without_trainer_v1_the_mode_counts_for_nothing() -> None:
    loaded = load_v1(*COLOCATED, "trainer.use_v1=False")
    assert loaded.run.synchronizer.type == "memory"
    assert any("inactive, because trainer.use_v1 is False" in note for note in loaded.notes)


# -- runs ---------------------------------------------------------------------------------------------------

QUESTIONS = [f"What is {a} + {b}?" for a in range(4) for b in range(4)]
SMALL = {
    "data.train_files": "tasks.jsonl",
    "data.val_files": "null",
    "data.max_prompt_length": 64,
    "data.max_response_length": 4,
    "actor_rollout_ref.model.path": "model",
    "actor_rollout_ref.actor.ppo_mini_batch_size": 2,
    "actor_rollout_ref.rollout.n": 2,
    "trainer.logger": "[console]",
    "trainer.default_local_dir": "run",
}
OF_V1 = {
    "data.train_batch_size": 4,
    f"{_V1}.separate_async.parameter_sync_step": 2,
    "trainer.total_training_steps": 2,
}
FULLY_ASYNC = {
    "async_training.require_batches": 2,
    "async_training.trigger_parameter_sync_step": 1,
    "rollout.total_rollout_steps": 11,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "own", "steps", "updates", "staleness"),
    [
        ([f"{_V1}.trainer_mode=separate_async"], OF_V1, 4, 1, 3),
        *nightly(
            ([f"{_V1}.trainer_mode=colocate_async"], OF_V1, 2, 2, 1),
            (["--config-name=fully_async_ppo_trainer", *DECOUPLED], FULLY_ASYNC, 2, 2, 0),
        ),
    ],
    ids=["separate_async", "colocate_async", "fully_async_policy"],
)
def test_a_run_has_the_steps_of_verl(
    words: list[str], own: dict[str, object], steps: int, updates: int, staleness: int
) -> None:
    rows = [
        {
            "data_source": "openai/gsm8k",
            "prompt": [{"role": "user", "content": question}],
            "reward_model": {"style": "rule", "ground_truth": "7"},
        }
        for question in QUESTIONS
    ]
    Path("tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    make_model(Path("model"), QUESTIONS, max_tokens=256)
    keys = [f"{key}={value}" for key, value in (SMALL | own).items()]
    done = run_strop("verl", "ppo", "--here", *words, *keys)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = Path("run/metrics.jsonl").read_text().splitlines()
    found = [row for row in map(json.loads, lines) if row["step"]]
    assert [step["step"] for step in found] == list(range(1, steps + 1))
    assert all(step["updates"] == updates for step in found)
    assert all(step["staleness/max"] <= staleness for step in found)
