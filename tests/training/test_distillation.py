"""Teachers in the training engine: values and gradients against torch on whole logits, alone and on two ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import kl_div
from transformers import AutoModelForCausalLM

from strop.algorithms.registry import LossSpec
from strop.config.schema import Run
from strop.config.units import Amount
from strop.errors import ModelError
from strop.models import chunked_head
from strop.models.tiny import make_model
from strop.training.engine import PolicyEngine, local_policy
from strop.types import Experience, TrainingBatch
from tests.training.test_local_engine import experiences, gradient, make_policy, make_run

SOURCES = ("math", "code")
LORA = {"lora": {"rank": 4, "targets": ["q_proj", "lm_head"]}}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A policy, and two teachers with the same tokenizer: a larger one, and one of another family."""
    at = tmp_path_factory.mktemp("models")
    corpus, options = ["one and one is two"], {"vocab_size": 280}
    return {
        "policy": make_model(at / "policy", corpus, hidden_size=32, tied=False, **options),
        "math": make_model(at / "math", corpus, hidden_size=64, layers=3, seed=1, **options),
        "code": make_model(at / "code", corpus, family="llama", hidden_size=32, seed=2, **options),
    }


def run_of(folders: Mapping[str, Path], *, model: Any = None, engine: str = "local", **section: Any) -> Run:
    teachers = [{"path": str(folders[name]), "dtype": "float32", "sources": [name]} for name in SOURCES]
    algorithm = {
        "type": "distillation",
        "policy_loss": "gpg",
        "distillation": {"teachers": teachers, **section},
    }
    trainer = {
        "optimizer": {"type": "adamw", "lr": 0.01},
        "engine": {"type": engine, "device": "cpu"},
        "microbatch": "60 tokens",
    }
    data = {"train": {"path": "tasks.jsonl", "source": "source"}}
    return make_run(folders["policy"], model, algorithm=algorithm, trainer=trainer, data=data)


def tasks() -> list[Experience]:
    """Groups 0 and 2 are the first teacher's, group 1 the second's."""
    return [replace(e, source=SOURCES[int(e.group) % 2]) for e in experiences()]


def whole_logprobs(folder: Path, one: Experience, temperature: float) -> Tensor:
    """[L-1, V] by the Hugging Face model, on one sequence alone."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokens = torch.from_numpy(one.token_ids).long()[None]
    return (model(tokens).logits[0, :-1] / temperature).log_softmax(-1)


def learn(engine: PolicyEngine, run: Run) -> tuple[dict[str, float], Tensor]:
    engine.policy.master.zero_grad()
    metrics = dict(engine.forward_backward(TrainingBatch(tasks()), LossSpec.of(run)))
    return metrics, gradient(engine.policy)


def test_loss_and_gradient_are_those_of_the_whole_logits_of_each_tasks_teacher(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forward KL, with the teachers at temperature 1 and the policy at that of the rollouts."""
    run = run_of(folders, loss={"divergence": "forward_kl", "coef": 0.5}, temperature=1.0)
    engine = local_policy(run)
    metrics, found = learn(engine, run)

    policy = AutoModelForCausalLM.from_pretrained(folders["policy"])
    each = []
    for one in tasks():
        tokens = torch.from_numpy(one.token_ids).long()[None]
        p = (policy(tokens).logits[0, :-1] / one.temperature).log_softmax(-1)
        q = whole_logprobs(folders[one.source], one, 1.0).detach()
        divergence = kl_div(p, q, reduction="none", log_target=True).sum(-1)
        each.append(divergence[torch.from_numpy(one.loss_mask)[1:]])
    mean = torch.cat(each).mean()
    (0.5 * mean).backward()
    weights = dict(policy.named_parameters())
    expected = torch.cat([weights[n].grad.flatten() for n, _ in engine.policy.master.named_parameters()])
    assert metrics["distillation_loss/divergence"] == pytest.approx(mean.item(), rel=1e-4)
    assert metrics["loss"] == pytest.approx(metrics["distillation_loss"], rel=1e-6)
    assert metrics["distillation_loss"] == pytest.approx(0.5 * mean.item(), rel=1e-4)
    assert (found - expected).norm() < 1e-4 * expected.norm()

    monkeypatch.setattr(chunked_head, "CHUNK_ROWS", 3)
    trainer = run.trainer.model_copy(update={"microbatch": Amount(10_000, "tokens")})
    large = run.model_copy(update={"trainer": trainer})
    chunked, other = learn(local_policy(large), large)
    assert chunked == pytest.approx(metrics, rel=1e-4)
    assert (other - found).norm() < 1e-5 * found.norm()


def test_log_probs_are_those_of_each_tasks_teacher(folders: dict[str, Path]) -> None:
    engine = local_policy(run_of(folders, reward={}))
    batch = tasks()
    for one, found in zip(batch, engine.token_values(batch, "teacher_logprobs"), strict=True):
        every = whole_logprobs(folders[one.source], one, one.temperature)
        picked = every.gather(-1, torch.from_numpy(one.token_ids[1:]).long()[:, None])[:, 0]
        expected = np.where(one.loss_mask[1:], picked.detach().numpy(), 0)
        np.testing.assert_allclose(found[1:], expected, atol=1e-4)


def test_teachers_are_no_part_of_the_state_and_get_no_gradient(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    run = run_of(folders, loss={})
    engine, plain = local_policy(run), make_policy(make_run(folders["policy"]))
    learn(engine, run)
    engine.snapshot().begin_write(tmp_path)()
    plain.load(tmp_path)
    teachers = engine.policy._teachers
    assert teachers is not None
    for call in teachers._calls:
        assert call(lambda model: all(p.grad is None for p in model.parameters()))


def test_a_teacher_is_no_reference(folders: dict[str, Path]) -> None:
    """Both at once: each divergence is from its own model, also through an adapter on the head."""
    run = run_of(folders, model=LORA, loss={"divergence": "jsd"})
    algorithm = run.algorithm.model_dump() | {"kl_loss": {"estimator": "full", "coef": 1.0}}
    both = Run.model_validate(run.model_dump() | {"algorithm": algorithm})
    alone, _ = learn(local_policy(run), run)
    found, _ = learn(local_policy(both), both)
    assert found["kl/ref"] == pytest.approx(0, abs=1e-6)
    assert found["distillation_loss"] == pytest.approx(alone["distillation_loss"], rel=1e-5)
    assert found["distillation_loss"] > 0.003


def test_a_teacher_that_cannot_be_loaded_is_named(folders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"^algorithm\.distillation\.teachers\.1: .*there is no folder"):
        local_policy(run_of(folders | {"code": tmp_path / "nowhere"}, loss={}))
