"""The asynchronous modes of verl's trainer v1, by expectations worked out from its source of 2026-08.

`trainer/ppo/v1/trainer_separate_async.py`: `__init__` (sizes), `on_train_begin` (batches under way);
`trainer_base.py`: `fit` (what its steps count) and `step` (a batch is added per step, and taken in mini-batches).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from strop.config.load.loader import LoadedRun
from strop.config.schema import Run
from strop.config.schema.synchronizer import BoundedStyleConfig, CollectiveSyncConfig
from strop.dialects.verl.ppo_trainer import read_verl
from strop.errors import ConfigError
from strop.models.tiny import make_model

FILES = ("data.train_files=train.parquet", "data.val_files=null", "actor_rollout_ref.model.path=m")
SEPARATE = (
    *FILES,
    "trainer.v1.trainer_mode=separate_async",
    "data.train_batch_size=64",
    "actor_rollout_ref.actor.ppo_mini_batch_size=16",
)
COLOCATED = (*FILES, "trainer.v1.trainer_mode=colocate_async", "data.train_batch_size=256")
_V1 = "trainer.v1"


def load(*overrides: str) -> LoadedRun:
    return read_verl(overrides, here=True)


def style_of(run: Run) -> BoundedStyleConfig:
    assert isinstance(run.synchronizer, CollectiveSyncConfig)
    assert isinstance(run.synchronizer.style, BoundedStyleConfig)
    return run.synchronizer.style


def test_mini_batches_of_a_version_are_steps() -> None:
    """With one warm-up batch, 2 * 64 prompts are under way with the weights of one version: 8 steps of 16."""
    run = load(*SEPARATE, "trainer.total_training_steps=10", "trainer.test_freq=5", "trainer.save_freq=2").run
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
    run = load(
        *SEPARATE,
        f"data.train_batch_size={16 * interval}",
        f"{at}.num_warmup_batches={further}",
        f"{at}.parameter_sync_step={interval}",
    ).run
    in_verl = (further + 1) * 16 * interval
    assert (style_of(run).max_staleness.count + 1) * run.trainer.tasks_per_step == in_verl


def test_the_colocated_mode_trains_on_whole_batches() -> None:
    loaded = load(*COLOCATED, f"{_V1}.colocate_async.num_warmup_batches=2", "trainer.total_training_steps=10")
    run, style = loaded.run, style_of(loaded.run)
    assert (run.trainer.tasks_per_step, run.trainer.tasks_per_update) == (256, 256)
    assert (style.every.count, style.max_staleness.count) == (1, 2)
    assert str(run.trainer.duration) == "10 steps"


def test_the_critic_alone_is_trained_for_versions() -> None:
    run: Any = load(*SEPARATE, "algorithm.adv_estimator=gae", "trainer.critic_warmup=3").run
    assert run.algorithm.critic.warmup_steps == 12


def test_the_ratio_that_differs_is_named() -> None:
    assert any("all 4 steps of a version" in note for note in load(*SEPARATE).notes)
    bypass = "+algorithm.rollout_correction.bypass_mode=True"
    assert not any("steps of a version" in note for note in load(*SEPARATE, bypass).notes)
    assert not any("steps of a version" in note for note in load(*COLOCATED).notes)


def test_without_trainer_v1_the_mode_counts_for_nothing() -> None:
    loaded = load(*COLOCATED, "trainer.use_v1=False")
    assert loaded.run.synchronizer.type == "memory"
    assert any("inactive, because trainer.use_v1 is False" in note for note in loaded.notes)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("data.train_batch_size=32", "it must be actor_rollout_ref.actor.ppo_mini_batch_size (16)"),
        (f"{_V1}.separate_async.parameter_sync_step=0", "write 1 or a greater number"),
        (f"{_V1}.separate_async.num_warmup_batches=-1", "write 0 or a greater number"),
        (f"{_V1}.separate_async.num_warmup_batches=8", "lets rollouts span 9 versions"),
        (f"{_V1}.sampler.custom_sampler.path=mine.py", "no interface for classes that choose rollouts"),
        (f"{_V1}.trainer_mode=half_async", "must be sync or colocate_async or separate_async"),
    ],
)
def test_what_has_no_meaning_is_refused(setting: str, said: str) -> None:
    with pytest.raises(ConfigError) as failure:
        load(*SEPARATE, setting)
    assert said in " ".join(str(failure.value).split())


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["separate_async", "colocate_async"])
def test_a_run_of_two_versions(mode: str, tmp_path: Path) -> None:
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
        "data.train_batch_size": 4,
        "data.max_prompt_length": 64,
        "data.max_response_length": 4,
        "actor_rollout_ref.model.path": make_model(tmp_path / "model", questions, max_tokens=256),
        "actor_rollout_ref.actor.ppo_mini_batch_size": 2,
        "actor_rollout_ref.rollout.n": 2,
        f"{_V1}.trainer_mode": mode,
        f"{_V1}.separate_async.parameter_sync_step": 2,
        "trainer.total_training_steps": 2,
        "trainer.logger": "[console]",
        "trainer.default_local_dir": tmp_path / "run",
    }
    words = [f"{key}={value}" for key, value in small.items()]
    done = subprocess.run(
        [sys.executable, "-m", "strop", "verl", "ppo", "--here", *words],
        env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    steps = [row for row in map(json.loads, lines) if row["step"]]
    per_version, updates = (2, 1) if mode == "separate_async" else (1, 2)
    assert [step["step"] for step in steps] == list(range(1, 2 * per_version + 1))
    assert all(step["updates"] == updates for step in steps)
    assert all(step["staleness/max"] <= 2 * per_version - 1 for step in steps)
