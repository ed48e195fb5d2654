"""Runs of SFT, DPO and mix: they learn, resume bit for bit, and refuse settings without effect."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import strop
from strop.errors import ConfigError, DataError, Interrupted
from strop.report.build import write_report
from strop.run.optimize.offline_updater import OfflineUpdater
from strop.runs.reader import read_run
from strop.runs.samples import choose_samples
from strop.training.backends.local import LocalEngine
from tests.run.test_kill import not_timing


@pytest.fixture(scope="session")
def pairs(tiny: Path) -> Path:
    """The larger digit is the better answer, the smaller one the worse."""
    path = tiny / "pairs.jsonl"
    digits = [(a, b) for a in range(10) for b in range(10) if a != b]
    rows = [{"prompt": f"max {a} {b}", "better": str(max(a, b)), "worse": str(min(a, b))} for a, b in digits]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def offline(values, pairs):
    """The values of a small sft or dpo run."""

    def make(kind: str, **changes):
        run = values(rollout=None, reward=None, algorithm={"type": kind}, **changes)
        del run["rollout"], run["reward"]
        columns = {"response": "better"} if kind == "sft" else {"chosen": "better", "rejected": "worse"}
        run["data"]["train"] = {"path": str(pairs), **columns}
        run["data"]["eval"] = [{"name": "held-out", "path": str(pairs), "limit_tasks": 20, **columns}]
        run["record"].pop("rollouts_every")
        return run

    return make


def train(values):
    return strop.train(strop.load(values))


def rows(folder: Path) -> list[dict]:
    return [not_timing(json.loads(line)) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def weights(folder: Path) -> bytes:
    return (folder / "model" / "model.safetensors").read_bytes()


def test_sft_lowers_the_held_out_loss_and_leaves_a_model(offline):
    result = train(offline("sft", trainer__duration="20 steps", trainer__optimizer__lr=5e-3))
    measured = [row["eval/held-out/loss"] for row in rows(result.folder) if "eval/held-out/loss" in row]
    assert measured[-1] < 0.6 * measured[0]
    AutoModelForCausalLM.from_pretrained(result.model)


@pytest.fixture
def texts(offline, tmp_path: Path):
    """The values of a small run on plain text, and the texts."""
    lines = [f"max {a} {b} is {max(a, b)}" for a in range(10) for b in range(10)]
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"body": line}) + "\n" for line in lines))

    def make(**changes):
        run = offline("sft", **changes)
        run["data"]["train"] = {"path": str(path), "text": "body"}
        run["data"]["eval"] = [{"name": "held-out", "path": str(path), "text": "body", "answer": None}]
        return run, lines

    return make


def test_continued_pretraining_is_next_token_prediction_without_a_template(texts, tiny):
    run, lines = texts(trainer__duration="10 steps", trainer__optimizer__lr=5e-3)
    model = AutoModelForCausalLM.from_pretrained(run["model"]["path"], dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(run["model"]["path"])
    result = train(run)
    measured = [row["eval/held-out/loss"] for row in rows(result.folder) if "eval/held-out/loss" in row]
    total, count = 0.0, 0
    for line in lines:
        ids = torch.tensor([tokenizer(line)["input_ids"]])
        with torch.no_grad():
            total += model(ids, labels=ids).loss.item() * (ids.shape[1] - 1)
        count += ids.shape[1] - 1
    assert measured[0] == pytest.approx(total / count, rel=1e-4)
    assert measured[-1] < 0.7 * measured[0]


def test_a_text_has_no_prompt_to_sample_from(texts, values):
    run, _ = texts(trainer__duration="1 steps")
    run["reward"] = values()["reward"]
    measured = {name for name in rows(train(run).folder)[-1] if name.endswith(("/loss", "/reward"))}
    assert "eval/held-out/loss" in measured and "eval/held-out/reward" not in measured
    run["data"]["eval"][0]["reward"] = "exact"
    with pytest.raises(ConfigError, match="reward has no effect next to text"):
        strop.load(run)


def test_a_base_model_needs_no_chat_template_for_plain_text(texts, tmp_path):
    run, _ = texts(trainer__duration="1 steps")
    tokenizer = AutoTokenizer.from_pretrained(run["model"]["path"])
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path / "base")
    run["model"]["tokenizer"] = str(tmp_path / "base")
    train(run)


def test_columns_next_to_a_text_are_refused(texts):
    run, _ = texts()
    run["data"]["train"]["response"] = "body"
    with pytest.raises(ConfigError, match=r"data\.train\.response has no effect"):
        strop.load(run)


def test_sft_evaluates_sampled_completions_with_a_reward(offline, values):
    run = offline("sft")
    run["reward"] = values()["reward"]
    run["data"]["eval"][0]["answer"] = "better"
    row = rows(train(run).folder)[-1]
    assert {"eval/held-out/loss", "eval/held-out/reward"} <= row.keys()


def test_sft_samples_only_for_the_eval_taskset_that_has_a_reward(offline):
    run = offline("sft", trainer__duration="1 steps")
    (given,) = run["data"]["eval"]
    sampled = {"name": "sampled", "path": given["path"], "answer": "better", "limit_tasks": 4}
    run["data"]["eval"] = [given, sampled | {"reward": "exact"}]
    measured = {name for name in rows(train(run).folder)[-1] if name.endswith(("/loss", "/reward"))}
    assert measured == {"eval/held-out/loss", "eval/sampled/reward"}


def test_dpo_widens_the_margin(offline):
    result = train(offline("dpo", trainer__duration="20 steps", trainer__optimizer__lr=3e-3))
    first, *_, last = (row for row in rows(result.folder) if "eval/held-out/loss" in row)
    assert first["eval/held-out/loss"] == pytest.approx(0.6931, abs=1e-3)
    assert first["eval/held-out/dpo/margin"] == pytest.approx(0, abs=1e-4)
    assert last["eval/held-out/dpo/margin"] > 0.1
    assert last["eval/held-out/dpo/accuracy"] > 0.7
    (shown,) = choose_samples(read_run(result.folder))
    assert [[answer.label for answer in sample.answers] for sample in shown.samples] == [
        ["chosen", "rejected"]
    ] * 3
    first = shown.samples[0]
    assert "max 0 1" in first.prompt and [answer.text[:1] for answer in first.answers] == ["1", "0"]
    assert "Training data" in write_report(result.folder).read_text()


@pytest.mark.slow
def test_mix_learns_from_both(values, pairs):
    run = values(
        algorithm={"type": "mix", "rollouts_per_task": 4, "mu": 0.5, "expert_fraction": 0.2},
        data__demonstrations=[{"path": str(pairs), "response": "better"}],
        trainer__duration="12 steps",
        trainer__optimizer__lr=3e-3,
    )
    found = rows(train(run).folder)[1:]
    assert found[-1]["sft_loss"] < found[0]["sft_loss"] - 0.5
    assert {"policy_loss", "reward/mean"} <= found[-1].keys()
    assert found[-1]["loss"] == pytest.approx(0.5 * found[-1]["policy_loss"] + 0.5 * found[-1]["sft_loss"])


def test_the_first_update_is_that_of_hugging_face(offline, pairs):
    """Independent: cross entropy by transformers' own loss on padded rows, its norm by autograd."""
    run = offline("sft", trainer__duration="1 steps", trainer__tasks_per_update=8)
    run["data"]["shuffle"] = False
    found = rows(train(run).folder)[1]
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


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sft", "dpo", "mix"])
def test_a_resumed_run_equals_an_uninterrupted_one(kind, offline, values, pairs):
    """Bit for bit, with LoRA's dropout; the reference of dpo is the initial model."""

    def make(name: str, duration: str):
        changes = {"name": name, "trainer__duration": duration}
        if kind == "mix":
            run = values(**changes, algorithm={"type": "mix", "rollouts_per_task": 2})
            run["data"]["demonstrations"] = [{"path": str(pairs), "response": "better"}]
        else:
            run = offline(kind, **changes)
        run["model"]["lora"] = {"rank": 4, "dropout": 0.1}
        return run

    whole = train(make("whole", "6 steps"))
    train(make("parts", "2 steps"))
    parts = train(make("parts", "6 steps"))
    last = [row for row in rows(parts.folder) if row["step"] > 2]
    assert last == [row for row in rows(whole.folder) if row["step"] > 2]
    assert weights(parts.folder) == weights(whole.folder)


