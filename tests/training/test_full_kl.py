"""The full KL divergence in the training engine, with both kinds of reference, against plain torch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import kl_div
from transformers import AutoModelForCausalLM

from strop.algorithms import registry
from strop.config.schema.algorithm import GrpoConfig
from strop.models import chunked_head
from strop.models.tiny import make_model
from strop.training.trained_models import PolicyModel
from strop.types import GlobalCounts, MicroBatch
from tests.training.test_local_engine import experiences, gradient, make_policy, make_run, micro_batches

FULL = {"type": "grpo", "policy_loss": "gpg", "kl_loss": {"estimator": "full", "coef": 1.0}}
SETTINGS = {
    "a frozen copy": {},
    "adapters off": {"lora": {"rank": 4}},
    "an adapter on the head": {"lora": {"rank": 4, "targets": ["q_proj", "lm_head"]}},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model"
    return make_model(path, ["one and one is two"], vocab_size=280, hidden_size=32, tied=False)


@pytest.fixture(params=SETTINGS.values(), ids=SETTINGS)
def moved(request: pytest.FixtureRequest, folder: Path) -> PolicyModel:
    """A policy whose weights differ from the reference's."""
    engine = make_policy(make_run(folder, request.param, algorithm=FULL))
    with torch.no_grad():
        for number, parameter in enumerate(p for p in engine.master.parameters() if p.requires_grad):
            noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
            parameter.add_(noise, alpha=0.1)
    return engine


def learn(engine: PolicyModel, batches: list[MicroBatch]) -> tuple[dict[str, float], Tensor]:
    """Metrics and gradient of the divergence alone: without advantages there is no other loss."""
    engine.master.zero_grad()
    loss_fn = registry.make_loss_fn(GrpoConfig.model_validate(FULL), max_response_tokens=12)
    counts = GlobalCounts(sum(int(b.loss_mask.sum()) for b in batches), 12)
    for batch in batches:
        batch.advantages.zero_()
    metrics = engine.forward_backward(batches, loss_fn, counts, entropy=False, divergence=True)
    return dict(metrics), gradient(engine)


def plain(engine: PolicyModel, folder: Path) -> tuple[Tensor, Tensor]:
    """The divergence of each target, and the gradient of their mean, on the whole logits of each sequence."""
    engine.master.zero_grad()
    start = AutoModelForCausalLM.from_pretrained(folder)
    moved = AutoModelForCausalLM.from_pretrained(folder)
    weights = {name: tensor.clone().requires_grad_() for name, tensor in engine.iter_weights()}
    found = []
    for one in experiences():
        tokens = torch.from_numpy(one.token_ids).long()[None]
        ours = torch.func.functional_call(moved, weights, (tokens,)).logits[0, :-1]
        theirs = start(tokens).logits[0, :-1].detach()
        policy, reference = ((each / one.temperature).log_softmax(-1) for each in (ours, theirs))
        divergence = kl_div(reference, policy, reduction="none", log_target=True).sum(-1)
        found.append(divergence[torch.from_numpy(one.loss_mask)[1:]])
    each = torch.cat(found)
    gradients = torch.autograd.grad(each.mean(), list(weights.values()))
    return each.detach(), chain(engine, dict(zip(weights, gradients, strict=True)))


def chain(engine: PolicyModel, of_weights: dict[str, Tensor]) -> Tensor:
    """From the gradient of merged weights W + s B A to that of what is trained."""
    parts = []
    for name, parameter in engine.master.named_parameters():
        if not parameter.requires_grad:
            continue
        plain_name = name.removeprefix("base_model.model.")
        if ".lora_" not in name:
            parts.append(of_weights[plain_name].flatten())
            continue
        stem, side, _ = plain_name.replace(".lora_", "|").replace(".default.", "|").split("|")
        layer = engine.master.get_submodule(name.split(".lora_")[0])
        grad = of_weights[f"{stem}.weight"] * layer.scaling["default"]
        a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
        parts.append((b.T @ grad if side == "A" else grad @ a.T).flatten())
    return torch.cat(parts).detach()


def test_loss_and_gradient_match_torch_on_full_logits(moved: PolicyModel, folder: Path) -> None:
    each, expected = plain(moved, folder)
    metrics, found = learn(moved, micro_batches(moved, 10_000))
    assert metrics["kl_loss"] == pytest.approx(float(each.mean()), rel=1e-4)
    assert metrics["kl/ref"] == pytest.approx(float(each.mean()), rel=1e-4)
    assert metrics["loss"] == pytest.approx(metrics["kl_loss"])
    assert each.mean() > 0.01
    assert (found - expected).norm() < 1e-4 * expected.norm()


def test_the_result_does_not_depend_on_micro_batches_or_chunks(
    moved: PolicyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, expected = learn(moved, micro_batches(moved, 10_000))
    monkeypatch.setattr(chunked_head, "CHUNK_ROWS", 3)
    parts, found = learn(moved, micro_batches(moved, 30)[::-1])
    assert parts == pytest.approx(whole, rel=1e-4)
    assert (found - expected).norm() < 1e-5 * expected.norm()


def test_the_divergence_without_gradient_is_the_same(moved: PolicyModel, folder: Path) -> None:
    (batch,) = micro_batches(moved, 10_000)
    (found,) = moved.token_values([batch], "reference_kl")
    assert not found.requires_grad
    assert not found[~batch.loss_mask].any()
    mean = float(found.sum() / batch.loss_mask.sum())
    assert mean == pytest.approx(float(plain(moved, folder)[0].mean()), rel=1e-4)


@pytest.mark.parametrize("model", SETTINGS.values(), ids=SETTINGS)
def test_the_divergence_is_zero_at_the_start(folder: Path, model: dict[str, object]) -> None:
    engine = make_policy(make_run(folder, model, algorithm=FULL))
    metrics, found = learn(engine, micro_batches(engine))
    assert metrics["kl_loss"] == pytest.approx(0, abs=1e-6)
    assert found.norm() < 1e-5
