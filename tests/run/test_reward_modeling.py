"""Reward models: trained from pairs and from scores, and used as the reward and as the critic's start of other runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import AutoPeftModelForSequenceClassification
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from strop.config.schema.reward import RewardModelConfig
from strop.inference.reward_model import RewardModel
from strop.models.library_settings import silence_transformers
from strop.report.build import read_score_sections, write_report
from strop.runs.folder import RunFolder
from strop.types import Rollout, Task

from .conftest import DIGITS, Values, write_rows
from .results import rows_of, train, trained_rows

HELD_OUT = "eval/held-out"
LEARNS = {"trainer__duration": "20 steps", "trainer__optimizer__lr": 1e-2}


@pytest.fixture
def scored(offline: Values, tmp_path: Path) -> Values:
    """The values of a small run on responses with a score: the digit, in ninths."""
    rows = [
        {"prompt": f"max {a} {b}", "response": str(answer), "score": answer / 9}
        for a, b in DIGITS
        if a != b
        for answer in (a, b)
    ]
    path = str(write_rows(tmp_path / "scored.jsonl", rows))

    def make(**changes: Any) -> dict[str, Any]:
        run = offline("reward_model", algorithm={"type": "reward_model", "loss": "squared_error"}, **changes)
        columns = {"path": path, "response": "response", "score": "score"}
        run["data"]["train"] = columns
        run["data"]["eval"] = [{"name": "held-out", "limit_tasks": 40, **columns}]
        return run

    return make


def reward_of(path: Path, pairs: list[tuple[str, str]]) -> list[float]:
    """Scores of prompts with responses, as a run's reward computes them."""
    model = RewardModel(RewardModelConfig(path=str(path)), torch.device("cpu"))
    found = []
    for prompt, text in pairs:
        task = Task("0", ({"role": "user", "content": prompt},), None)
        rollout = Rollout("r", "0", "0", 0, (), text, (), "ok")
        (score,) = model.score([(task, rollout)])
        assert isinstance(score, float)
        found.append(score)
    return found


def test_it_learns_from_pairs_and_the_reward_of_other_runs_is_what_it_learned(
    offline: Values, values: Values, tmp_path: Path
) -> None:
    trained = train(offline("reward_model", trainer__duration="80 steps", trainer__optimizer__lr=1e-3))
    rows = [row for row in rows_of(trained.folder) if f"{HELD_OUT}/loss" in row]
    assert rows[0][f"{HELD_OUT}/loss"] == pytest.approx(np.log(2))  # a head of zeros
    assert rows[-1][f"{HELD_OUT}/pairs/accuracy"] > 0.9 and rows[-1][f"{HELD_OUT}/loss"] < 0.3
    folder = Path(trained.model)
    held_out = [(a, b) for a, b in DIGITS if a != b][:20]
    better = reward_of(folder, [(f"max {a} {b}", str(max(a, b))) for a, b in held_out])
    worse = reward_of(folder, [(f"max {a} {b}", str(min(a, b))) for a, b in held_out])
    margins = np.array(better) - np.array(worse)
    assert rows[-1][f"{HELD_OUT}/pairs/margin"] == pytest.approx(margins.mean(), rel=1e-4)
    assert rows[-1][f"{HELD_OUT}/pairs/accuracy"] == (margins > 0).mean()
    (section,) = read_score_sections(RunFolder(trained.folder))
    counts = np.array([each.counts for each in section.bins])
    assert list(section.kinds) == ["chosen", "rejected"] and counts.sum(0).tolist() == [20, 20]
    gaps = [each.rows * (each.percents[1] - each.percents[0]) for each in section.calibration]
    assert rows[-1][f"{HELD_OUT}/pairs/calibration_error"] == pytest.approx(sum(map(abs, gaps)) / 2000)
    assert "Calibration on held-out, step 80" in write_report(trained.folder).read_text()

    learned = {"models": [{"path": str(folder), "name": "learned"}]}
    rewarded = values(name="grpo", reward=learned, trainer__duration="1 steps")
    (row,) = [row for row in trained_rows(rewarded) if row["step"] == 1]
    assert np.isfinite(row["reward/mean"]) and row["updates"] == 2

    critic = {"model": {"path": str(folder)}, "head": "score", "optimizer": {"lr": 1e-3}}
    ppo = values(
        reward={"models": [{"path": str(folder)}]},
        algorithm={"type": "ppo", "critic": critic},
        trainer__duration="1 steps",
        name="ppo",
        data__eval=[],
        evaluate={},
    )
    (row,) = [row for row in trained_rows(ppo) if row["step"] == 1]
    assert row["critic/values"] != 0  # those of a new head are 0