@pytest.mark.parametrize(
    ("kind", "measured"), [("sft", ("loss",)), ("dpo", ("loss", "dpo/margin", "dpo/accuracy"))]
)
def test_a_checkpoint_is_evaluated_by_its_loss_without_a_reward(offline, kind, measured):
    """With the run's own metrics; for dpo against the initial model."""
    loaded = strop.load(offline(kind, trainer__optimizer__lr=5e-3))
    names = [f"eval/held-out/{name}" for name in measured]
    before = strop.evaluate(loaded)
    result = strop.train(loaded)
    first, *_, last = [row for row in rows(result.folder) if names[0] in row]
    (checkpoint,) = (result.folder / "checkpoints").glob("step-000004")
    after = strop.evaluate(loaded, checkpoint=checkpoint)
    assert [before[name] for name in names] == [first[name] for name in names]
    assert [after[name] for name in names] == [last[name] for name in names]
    assert after[names[0]] < before[names[0]]
    assert set(after) == {*names, "time/evaluate_seconds"}


def test_evaluate_samples_completions_with_a_reward(offline, tiny):
    run = offline("sft") | {"reward": "exact"}
    run["data"]["eval"][0] |= {"answer": "better"}
    assert {"eval/held-out/loss", "eval/held-out/reward"} <= set(strop.evaluate(strop.load(run)))


