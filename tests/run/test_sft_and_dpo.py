"""Runs of SFT, DPO and mix: they learn, and are evaluated by their losses and by rewards."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import strop
from strop.config.schema.model import ModelConfig
from strop.report.build import write_report
from strop.run.optimize.logprobs import _digest
from strop.runs.reader import read_run
from strop.runs.samples import choose_samples
from strop.training.engine import PolicyEngine
from strop.training.trained_models import PolicyModel
from tests.models.models import experience

from .conftest import DIGITS, write_rows
from .results import checkpoint, rows_of, train, trained_rows

SHORT = {"trainer__duration": "1 steps"}
LOSS, REWARD = "eval/held-out/loss", "eval/held-out/reward"


def held_out(rows: list[dict], name: str = LOSS) -> list[float]:
    return [row[name] for row in rows if name in row]


@pytest.fixture
def texts(offline, tmp_path: Path):
    """The values of a small run on plain text, and the texts."""
    lines = [f"max {a} {b} is {max(a, b)}" for a, b in DIGITS]
    path = str(write_rows(tmp_path / "texts.jsonl", [{"body": line} for line in lines]))

    def make(**changes):
        run = offline("sft", **changes)
        run["data"]["train"] = {"path": path, "text": "body"}
        run["data"]["eval"] = [{"name": "held-out", "path": path, "text": "body", "answer": None}]
        return run, lines

    return make


def test_sft_lowers_the_held_out_loss_and_leaves_a_model(offline):
    result = train(offline("sft", trainer__duration="10 steps", trainer__optimizer__lr=1e-2))
    measured = held_out(rows_of(result.folder))
    assert measured[-1] < 0.6 * measured[0]
    AutoModelForCausalLM.from_pretrained(result.model)


def test_continued_pretraining_is_next_token_prediction_without_a_template(texts, tmp_path):
    """A base model has no chat template, and needs none."""
    run, lines = texts(trainer__duration="10 steps", trainer__optimizer__lr=5e-3)
    model = AutoModelForCausalLM.from_pretrained(run["model"]["path"], dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(run["model"]["path"])
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path / "base")
    run["model"]["tokenizer"] = str(tmp_path / "base")
    measured = held_out(trained_rows(run))
    total, count = 0.0, 0
    for line in lines:
        ids = torch.tensor([tokenizer(line + tokenizer.eos_token)["input_ids"]])
        with torch.no_grad():
            total += model(ids, labels=ids).loss.item() * (ids.shape[1] - 1)
        count += ids.shape[1] - 1
    assert measured[0] == pytest.approx(total / count, rel=1e-4)
    assert measured[-1] < 0.7 * measured[0]


def test_a_text_has_no_prompt_to_sample_from(texts, values):
    run, _ = texts(**SHORT)
    row = trained_rows(run | {"reward": values()["reward"]})[-1]
    assert LOSS in row and REWARD not in row


def test_completions_are_sampled_for_the_eval_tasksets_that_have_a_reward(offline):
    run = offline("sft", **SHORT)
    (given,) = run["data"]["eval"]
    sampled = {"name": "sampled", "path": given["path"], "answer": "better", "limit_tasks": 4}
    run["data"]["eval"] = [given, sampled | {"reward": "exact"}]
    row = trained_rows(run)[-1]
    assert {name for name in row if name.endswith(("/loss", "/reward"))} == {LOSS, "eval/sampled/reward"}
    run |= {"reward": "exact", "name": "both"}
    run["data"]["eval"] = [given | {"answer": "better"}]
    assert {LOSS, REWARD} <= trained_rows(run)[-1].keys()
    assert {LOSS, REWARD} <= set(strop.evaluate(strop.load(run)))


def test_dpo_widens_the_margin(offline):
    folder = train(offline("dpo", trainer__duration="12 steps", trainer__optimizer__lr=5e-3)).folder
    first, *_, last = (row for row in rows_of(folder) if LOSS in row)
    assert first[LOSS] == pytest.approx(0.6931, abs=1e-3)
    assert first["eval/held-out/pairs/margin"] == pytest.approx(0, abs=1e-4)
    assert last["eval/held-out/pairs/margin"] > 0.1
    assert last["eval/held-out/pairs/accuracy"] > 0.7
    (shown,) = choose_samples(read_run(folder))
    labels = [[answer.label for answer in sample.answers] for sample in shown.samples]
    assert labels == [["chosen", "rejected"]] * 3
    sample = shown.samples[0]
    assert "max 0 1" in sample.prompt and [answer.text[:1] for answer in sample.answers] == ["1", "0"]
    assert "Training data" in write_report(folder).read_text()


def test_mix_learns_from_both(values, pairs):
    run = values(
        algorithm={"type": "mix", "rollouts_per_task": 2, "mu": 0.5, "expert_fraction": 0.2},
        data__demonstrations=[{"path": str(pairs), "response": "better"}],
        data__eval=[],
        evaluate={},
        trainer__duration="6 steps",
        trainer__optimizer__lr=1e-2,
    )
    first, *_, last = trained_rows(run)[1:]
    assert last["sft_loss"] < first["sft_loss"] - 0.5
    assert {"policy_loss", "reward/mean"} <= last.keys()
    assert last["loss"] == pytest.approx(0.5 * last["policy_loss"] + 0.5 * last["sft_loss"])


def test_the_first_update_is_that_of_hugging_face(offline, pairs):
    """Independent: cross entropy by transformers' own loss on padded rows, its norm by autograd."""
    run = offline("sft", trainer__tasks_per_update=8, data__shuffle=False, **SHORT)
    found = trained_rows(run)[1]
    tokenizer = AutoTokenizer.from_pretrained(run["model"]["path"])
    model = AutoModelForCausalLM.from_pretrained(run["model"]["path"])
    total, count = torch.zeros(()), 0
    for line in pairs.read_text().splitlines()[:8]:
        row = json.loads(line)
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": row["prompt"]}], add_generation_prompt=True, return_dict=False
        )
        answer = [*tokenizer.encode(row["better"]), tokenizer.eos_token_id]
        labels = torch.tensor([[-100] * len(prompt) + answer])
        total = total + model(input_ids=torch.tensor([[*prompt, *answer]]), labels=labels).loss * len(answer)
        count += len(answer)
    loss = total / count
    loss.backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    assert found["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert found["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)