@pytest.mark.parametrize(
    "model",
    [{}, {"lora": {"rank": 4, "alpha": 8}}, {"lora": {"rank": 4, "alpha": 8}, "compute_dtype": "bfloat16"}],
    ids=["full", "LoRA", "LoRA in bfloat16"],
)
def test_transformers_and_peft_load_the_exported_folder(offline: Values, model: dict[str, Any]) -> None:
    changes = {f"model__{key}": value for key, value in model.items()}
    trained = train(offline("reward_model", **LEARNS, **changes))
    folder = Path(trained.model)
    with silence_transformers():
        found, loading = AutoModelForSequenceClassification.from_pretrained(folder, output_loading_info=True)
    assert not loading["missing_keys"] and not loading["unexpected_keys"] and found.config.num_labels == 1
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": "max 3 5"}, {"role": "assistant", "content": answer}], tokenize=False
        )
        for answer in ("5", "3", "a longer one")
    ]
    batch = tokenizer(texts, add_special_tokens=False, padding=True, return_tensors="pt")
    with torch.no_grad():
        scores = found(**batch).logits[:, 0]
    expected = reward_of(folder, [("max 3 5", "5"), ("max 3 5", "3"), ("max 3 5", "a longer one")])
    assert scores.tolist() == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert scores[0] > scores[1]
    if model:
        adapted = AutoPeftModelForSequenceClassification.from_pretrained(folder / "adapter", num_labels=1)
        with torch.no_grad():
            torch.testing.assert_close(adapted(**batch).logits[:, 0], scores, rtol=1e-4, atol=1e-5)


def test_it_learns_scores(scored: Values) -> None:
    run = scored(trainer__duration="40 steps", trainer__optimizer__lr=3e-3)
    rows = [row for row in trained_rows(run) if f"{HELD_OUT}/loss" in row]
    assert rows[-1][f"{HELD_OUT}/loss"] < 0.5 * rows[0][f"{HELD_OUT}/loss"]
    assert rows[-1][f"{HELD_OUT}/reward_model/score_correlation"] > 0.8


def test_it_learns_labels_of_steps_and_its_reward_is_that_of_the_last_step(
    offline: Values, tmp_path: Path
) -> None:
    """A step that names a digit is correct where that is above 4."""
    rows = [
        {"prompt": f"max {a} {b}", "steps": [f"it is {a}", f"it is {b}"], "labels": [a > 4, b > 4]}
        for a, b in DIGITS
    ]
    columns = {"path": str(write_rows(tmp_path / "steps.jsonl", rows)), "steps": "steps", "label": "labels"}
    run = offline(
        "reward_model",
        algorithm={"type": "reward_model", "loss": "cross_entropy"},
        trainer__duration="30 steps",
        trainer__optimizer__lr=1e-2,
        data__max_response_tokens=64,
        data__train=columns,
        data__eval=[{"name": "held-out", "limit_tasks": 40, **columns}],
    )
    trained = train(run)
    measured = [row for row in rows_of(trained.folder) if f"{HELD_OUT}/loss" in row]
    assert measured[0][f"{HELD_OUT}/loss"] == pytest.approx(np.log(2))
    assert measured[-1][f"{HELD_OUT}/loss"] < 0.3
    assert measured[-1][f"{HELD_OUT}/reward_model/step_accuracy"] > 0.9
    responses = [("max 1 9", "it is 1\nit is 9"), ("max 9 1", "it is 9\nit is 1")]
    correct, wrong = reward_of(Path(trained.model), responses)
    assert correct > 0 > wrong


@pytest.mark.parametrize(
    "model", [{}, {"lora": {"rank": 4}, "compute_dtype": "bfloat16"}], ids=["full", "LoRA"]
)
def test_training_continues_from_a_reward_model(offline: Values, model: dict[str, Any]) -> None:
    first = train(offline("reward_model", **LEARNS))
    again = offline(
        "reward_model",
        name="again",
        model__path=str(first.model),
        algorithm={"type": "reward_model", "head": "score"},
        trainer__duration="1 steps",
        **{f"model__{key}": value for key, value in model.items()},
    )
    start, *_ = trained_rows(again)
    end = rows_of(first.folder)[-1]
    rounding = 0.05 if model else 1e-4
    assert start[f"{HELD_OUT}/loss"] == pytest.approx(end[f"{HELD_OUT}/loss"], rel=rounding)
