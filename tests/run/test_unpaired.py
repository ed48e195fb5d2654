"""Runs of KTO and BCO on labeled responses and on pairs: their updates, what they learn, and rows they refuse."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import strop
from strop.algorithms.reference_point import MismatchedKl
from strop.data.offline_dataset import load_offline_dataset
from strop.errors import DataError
from strop.report.build import write_report
from strop.run.check.stage_check import check_first_rows
from strop.run.optimize.policy_optimizer import mean_metrics
from strop.run.tokenizer import load_run_tokenizer
from strop.runs.reader import read_run
from strop.runs.samples import choose_samples
from strop.types import ImageReference
from tests.models.models import experience

from .conftest import write_rows
from .results import checkpoint, rows_of, train, trained_rows

LOSS = "eval/held-out/loss"
SGD = {"type": "sgd", "lr": 0.5}


@pytest.mark.parametrize("kind", ["kto", "bco"])
def test_the_labels_are_learned(offline, kind):
    folder = train(offline(kind, trainer__duration="12 steps", trainer__optimizer__lr=5e-3)).folder
    first, *_, last = (row for row in rows_of(folder) if LOSS in row)
    assert first["eval/held-out/labels/margin"] == pytest.approx(0, abs=1e-4)
    assert last["eval/held-out/labels/margin"] > 0.1
    assert last["eval/held-out/labels/accuracy"] > 0.7
    assert last[LOSS] < first[LOSS]
    (shown,) = choose_samples(read_run(folder))
    assert {answer.label for sample in shown.samples for answer in sample.answers} <= {
        "desirable",
        "undesirable",
    }
    assert "Margin between the two labels" in write_report(folder).read_text()


def test_the_updates_of_kto_are_those_of_hugging_face(offline, tiny):
    """Independent: padded sequences of transformers' model, mismatched by hand, and torch's SGD. The divergence of the
    second update is above 0."""
    run = offline(
        "kto", data__shuffle=False, trainer__duration="2 updates", trainer__optimizer=SGD, evaluate={}
    )
    run["algorithm"] |= {"beta": 0.3, "desirable_weight": 1.5, "undesirable_weight": 0.1}
    run["data"] |= {"eval": []}
    run["trainer"] |= {"max_grad_norm": None, "tasks_per_step": 6, "tasks_per_update": 6}
    found = [row for row in trained_rows(run) if "labels/reference_point" in row]
    assert len(found) == 2
    tokenizer = AutoTokenizer.from_pretrained(run["model"]["path"])
    model, frozen = (AutoModelForCausalLM.from_pretrained(run["model"]["path"]) for _ in range(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    rows = [json.loads(line) for line in (tiny / "labels.jsonl").read_text().splitlines()[:12]]

    def log_prob(of: Any, prompt: str, answer: str) -> torch.Tensor:
        messages = [{"role": "user", "content": prompt}]
        before = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        after = [*tokenizer.encode(answer), tokenizer.eos_token_id]
        logits = of(torch.tensor([[*before, *after]])).logits[0, len(before) - 1 : -1]
        return logits.log_softmax(-1)[range(len(after)), after].sum()

    def log_ratio(prompt: str, answer: str) -> torch.Tensor:
        with torch.no_grad():
            reference = log_prob(frozen, prompt, answer)
        return log_prob(model, prompt, answer) - reference

    for number, row in enumerate(found):
        update = rows[6 * number : 6 * number + 6]
        with torch.no_grad():
            ratios = [
                log_ratio(own["prompt"], other["completion"])
                for own, other in zip(update, [update[-1], *update[:-1]], strict=True)
            ]
        kl = torch.stack(ratios).mean().clamp(min=0)
        losses = []
        for each in update:
            sign, weight = (1, 1.5) if each["label"] else (-1, 0.1)
            ratio = log_ratio(each["prompt"], each["completion"])
            losses.append(weight * (1 - torch.sigmoid(sign * 0.3 * (ratio - kl))))
        loss = torch.stack(losses).mean()
        optimizer.zero_grad()
        loss.backward()
        assert row["labels/reference_point"] == pytest.approx(kl.item(), rel=1e-4, abs=1e-6)
        assert row["loss"] == pytest.approx(loss.item(), rel=1e-5)
        norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
        assert row["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
        optimizer.step()
    assert found[1]["labels/reference_point"] > 0


@pytest.mark.parametrize("kind", ["kto", "bco"])
def test_micro_batches_change_nothing_but_rounding(offline, kind):
    run = offline(kind, trainer__optimizer=SGD)
    whole, split = (
        trained_rows(run | {"name": name, "trainer": run["trainer"] | {"microbatch": size}})
        for name, size in (("whole", "4096 tokens"), ("split", "1 sequences"))
    )
    assert len(whole) == len(split)
    for one, other in zip(whole, split, strict=True):
        assert other == pytest.approx(one, rel=1e-3, abs=1e-5)


def test_the_running_mean_of_bco_is_over_all_responses_so_far(offline):
    folder = train(offline("bco", trainer__optimizer=SGD)).folder
    state = json.loads((checkpoint(folder, 4) / "state.json").read_text())["mean_log_ratio"]
    rows = [row for row in rows_of(folder) if "labels/reference_point" in row]
    assert state["count"] == 32 and rows[0]["labels/reference_point"] != rows[-1]["labels/reference_point"]


def test_a_checkpoint_is_evaluated_as_in_the_run(offline):
    """BCO's shift comes from the checkpoint, KTO's divergence is estimated again."""
    for kind in ("kto", "bco"):
        loaded = strop.load(offline(kind, name=kind, trainer__optimizer__lr=5e-3))
        folder = strop.train(loaded).folder
        last = [row for row in rows_of(folder) if LOSS in row][-1]
        found = strop.evaluate(loaded, checkpoint=checkpoint(folder, 4))
        names = [name for name in found if name.startswith("eval/")]
        assert len(names) == 3 and [found[name] for name in names] == [last[name] for name in names]


def test_a_pair_becomes_two_rows_the_desirable_ones_first(offline, tiny):
    loaded = strop.load(offline("bco"))
    found = load_offline_dataset(
        loaded.run.data.train,
        loaded.run.data,
        load_run_tokenizer(loaded.run),
        name="train",
        seed=1,
        shuffle=False,
        unpaired=True,
    )
    roles = [group.experiences[0].role for group in found.take(180)]
    assert roles == ["desirable"] * 90 + ["undesirable"] * 90
    assert len({group.id for group in found.all_groups()}) == 180


def labeled(path: Path, rows: list[tuple[str, str, Any]]) -> dict[str, str]:
    names = ("prompt", "completion", "label")
    write_rows(path, [dict(zip(names, row, strict=True)) for row in rows])
    return {"path": str(path), "response": "completion", "label": "label"}


GOOD = [("a", "b", True), ("c", "d", False), ("e", "f", 1), ("g", "h", 0)]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("a", "b", None), *GOOD], r"line 1: the label in the column 'label' is None; write true"),
        ([*GOOD, ("a", "b", "yes")], r"line 5: the label in the column 'label' is 'yes'; write true"),
        ([*GOOD, ("x", "y", 2)], r"line 5: the label .* is 2"),
        ([row for row in GOOD if row[2]] * 2, r"All 4 rows of train are labeled desirable"),
        (
            [*GOOD, ("a", "b", False)],
            r"line 1 and .* line 5 have the same prompt and response with both labels",
        ),
    ],
)
def test_rows_that_cannot_be_used_are_refused(offline, tmp_path, rows, message):
    run = offline("kto", data__train=labeled(tmp_path / "rows.jsonl", rows), data__eval=[], evaluate={})
    run["trainer"] |= {"tasks_per_step": 2, "tasks_per_update": 2}
    with pytest.raises(DataError, match=message):
        train(run)
    with pytest.raises(DataError, match=message):
        check_first_rows(strop.load(copy.deepcopy(run)).run)


def test_metrics_are_means_over_the_updates_that_have_them():
    assert mean_metrics([{"a": 1.0}, {"a": 3.0, "b": 2.0}]) == {"a": 2.0, "b": 2.0}


def test_the_estimate_of_kto_is_for_text_only(tmp_path):
    picture = ImageReference("0", tmp_path / "a.png", 1, 1)
    rows = [experience([1], [2], id="a"), experience([1], [3], id="b", media=(picture,))]
    with pytest.raises(DataError, match="The row b has images"):
        MismatchedKl(cast(Any, None), 8).of_evaluation(rows)


def test_contradictory_rows_are_filtered_and_counted(offline, tmp_path):
    train_rows = labeled(tmp_path / "rows.jsonl", [*GOOD, ("a", "b", False)]) | {"equal_pairs": "filter"}
    loaded = strop.load(offline("kto", data__train=train_rows, data__eval=[], evaluate={}))
    found = load_offline_dataset(
        loaded.run.data.train,
        loaded.run.data,
        load_run_tokenizer(loaded.run),
        name="train",
        seed=1,
        shuffle=False,
    )
    assert len(found) == 3
    assert "2 of 5 filtered, because equal responses have both labels" in str(found)
