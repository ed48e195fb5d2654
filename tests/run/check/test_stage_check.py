"""Checks of whole runs: stages, models of the hub, running processes, and the lines about them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import strop
from strop.errors import RunFolderError
from strop.reading import read_any
from strop.run.check.stage_check import StageCheck, check_stages
from strop.runs.folder import RunFolder
from strop.runs.lock import lock_run
from tests.run.conftest import Values

STAGED_CRITIC = """
project: t
name: staged
mode: both
checkpoint_root_dir: {folder}/checkpoints
algorithm: {{algorithm_type: ppo, repeat_times: 2}}
model: {{model_path: {tiny}/model, max_prompt_tokens: 32, max_response_tokens: 8}}
cluster: {{node_num: 1, gpu_per_node: 1}}
buffer:
  batch_size: 8
  total_steps: 2
  explorer_input:
    taskset: {{name: sums, path: {tiny}/tasks.jsonl, format: {{prompt_key: prompt, response_key: answer}}}}
  default_workflow_type: simple_workflow
  default_reward_fn_type: exact
stages:
- stage_name: warmup
  mode: train
  algorithm: {{algorithm_type: sft}}
  buffer:
    train_batch_size: 8
    total_steps: 1
    trainer_input:
      experience_buffer:
        {{name: s, storage_type: file, path: {tiny}/tasks.jsonl, format: {{prompt_key: prompt, response_key: answer}}}}
- stage_name: rl
"""


def test_a_critic_that_starts_from_the_model_of_an_earlier_stage(tiny: Path, tmp_path: Path) -> None:
    """Trinity's critic is the policy's model, which does not exist before the first stage has ended."""
    file = tmp_path / "staged.yaml"
    file.write_text(STAGED_CRITIC.format(folder=tmp_path, tiny=tiny))
    warmup, rl = check_stages(read_any(file, here=True).loaded)
    assert rl.run.model.path == rl.run.algorithm.critic.model.path == str(tiny / "model")  # type: ignore[union-attr]
    assert "train: columns, template and tokens of all 100 rows" in rl.findings.checked
    not_there = f"{warmup.stage.run.folder_path / 'model'}, which an earlier stage writes: not there yet"
    assert any(not_there in line for line in rl.findings.unchecked)


def check_of(run: dict[str, object]) -> StageCheck:
    (check,) = check_stages(strop.load(run))
    return check


def test_what_was_not_checked(values: Values, tmp_path: Path, tiny: Path) -> None:
    rows = [json.loads(line) for line in (tiny / "tasks.jsonl").read_text().splitlines()]
    many = tmp_path / "many.jsonl"
    many.write_text("".join(f"{json.dumps(row)}\n" for row in rows * 2))
    run = values(
        data__train__path=str(many),
        reward={
            "functions": [{"function": "exact"}],
            "judges": [{"url": "http://127.0.0.1:9/v1", "model": "wise"}],
        },
        rollout={"engine": {"type": "openai", "base_url": "http://127.0.0.1:9/v1", "model": "wise"}},
        mode="bench",
    )
    found = check_of(run).findings
    assert "train: columns, template and tokens of the first 100 of 200 rows" in found.checked
    unchecked = "\n".join(found.unchecked)
    for part in (
        "train: template and tokens of the 100 rows after these",
        "the judge judge: not asked",
        "rollout.engine: http://127.0.0.1:9/v1 was not contacted",
        "model: not loaded",
    ):
        assert part in unchecked, unchecked


def test_keys_of_several_nodes_are_refused_unless_torchrun_starts_the_run(values: Values) -> None:
    """The check does not know what will start the run."""
    several = {"trainer__elastic": {"min_ranks": 2}, "trainer__engine": {"type": "fsdp2", "ranks": 2}}
    found = check_of(values(reward="exact", **several)).findings
    assert any(
        "unless torchrun starts it, the run is refused: trainer.elastic.min_ranks" in a for a in found.advice
    )


def test_a_model_in_the_cache_of_the_hub_is_read(
    values: Values, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = tmp_path / "hub" / "models--owner--small" / "snapshots" / "abc"
    commit.parent.mkdir(parents=True)
    commit.symlink_to(tiny / "model")
    refs = commit.parents[1] / "refs"
    refs.mkdir()
    (refs / "main").write_text("abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    check = check_of(values(model__path="owner/small", reward="exact"))
    assert Path(check.run.model.path) == commit and check.stage.run.model.path == "owner/small"
    assert "train: columns, template and tokens of all 100 rows" in check.findings.checked
    assert (
        "the model owner/small of the Hugging Face hub: not loaded; in the cache"
        in check.findings.unchecked[0]
    )


def test_a_folder_that_another_process_uses(values: Values) -> None:
    loaded = strop.load(values(reward="exact"))
    folder = RunFolder.of(loaded.run)
    with (
        lock_run(folder, mode="both", is_distributed=False),
        pytest.raises(RunFolderError, match="is in use by process"),
    ):
        check_stages(loaded)
    check_stages(loaded)
