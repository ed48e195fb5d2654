"""Run files with stages: each stage overrides the rest of the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from strop.config.load.loader import LoadedRun, load_run
from strop.config.preflight import missing_files
from strop.errors import ConfigError

from .refused import assert_refused

FILE = """\
name: two
model: {path: m, lora: {rank: 8}}
data: {train: {path: t.jsonl, answer: a}}
reward: exact
algorithm: {type: grpo, rollouts_per_task: 4}
trainer: {duration: 10 steps, tasks_per_step: 8}
stages:
  - name: warm-up
    algorithm: sft
    reward: null
    data: {train: {response: answer}}
    trainer: {duration: 3 steps}
  - name: rl
"""


def load(tmp_path: Path, text: str = FILE, *overrides: str) -> LoadedRun:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    return load_run(path, overrides)


def test_a_stage_overrides_the_file_and_starts_from_the_previous_model(tmp_path: Path) -> None:
    loaded = load(tmp_path)
    warm_up, rl = (stage.run for stage in loaded.stages)
    assert (warm_up.name, rl.name) == ("two-warm-up", "two-rl")
    assert (warm_up.algorithm.type, rl.algorithm.type) == ("sft", "grpo")
    assert warm_up.data.train.response == "answer" and warm_up.data.train.path == "t.jsonl"
    assert warm_up.reward.is_empty and not rl.reward.is_empty
    assert str(warm_up.trainer.duration) == "3 steps" and warm_up.trainer.tasks_per_step == 8
    assert (warm_up.model.path, rl.model.path) == ("m", "runs/strop/two-warm-up/model")
    assert warm_up.model.lora == rl.model.lora
    assert rl.data.train.response is None
    first, last = (stage.sources for stage in loaded.stages)
    assert first["trainer.duration"].location.endswith("run.yaml:12")
    assert last["trainer.duration"].location.endswith("run.yaml:6")
    assert str(last["model.path"]) == "the model of stage warm-up"
    assert loaded.run.name == "two-rl", "the run of the last stage"


def test_overrides_reach_the_file_and_one_stage(tmp_path: Path) -> None:
    loaded = load(tmp_path, FILE, "trainer.duration=20 steps", "stages.1.trainer.tasks_per_step=4")
    trainers = [stage.run.trainer for stage in loaded.stages]
    assert [str(each.duration) for each in trainers] == ["3 steps", "20 steps"]
    assert [each.tasks_per_step for each in trainers] == [8, 4]
    with pytest.raises(ConfigError, match="did you mean 'duration'"):
        load(tmp_path, FILE, "stages.1.trainer.duraton=4 steps")


def test_a_stage_with_its_own_model_and_a_folder(tmp_path: Path) -> None:
    named, folder = FILE.replace("  - name: rl", "  - name: rl\n    model: {path: other}"), tmp_path / "all"
    stages = load(tmp_path, f"folder: {folder}\n{named}").stages
    assert [stage.run.folder_path for stage in stages] == [folder / "warm-up", folder / "rl"]
    assert stages[1].run.model.path == "other"


def test_only_the_first_model_must_exist_before_the_start(tmp_path: Path) -> None:
    text = FILE.replace("path: m,", f"path: {tmp_path / 'no-such-model'},")
    warm_up, rl = load(tmp_path, text).stages
    assert any("no model folder" in fault for fault in missing_files(warm_up))
    assert not any("model folder" in fault for fault in missing_files(rl))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("name: rl", "name: warm-up", "13: stages.1.name: 'warm-up' is the name of another stage too"),
        ("name: rl", "mode: both", "stages.1.name: expected a name"),
        ("name: rl", "name: a/b", "stages.1.name: 'a/b' ... cannot be the name"),
        ("name: two", f"name: {'x' * 93}", "101 characters) cannot be the name of a file"),
        ("algorithm: sft", "algoritm: sft", "run.yaml:9: stages.0.algoritm: unknown key; did you mean"),
        ("algorithm: sft", "output: here", "stages.0.output: a stage cannot set this key"),
        ("duration: 3 steps", "duraton: 3 steps", "run.yaml:12: trainer.duraton: unknown key"),
        ("  - name: rl\n", "  - rl\n", "expected a list of stages"),
    ],
)
def test_invalid_stages_are_refused_with_their_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert_refused(lambda: load(tmp_path, FILE.replace(old, new)), message)
