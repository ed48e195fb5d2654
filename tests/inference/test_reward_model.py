"""Reward models, compared with transformers on one conversation at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
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


def with_score(path: Path) -> Path:
    """Make the folder's model one with a random score."""
    with silence_transformers(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForSequenceClassification.from_pretrained(path, num_labels=1)
        torch.nn.init.normal_(model.score.weight)
        model.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with one label and a padding token."""
    path = tmp_path_factory.mktemp("reward") / "model"
    return with_score(make_model(path, ["question and answer"], hidden_size=32, max_tokens=64))


@pytest.fixture
def changed(folder: Path, tmp_path: Path) -> Callable[..., str]:
    """A copy of the folder, whose model a function has changed; options are those of `from_pretrained`."""

    def change(function: Callable[[Any], object] = lambda model: None, **options: Any) -> str:
        with silence_transformers():
            model = AutoModelForSequenceClassification.from_pretrained(folder, **options)
            function(model)
            model.save_pretrained(tmp_path)
            AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path)
        return str(tmp_path)

    return change


def scores_of(path: Path | str, *texts: str, **section: Any) -> list[float | str]:
    return RewardModel(RewardModelConfig(path=str(path), **section), CPU).score(rollouts(*(texts or TEXTS)))


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
    expected = transformers_scores(folder)
    assert len(set(expected)) == len(TEXTS)
    assert scores_of(folder, microbatch=batch) == pytest.approx(expected, abs=1e-5)
    assert RewardModel(RewardModelConfig(path=str(folder)), CPU).score([]) == []


def test_scores_without_a_padding_token(folder: Path, changed: Callable[..., str]) -> None:
    path = changed(lambda model: setattr(model.config, "pad_token_id", None))
    assert scores_of(path) == pytest.approx(transformers_scores(Path(path)), abs=1e-5)


def test_a_text_prompt_is_joined_with_the_response(folder: Path) -> None:
    """trl/trainer/grpo_trainer.py, _calculate_rewards: `p + c`, without special tokens."""
    ((task, rollout),) = rollouts("yes")
    model = RewardModel(RewardModelConfig(path=str(folder), text_prompts="raw"), CPU)
    joined = RewardModel(RewardModelConfig(path=str(folder), chat_template="{{ '2 + 2? yes' }}"), CPU)
    text = (replace(task, prompt_value="2 + 2?"), replace(rollout, text=" yes"))
    assert model.score([text]) == pytest.approx(joined.score([text]))
    assert model.score([(task, rollout)]) == pytest.approx(scores_of(folder, "yes"))


def test_chat_template_changes_the_score(folder: Path, tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}")
    other = scores_of(folder, "yes", chat_template=str(template))
    assert other != pytest.approx(scores_of(folder, "yes"))


def test_bfloat16(folder: Path) -> None:
    rounded = scores_of(folder, dtype="bfloat16")
    assert rounded == pytest.approx(transformers_scores(folder), abs=0.1)
    assert rounded != pytest.approx(transformers_scores(folder), abs=1e-7)


def test_conversations_that_are_too_long(folder: Path) -> None:
    texts = ("short", "long " * 60)
    kept, broken = scores_of(folder, *texts)
    assert isinstance(kept, float)
    assert isinstance(broken, str) and "the limit is 64" in broken
    left, right = (scores_of(folder, *texts, overlong=side) for side in ("left", "right"))
    assert left[0] == right[0] == pytest.approx(kept, abs=1e-5)
    assert left[1] != pytest.approx(right[1])


def test_a_score_that_overflows_is_an_error_of_its_rollout(changed: Callable[..., str]) -> None:
    path = changed(lambda model: torch.nn.init.constant_(model.score.weight, torch.finfo(torch.float32).max))
    (score,) = scores_of(path, "yes")
    assert str(score).endswith("; a reward must be a finite number")


def test_weights_that_are_nan_are_rejected(changed: Callable[..., str]) -> None:
    path = changed(lambda model: torch.nn.init.constant_(model.score.weight, float("nan")))
    with pytest.raises(ModelError, match="weights are not finite"):
        scores_of(path, "yes")


def test_two_labels_are_rejected(changed: Callable[..., str]) -> None:
    path = changed(num_labels=2, ignore_mismatched_sizes=True)
    with pytest.raises(
        ModelError, match=r"reward\.models \(mine\): .* has 2 labels \(LABEL_0, LABEL_1\), not 1"
    ):
        scores_of(path, name="mine")


def test_a_language_model_is_rejected(tmp_path: Path) -> None:
    path = make_model(tmp_path / "model", ["question and answer"], hidden_size=32)
    with pytest.raises(ModelError, match="has 2 labels"):
        scores_of(path)


def test_a_tokenizer_without_a_template_is_rejected(folder: Path, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="has no chat template; set chat_template"):
        scores_of(folder, tokenizer=str(tmp_path))


def test_the_softcap_of_attention_scores_is_honored(tmp_path: Path) -> None:
    """transformers' default attention ignores it."""
    options = {"attn_logit_softcapping": 0.5, "query_pre_attn_scalar": 8, "initializer_range": 0.5}
    folder = make_model(tmp_path / "model", ["question"], family="gemma2", hidden_size=32, **options)
    scores = scores_of(with_score(folder))
    assert scores == pytest.approx(transformers_scores(folder, attention="eager"), abs=1e-3)
    assert scores != pytest.approx(transformers_scores(folder, attention="sdpa"), abs=1e-2)