def test_an_eval_taskset_that_cannot_be_evaluated_is_refused(offline, tiny):
    run = offline("sft")
    run["data"]["eval"] = [{"name": "bare", "path": str(tiny / "tasks.jsonl")}]
    with pytest.raises(ConfigError, match=r"data\.eval \(bare\): there is no way to evaluate it"):
        strop.evaluate(strop.load(run))


def test_a_stop_saves_the_state_and_the_next_start_resumes(offline, monkeypatch):
    """A signal between steps: `Interrupted`, with the state saved."""
    update = OfflineUpdater.update

    def stopped(self, batch, *, step, updates_done):
        if step == 4:
            raise Interrupted("Stopped by SIGTERM.", 15)
        return update(self, batch, step=step, updates_done=updates_done)

    whole = train(offline("sft", name="whole"))
    monkeypatch.setattr(OfflineUpdater, "update", stopped)
    with pytest.raises(Interrupted, match="after step 3"):
        train(offline("sft", name="stopped"))
    monkeypatch.undo()
    assert weights(train(offline("sft", name="stopped")).folder) == weights(whole.folder)


@pytest.mark.slow
def test_reference_logprobs_are_computed_once_for_the_whole_dataset(offline, monkeypatch):
    asked = []
    logprobs = LocalEngine.logprobs

    def counted(self, experiences, **options):
        asked.extend(experiences)
        return logprobs(self, experiences, **options)

    run = offline("dpo", trainer__duration="3 epochs", evaluate={"at_start": False})
    run["data"]["eval"] = []
    monkeypatch.setattr(LocalEngine, "logprobs", counted)
    train(run)
    assert sum(experience.role == "chosen" for experience in asked) == 90
    asked.clear()
    train(run | {"trainer": run["trainer"] | {"duration": "4 epochs"}})
    assert asked == []


@pytest.mark.parametrize(
    ("kind", "change", "says"),
    [
        ("sft", {"algorithm__rollouts_per_task": 4}, "rollouts_per_task: unknown key.*has no effect.*sft"),
        ("sft", {"data__train__response": None}, r"data.train.response: missing.*sft needs the column"),
        ("sft", {"data__train__chosen": "better"}, r"data.train.chosen has no effect under algorithm sft"),
        (
            "sft",
            {"data__demonstrations": [{"path": "x", "response": "y"}]},
            r"\(answers\) is not used",
        ),
        ("sft", {"trainer__epochs_per_step": 2}, r"trainer.epochs_per_step .* 3 epochs"),
        ("sft", {"rollout": {"sampling": {"top_k": 5}}}, r"rollout.sampling has no effect"),
        ("sft", {"record__rollouts_every": "2 steps"}, r"record.rollouts_every has no effect"),
        ("sft", {"reward": "exact", "data__eval": []}, r"reward has no effect under algorithm sft"),
        ("sft", {"data__overlong": "middle"}, r"data.overlong: middle"),
        ("sft", {"data__tokenize_workers": 2}, r"data.tokenize_workers has no effect"),
        ("sft", {"data__eval": [{"path": "x"}]}, r"data.eval \(eval\): there is no way to evaluate it"),
        ("dpo", {"data__train__rejected": None}, r"data.train.rejected: missing"),
        ("dpo", {"data__train__response": "better"}, r"data.train.response has no effect"),
        ("dpo", {"algorithm__beta": 0}, r"beta: .*greater than 0"),
    ],
)
def test_settings_without_effect_are_refused_before_loading(offline, kind, change, says):
    run = offline(kind)
    for path, value in change.items():
        *parents, last = path.split("__")
        section = run
        for parent in parents:
            section = section.setdefault(parent, {})
        section[last] = value
    with pytest.raises(ConfigError, match=says):
        train(run)
    assert not Path(run["output"]).exists()


def test_mix_without_an_expert_and_grpo_with_answers_are_refused(values):
    with pytest.raises(ConfigError, match=r"data.demonstrations: missing. algorithm.expert names a set"):
        train(values(algorithm={"type": "mix"}))
    with pytest.raises(ConfigError, match=r"data.train.response has no effect under algorithm grpo"):
        train(values(data__train__response="answer"))


def test_a_row_without_a_rejected_answer_is_named(offline, tmp_path):
    run = offline("dpo")
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"prompt": "a", "better": "b", "worse": "c"}\n{"prompt": "a", "better": "b"}\n')
    run["data"]["train"]["path"] = str(bad)
    with pytest.raises(DataError, match=r"bad.jsonl line 2 has no 'worse'"):
        train(run)
