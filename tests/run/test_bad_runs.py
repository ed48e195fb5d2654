"""Runs that are refused, and runs that fail: one clear paragraph, and nothing is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import strop
from strop.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    RewardError,
    RolloutError,
    RunFolderError,
    StropError,
    TrainingError,
)

from .conftest import Values, write_rows
from .mechanisms import PLATEAU
from .results import rows_of, train

HERE = Path(__file__).parent
REWARDS = HERE / "rewards.py"
BREAKS = f"{HERE / 'workflows.py'}:breaks"
ONE_TASK = {"trainer__tasks_per_step": 1, "trainer__tasks_per_update": 1}
LOMO = {"trainer__optimizer": {"type": "lomo", "lr": 1e-3}, "trainer__max_grad_norm": None}
KEEP = {"data__incomplete_batch": "keep"}
LATEST = {"backend": "checkpoint", "style": {"type": "latest"}}
AHEAD = {"type": "checkpoint", "style": {"type": "fixed", "max_lead": "2 steps"}}
STALE = {"type": "staleness", "max_staleness": "1 steps"}
WARM_UP = {"type": "warmup", "steps": "2 steps"}
CRITIC_WARM_UP = {"type": "ppo", "critic": {"warmup_steps": 2}}
ANSWERS = [{"path": "x", "response": "y"}]
TASKS = [{"path": "{tiny}/tasks.jsonl", "response": "answer"}]
EVEN = {"path": "x", "sources": ["even"]}
HELPER = {"url": "auxiliary", "model": "helper"}

REFUSED: list[tuple[dict[str, Any], str]] = [
    # Checkpoints
    ({"data__eval": [], "checkpoint__best": {}}, "checkpoint.best requires an evaluation, and there is none"),
    ({"checkpoint__best": {"metric": "reward"}}, "checkpoint.best.metric .reward. is not an evaluation metric"),
    ({"checkpoint__best": {"mode": "most"}}, "checkpoint.best.mode"),
    ({"checkpoint": {"async_save": True, "export": True}}, r"write export: false or async_save: false"),
    # Learning rate and optimizer
    ({"trainer__schedule": PLATEAU, "evaluate": {"every": "never"}}, "requires evaluations during the run"),
    ({"trainer__schedule": PLATEAU, "data__eval": []}, "requires evaluations during the run"),
    ({"trainer__schedule": {**PLATEAU, "metric": "reward/mean"}}, "starts with eval/held-out/"),
    ({"trainer__weight_decay_increase": {"start": 0.5}}, r"\(0\.5\) is above its final value, optimizer\.weight_decay"),
    (LOMO | {"trainer__max_grad_norm": 1.0}, "write max_grad_norm: null"),
    ({"trainer__optimizer": {"type": "adalomo"}}, "write max_grad_norm: null"),
    (LOMO | {"trainer__microbatch": "8 sequences"}, "microbatch: 16 sequences"),
    # Early end
    ({"evaluate__stop_when": {}}, "write value, patience or both"),
    ({"evaluate__stop_when": {"value": 1}, "evaluate__every": "never"}, "requires evaluations"),
    ({"evaluate__stop_when": {"value": 1, "metric": "eval/b/reward"}}, "is not an evaluation metric"),
    ({"evaluate__stop_when": {"value": 1}, "synchronizer": "checkpoint"}, "separate process"),
    # Order of tasks
    ({"data__order": {"type": "curriculum", "target": [0.8, 0.2]}}, "write two success rates from 0 to 1"),
    ({"data__order": {"type": "column"}}, "data.order.*column"),
    ({"data__order": {"type": "difficulty", "columns": ["a", "a"]}}, "columns names a column twice"),
    ({"data__order": {"type": "difficulty", "columns": ["a", "b"]}, **KEEP}, "difficulty has no incomplete steps"),
    ({"data__order": "curriculum", **KEEP}, "data.order curriculum has no incomplete steps"),
    ({"data__order": "curriculum", "synchronizer": LATEST, "buffer": {"type": "sql"}},
     "under synchronizer.style latest the next tasks are drawn before"),
    # Batch selection and demonstrations
    ({"trainer__batch_selection": WARM_UP}, "data.demonstrations: missing"),
    ({"data__demonstrations": ANSWERS}, r"\(answers\) is not used"),
    ({"trainer__batch_selection": STALE, "synchronizer": AHEAD}, "would drop whole steps"),
    ({"trainer__batch_selection": WARM_UP, "data__demonstrations": ANSWERS, "algorithm": CRITIC_WARM_UP},
     "critic.warmup_steps trains the critic on the rollouts"),
    # Algorithms
    ({"algorithm__critic": {}}, "critic"),
    ({"algorithm": {"type": "mix"}}, r"data.demonstrations: missing. algorithm.expert names a set"),
    ({"data__train__response": "answer"}, r"data.train.response has no effect under algorithm grpo"),
    ({"algorithm": {"type": "distillation", "distillation": {"teachers": [EVEN], "loss": {}}}},
     r"data\.train\.source: missing"),
    # Rewards, workflows, monitors, modes
    ({"reward": {"judges": [HELPER]}}, r"there is no 'helper' in rollout\.auxiliary_models"),
    ({"reward": {}, "rollout__workflow": "tools", "data__eval": []}, "reward: missing, so nothing scores"),
    ({"record": {"monitors": ["console"], "wandb": {"mode": "offline"}}},
     r"record\.wandb has options, but record\.monitors does not list wandb"),
    ({"mode": "bench", "data__eval": []}, r"mode: bench evaluates the eval tasksets, and there is none"),
    ({"bench": {"initial_model": False}}, r"bench has no effect in mode both"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "says"), REFUSED)
def test_what_a_run_cannot_have_is_refused_before_it_starts(
    values: Values, changes: dict[str, Any], says: str
) -> None:
    run = values(**changes)
    with pytest.raises(ConfigError, match=says):
        train(run)
    assert not Path(run["output"]).exists()


@pytest.mark.parametrize(
    ("kind", "changes", "says"),
    [
        ("sft", {"algorithm__rollouts_per_task": 4}, "rollouts_per_task: unknown key.*has no effect.*sft"),
        ("sft", {"data__train__response": None}, r"data.train.response: missing.*sft needs the column"),
        ("sft", {"data__train__chosen": "better"}, r"data.train.chosen has no effect under algorithm sft"),
        ("sft", {"data__demonstrations": ANSWERS}, r"\(answers\) is not used"),
        ("sft", {"trainer__epochs_per_step": 2}, r"trainer.epochs_per_step .* 3 epochs"),
        ("sft", {"rollout": {"sampling": {"top_k": 5}}}, r"rollout.sampling has no effect"),
        ("sft", {"record__rollouts_every": "2 steps"}, r"record.rollouts_every has no effect"),
        ("sft", {"record__sampled_groups": 2}, r"record.sampled_groups has no effect"),
        ("sft", {"reward": "exact", "data__eval": []}, r"reward has no effect under algorithm sft"),
        ("sft", {"data__overlong": "middle"}, r"data.overlong: middle"),
        ("sft", {"data__tokenize_workers": 2}, r"data.tokenize_workers has no effect"),
        ("sft", {"data__eval": [{"path": "x"}]}, r"data.eval \(eval\): there is no way to evaluate it"),
        ("sft", {"data__train": {"path": "x", "text": "t", "response": "t"}}, r"data\.train\.response has no effect"),
        (
            "sft",
            {"data__eval": [{"path": "x", "text": "t", "answer": None, "reward": "exact"}]},
            "reward has no effect next to text",
        ),
        ("dpo", {"data__train__rejected": None}, r"data.train.rejected: missing"),
        ("dpo", {"data__train__response": "better"}, r"data.train.response has no effect"),
        ("dpo", {"algorithm__beta": 0}, r"beta: .*greater than 0"),
    ],
)  # fmt: skip
def test_what_has_no_effect_on_answers_is_refused_before_it_starts(
    offline: Values, kind: str, changes: dict[str, Any], says: str
) -> None:
    run = offline(kind, **changes)
    with pytest.raises(ConfigError, match=says):
        train(run)
    assert not Path(run["output"]).exists()


REFUSED_AT_THE_START: list[tuple[dict[str, Any], type[StropError], str]] = [
    # No step is left after a warm-up
    ({"algorithm": CRITIC_WARM_UP, "trainer__duration": "2 steps"},
     ConfigError, r"warmup_steps \(2\) leaves none of the 2 steps"),
    ({"trainer__batch_selection": WARM_UP, "data__demonstrations": TASKS, "trainer__duration": "2 steps"},
     ConfigError, r"trainer.batch_selection.steps \(2\) leaves none of the 2 steps"),
    # Rewards, of a task that the message names
    ({"reward": f"{REWARDS}:raises"}, RolloutError, "(train|held-out):.*no such thing"),
    ({"reward": f"{REWARDS}:not_a_number"}, RolloutError, "(train|held-out):.*nan"),
    ({"reward": f"{REWARDS}:a_string"}, RolloutError, r"(train|held-out):.*'0\.5'"),
    ({"reward": {"functions": [{"function": f"{REWARDS}:hangs"}], "timeout_seconds": 0.3}, **ONE_TASK},
     RolloutError, r"0\.3"),
    ({"algorithm": {"type": "gigpo", "rollouts_per_task": 2}, "rollout__workflow": "single_turn"},
     ConfigError, "the workflow reported none"),
    ({"algorithm": {"type": "prime"}, "reward": {"functions": [{"function": f"{REWARDS}:length", "weight": 100}]}},
     RewardError, "reads the reward as the probability"),
    ({"algorithm": {"type": "grpo", "dynamic_sampling": {"metric": "even"}}, "reward": f"{REWARDS}:with_parts"},
     RewardError, r"has no component 'even'; it has with_parts, with_parts/even"),
    ({"reward": {"models": [{"path": "{tiny}/model"}]}},
     ConfigError, r"reward\.models\.0\.path: .* has 2 labels"),
    # Folders
    ({"resume": "{tiny}/nowhere"}, CheckpointError, "does not exist"),
    ({"resume": "{tiny}/empty"}, CheckpointError, "no good checkpoint"),
    ({"resume": "{finished}/strop/small", "algorithm": {"type": "ppo", "rollouts_per_task": 4}},
     CheckpointError, r"critic/weights\.safetensors"),
    ({"output": "{tiny}/tasks.jsonl/runs"}, ConfigError, r"cannot be created, because .*tasks\.jsonl is no folder"),
    ({"checkpoint__mirror": "nowhere://x"}, DataError, r"nowhere://x cannot be opened"),
    ({"checkpoint__mirror": "{tiny}/tasks.jsonl/in"}, CheckpointError, r"checkpoint\.mirror: .* cannot be created"),
]  # fmt: skip
FAILING_LATER: list[tuple[dict[str, Any], type[StropError], str]] = [
    # A server, or weights
    ({"reward": {"judges": [{"url": "http://127.0.0.1:9/v1", "model": "wise"}]}}, RewardError, "does not respond"),
    ({"resume": "{finished}/strop/small", "model__lora": {"rank": 4}}, CheckpointError, "weights of another model"),
    # Rollouts
    ({"reward": {}, "rollout__workflow": BREAKS, "data__eval": []}, RolloutError, "RuntimeError: no luck"),
    # Updates
    ({"trainer__optimizer__lr": 1e30, "trainer__max_grad_norm": None},
     TrainingError, r"Step 1: The loss of a micro-batch is nan.*no checkpoint yet"),
    ({"algorithm": {"type": "ppo", "critic": {"optimizer": {"lr": 1e30}, "max_grad_norm": None}}},
     TrainingError, r"algorithm\.critic\.optimizer\.lr"),
    (LOMO | {"trainer__microbatch": "60 tokens"},
     TrainingError, r"must be one micro-batch; this one holds \d+ of"),
    ({"trainer__schedule": {**PLATEAU, "metric": "eval/held-out/pass@9"}},
     TrainingError, r"pass@9, .* eval/held-out/reward"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "error", "says"), REFUSED_AT_THE_START + FAILING_LATER)
def test_a_run_that_fails_says_why_in_one_paragraph(
    values: Values, tiny: Path, finished: dict[str, Any], changes: dict[str, Any], error: Any, says: str
) -> None:
    (tiny / "empty" / "checkpoints").mkdir(parents=True, exist_ok=True)
    text = json.dumps(values(evaluate={"at_start": False, "every": "2 steps"}, **changes))
    text = text.replace("{tiny}", str(tiny)).replace("{finished}", finished["output"])
    with pytest.raises(error, match=says) as caught:
        train(json.loads(text))
    assert "\n\n" not in str(caught.value)


def test_failed_rollouts_are_counted_and_never_get_reward_zero(values: Values) -> None:
    run = values(rollout={"max_error_fraction": 0.5}, reward=f"{REWARDS}:breaks_on_some")
    rows = rows_of(train(run).folder)[1:]
    assert len(rows) == 4
    assert any(0 < row["rollouts/error_fraction"] < 0.5 for row in rows)


def test_a_run_folder_of_another_configuration_is_refused_and_kept(copied: dict[str, Any]) -> None:
    metrics = strop.load(copied).run.folder_path / "metrics.jsonl"
    before = metrics.read_text()
    with pytest.raises(RunFolderError, match=r"(?s)trainer\.optimizer\.lr.*resume: never"):
        train(copied, "trainer.optimizer.lr=5e-3")
    assert metrics.read_text() == before


def test_a_row_without_a_rejected_answer_is_named(offline: Values, tmp_path: Path) -> None:
    rows = [{"prompt": "a", "better": "b", "worse": "c"}, {"prompt": "a", "better": "b"}]
    bad = write_rows(tmp_path / "bad.jsonl", rows)
    with pytest.raises(DataError, match=r"bad.jsonl line 2 has no 'worse'"):
        train(offline("dpo", data__train__path=str(bad)))


def test_a_run_that_cannot_start_leaves_no_folder(values: Values, tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        train(values(reward=None))
    assert not (tmp_path / "runs").exists()
