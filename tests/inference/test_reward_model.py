"""Reward models, compared with transformers on one conversation at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from strop.config.schema.reward import RewardModelConfig
from strop.errors import ModelError
from strop.inference.reward_model import RewardModel
from strop.models.loading import silence_transformers
from strop.models.tiny import make_model
from strop.types import Rollout, Task
from tests.rewards.builders import group

CPU = torch.device("cpu")
TEXTS = ("yes", "no", "it depends on what you mean", "", "a much longer answer, of many more words than that")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with one label and a padding token."""
    path = make_model(
        tmp_path_factory.mktemp("reward") / "model", ["question and answer"], hidden_size=32, max_tokens=64
    )
    with silence_transformers(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForSequenceClassification.from_pretrained(path, num_labels=1)
        torch.nn.init.normal_(model.score.weight)
        model.save_pretrained(path)
    return path


def rollouts(*texts: str) -> list[tuple[Task, Rollout]]:
    made = group(list(texts))
    return [(made.task, rollout) for rollout in made.rollouts]


def transformers_scores(
    folder: Path, texts: tuple[str, ...] = TEXTS, attention: str | None = None
) -> list[float]:
    """Scores by transformers, one conversation at a time."""
    with silence_transformers():
        model = AutoModelForSequenceClassification.from_pretrained(folder, attn_implementation=attention)
        model.eval()
        tokenizer = AutoTokenizer.from_pretrained(folder)
    scores = []
    for task, rollout in rollouts(*texts):
        messages = [*task.messages, {"role": "assistant", "content": rollout.text}]
        ids = tokenizer.apply_chat_template(messages, return_tensors="pt", return_dict=True)["input_ids"]
        with torch.no_grad():
            scores.append(model(input_ids=ids).logits.item())
    return scores


@pytest.mark.parametrize("batch", ["1 sequences", "2 sequences", "70 tokens", "16384 tokens"])
def test_scores_equal_transformers_for_any_batch_size(folder: Path, batch: str) -> None:
    model = RewardModel(RewardModelConfig(path=str(folder), microbatch=batch), CPU)  # type: ignore[arg-type]
    expected = transformers_scores(folder)
    assert len(set(expected)) == len(TEXTS)
    assert model.score(rollouts(*TEXTS)) == pytest.approx(expected, abs=1e-5)
    assert model.score([]) == []


def test_scores_without_a_padding_token(folder: Path, tmp_path: Path) -> None:
    with silence_transformers():
        model = AutoModelForSequenceClassification.from_pretrained(folder)
        model.config.pad_token_id = None
        model.save_pretrained(tmp_path)
        AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path)
    ours = RewardModel(RewardModelConfig(path=str(tmp_path)), CPU).score(rollouts(*TEXTS))
    assert ours == pytest.approx(transformers_scores(tmp_path), abs=1e-5)


def test_chat_template_changes_the_score(folder: Path, tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}")
    plain = RewardModel(RewardModelConfig(path=str(folder)), CPU)
    other = RewardModel(RewardModelConfig(path=str(folder), chat_template=str(template)), CPU)
    assert other.score(rollouts("yes")) != pytest.approx(plain.score(rollouts("yes")))


def test_bfloat16(folder: Path) -> None:
    rounded = RewardModel(RewardModelConfig(path=str(folder), dtype="bfloat16"), CPU).score(rollouts(*TEXTS))
    assert rounded == pytest.approx(transformers_scores(folder), abs=0.1)
    assert rounded != pytest.approx(transformers_scores(folder), abs=1e-7)


def test_conversations_that_are_too_long(folder: Path) -> None:
    texts = ("short", "long " * 60)
    kept, broken = RewardModel(RewardModelConfig(path=str(folder)), CPU).score(rollouts(*texts))
    assert isinstance(kept, float)
    assert isinstance(broken, str) and "the limit is 64" in broken
    cut = {
        side: RewardModel(RewardModelConfig(path=str(folder), overlong=side), CPU).score(rollouts(*texts))  # type: ignore[arg-type]
        for side in ("left", "right")
    }
    assert cut["left"][0] == cut["right"][0] == pytest.approx(kept, abs=1e-5)
    assert cut["left"][1] != pytest.approx(cut["right"][1])


def test_nan_is_an_error_of_its_rollout(folder: Path, tmp_path: Path) -> None:
    with silence_transformers():
        model = AutoModelForSequenceClassification.from_pretrained(folder)
        torch.nn.init.constant_(model.score.weight, float("nan"))
        model.save_pretrained(tmp_path)
        AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path)
    (broken,) = RewardModel(RewardModelConfig(path=str(tmp_path)), CPU).score(rollouts("yes"))
    assert broken == "returned nan; a reward must be a finite number"


def test_two_labels_are_rejected(folder: Path, tmp_path: Path) -> None:
    with silence_transformers():
        AutoModelForSequenceClassification.from_pretrained(
            folder, num_labels=2, ignore_mismatched_sizes=True
        ).save_pretrained(tmp_path)
        AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path)
    with pytest.raises(
        ModelError, match=r"reward\.models \(mine\): .* has 2 labels \(LABEL_0, LABEL_1\), not 1"
    ):
        RewardModel(RewardModelConfig(path=str(tmp_path), name="mine"), CPU)


def test_a_language_model_is_rejected(tmp_path: Path) -> None:
    path = make_model(tmp_path / "model", ["question and answer"], hidden_size=32)
    with pytest.raises(ModelError, match="has 2 labels"):
        RewardModel(RewardModelConfig(path=str(path)), CPU)


def test_a_tokenizer_without_a_template_is_rejected(folder: Path, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="has no chat template; set chat_template"):
        RewardModel(RewardModelConfig(path=str(folder), tokenizer=str(tmp_path)), CPU)


def test_the_softcap_of_attention_scores_is_honored(tmp_path: Path) -> None:
    """transformers' default attention ignores it."""
    options: dict[str, Any] = {
        "attn_logit_softcapping": 0.5,
        "query_pre_attn_scalar": 8,
        "initializer_range": 0.5,
    }
    path = make_model(tmp_path / "model", ["question"], family="gemma2", hidden_size=32, **options)
    with silence_transformers(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForSequenceClassification.from_pretrained(path, num_labels=1)
        torch.nn.init.normal_(model.score.weight)
        model.save_pretrained(path)
    scores = RewardModel(RewardModelConfig(path=str(path)), CPU).score(rollouts(*TEXTS))
    assert scores == pytest.approx(transformers_scores(path, attention="eager"), abs=1e-3)
    assert scores != pytest.approx(transformers_scores(path, attention="sdpa"), abs=1e-2)