@pytest.mark.parametrize(
    ("kind", "measured"), [("sft", ("loss",)), ("dpo", ("loss", "pairs/margin", "pairs/accuracy"))]
)
def test_a_checkpoint_is_evaluated_by_its_loss_without_a_reward(offline, kind, measured):
    """With the run's own metrics; for dpo against the initial model."""
    loaded = strop.load(offline(kind, trainer__optimizer__lr=5e-3))
    names = [f"eval/held-out/{name}" for name in measured]
    before = strop.evaluate(loaded)
    folder = strop.train(loaded).folder
    first, *_, last = [row for row in rows_of(folder) if LOSS in row]
    after = strop.evaluate(loaded, checkpoint=checkpoint(folder, 4))
    assert [before[name] for name in names] == [first[name] for name in names]
    assert [after[name] for name in names] == [last[name] for name in names]
    assert after[LOSS] < before[LOSS]
    assert set(after) == {*names, "time/evaluate_seconds"}


def test_reference_logprobs_are_computed_once_for_the_whole_dataset(offline, monkeypatch):
    asked = []
    token_values = PolicyEngine.token_values

    def counted(self, experiences, quantity, **options):
        asked.extend(experiences)
        return token_values(self, experiences, quantity, **options)

    run = offline("dpo", trainer__duration="2 epochs", evaluate={}, data__eval=[])
    run["trainer"] |= {"tasks_per_step": 30, "tasks_per_update": 30}
    monkeypatch.setattr(PolicyEngine, "token_values", counted)
    train(run)
    assert sum(experience.role == "chosen" for experience in asked) == 90
    asked.clear()
    train(run, "trainer.duration=3 epochs")
    assert asked == []


def test_the_reference_moves_towards_the_policy(offline, monkeypatch):
    """TR-DPO by hand: after every second update, reference = 0.75 * policy + 0.25 * reference."""
    seen = []
    sync = PolicyModel.sync_reference

    def watched(self, policy_weight):
        def copied(model):
            return {name: weight.detach().clone() for name, weight in model.named_parameters()}

        before, policy = copied(self._synced_reference), copied(self.master)
        sync(self, policy_weight)
        for name, weight in copied(self._synced_reference).items():
            torch.testing.assert_close(weight, 0.25 * before[name] + 0.75 * policy[name])
        seen.append(policy_weight)

    monkeypatch.setattr(PolicyModel, "sync_reference", watched)
    run = offline("dpo", trainer__optimizer__lr=5e-3, trainer__duration="5 steps")
    run["algorithm"]["reference_sync"] = {"every_updates": 2, "policy_weight": 0.75}
    run["trainer"]["tasks_per_update"] = 8
    moved = trained_rows(run)
    assert seen == [0.75, 0.75]
    run["algorithm"]["reference_sync"] = None
    still = trained_rows(run | {"name": "still"})
    assert [row["loss"] for row in moved[1:3]] == pytest.approx([row["loss"] for row in still[1:3]], rel=1e-5)
    assert abs(moved[3]["pairs/margin"]) < abs(still[3]["pairs/margin"])


@pytest.mark.parametrize("changed", ["token_ids", "loss_mask"])
def test_reference_logprobs_of_other_rows_are_not_used(changed: str) -> None:
    first = experience([1, 2], [3, 4])
    values = getattr(first, changed).copy()
    values[-1] = not values[-1]
    model = ModelConfig(path="model")
    assert _digest([first], model) == _digest([replace(first, id="other")], model)
    assert _digest([first], model) != _digest([replace(first, **{changed: values})], model)
