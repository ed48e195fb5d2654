"""Values and gradients of Tinker's losses, against a plain loop with its formulas."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from tinker.types import AdamParams, LoraConfig
from torch import Tensor
from transformers import AutoModelForCausalLM

from strop.compat.tinker.adapter_engine import AdapterEngines
from strop.compat.tinker.losses import NamedLoss
from strop.compat.tinker.training import TrainedAdapter
from strop.compat.tinker.wire import LossDatum, LossRequest
from strop.config.schema.model import ModelConfig
from strop.config.units import Amount
from strop.data.packing import plan_micro_batches
from strop.errors import DataError

PROMPT, RESPONSE = [21, 15, 22, 31], [41, 52, 63]


def clip(ratio: Tensor, low: float, high: float) -> Tensor:
    return torch.clamp(ratio, low, high)


def ratio_of(p: Tensor, d: Mapping[str, Tensor]) -> Tensor:
    return torch.exp(p - d["logprobs"])


def gspo(p: Tensor, d: Mapping[str, Tensor], low: float, high: float) -> Tensor:
    mean = (p.detach() - d["logprobs"])[d["sequence_ratio_mask"] != 0].mean()
    ratio = torch.exp(mean + p - p.detach())
    return -torch.minimum(ratio * d["advantages"], clip(ratio, low, high) * d["advantages"])


FORMULAS: Mapping[str, tuple[Mapping[str, float], Callable[[Tensor, Mapping[str, Tensor]], Tensor]]] = {
    "cross_entropy": ({}, lambda p, d: -p * d["weights"]),
    "importance_sampling": ({}, lambda p, d: -ratio_of(p, d) * d["advantages"]),
    "ppo": (
        {"clip_low_threshold": 0.9},
        lambda p, d: (
            -torch.minimum(ratio_of(p, d) * d["advantages"], clip(ratio_of(p, d), 0.9, 1.2) * d["advantages"])
        ),
    ),
    "cispo": ({}, lambda p, d: -clip(ratio_of(p, d), 0.8, 1.2).detach() * p * d["advantages"]),
    "gspo": ({"clip_low_threshold": 0.9, "clip_high_threshold": 1.1}, lambda p, d: gspo(p, d, 0.9, 1.1)),
    "dro": ({"beta": 0.3}, lambda p, d: -p * d["advantages"] + 0.15 * (p - d["logprobs"]) ** 2),
    "stable_reinforce": (
        {"kl_coeff": 0.1},
        lambda p, d: (
            -ratio_of(p, d).clamp(max=1).detach() * p * d["advantages"] + 0.05 * (p - d["logprobs"]) ** 2
        ),
    ),
}


def datum(sampled: np.ndarray, *, padded: bool) -> LossDatum:
    """A sequence; `padded` has no targets in the prompt, as a reinforcement loop sends it."""
    ids = np.array([*PROMPT, *RESPONSE], np.int32)
    targets, start = ids[1:].astype(np.int64).copy(), len(PROMPT) - 1
    if padded:
        targets[:start] = 0

    def after(values: list[float]) -> np.ndarray:
        return np.array([0.0] * start + values, np.float32)

    inputs: dict[str, np.ndarray] = {
        "target_tokens": targets,
        "weights": after([1.0, 0.5, 2.0]),
        "advantages": after([1.0, -0.5, 0.7]),
        "logprobs": after(sampled.tolist()),
        "sequence_ratio_mask": after([1.0, 1.0, 1.0]),
    }
    return LossDatum(ids[:-1], inputs, ())


@pytest.fixture(scope="module")
def trained(model: Path) -> TrainedAdapter:
    found = TrainedAdapter(
        ModelConfig(path=str(model)), LoraConfig(rank=4, seed=1), 64, 300, AdapterEngines()
    )
    for _ in range(2):  # both factors have values then
        found.compute(request("cross_entropy", {}, datum(np.zeros(3), padded=False)))
        found.step(AdamParams(learning_rate=0.1))
    return found


@pytest.fixture
def adapter(trained: TrainedAdapter) -> Iterator[TrainedAdapter]:
    """The adapter, without a gradient."""
    yield trained
    for parameter in trained.engine.policy.master.parameters():
        parameter.grad = None


def request(
    loss: str, options: Mapping[str, Any], *data: LossDatum, forward_only: bool = False
) -> LossRequest:
    return LossRequest("m", 1, loss, options, data, forward_only)


@pytest.mark.parametrize("loss", FORMULAS)
def test_a_loss_is_its_formula(adapter: TrainedAdapter, model: Path, tmp_path: Path, loss: str) -> None:
    plain = plain_model(adapter, model, tmp_path)
    options, formula = FORMULAS[loss]
    own = adapter.compute(request("cross_entropy", {}, datum(np.zeros(3), padded=False), forward_only=True))
    start = len(PROMPT) - 1
    off = own[0][0][start:] + np.array([0.15, -0.3, 0.02], np.float32)  # ratios on both sides of the clips
    data = [datum(off, padded=True), datum(off - 0.05, padded=True)]

    expected = torch.zeros(())
    for each in data:
        logits = plain(input_ids=torch.from_numpy(each.token_ids).long()[None]).logits[0]
        targets = torch.from_numpy(each.inputs["target_tokens"]).long()
        logprobs = logits.log_softmax(-1).gather(1, targets[:, None])[:, 0]
        values = {name: torch.from_numpy(value)[start:] for name, value in each.inputs.items()}
        expected = expected + formula(logprobs[start:], values).sum()
    expected.backward()  # type: ignore[no-untyped-call]

    outputs, metrics = adapter.compute(request(loss, options, *data))
    assert metrics["loss:sum"] == pytest.approx(float(expected), rel=1e-5)
    take_gradients(adapter, plain)
    assert np.allclose(outputs[0][start:], own[0][0][start:], atol=1e-5)
    assert loss == "cross_entropy" or not outputs[0][:start].any()


def test_sequences_with_the_same_prompt_share_it(adapter: TrainedAdapter) -> None:
    """A prompt is encoded once, if it has no targets, which is most of the cost of short responses."""
    data = [datum(np.zeros(3), padded=True) for _ in range(4)]
    batch = adapter._batch(data, NamedLoss.of("importance_sampling", {}))
    [plan] = plan_micro_batches(batch.experiences, Amount(999, "tokens"), share_prompts=True)
    assert [segment.start for segment in plan] == [0] + [len(PROMPT) - 1] * 4


def plain_model(adapter: TrainedAdapter, model: Path, folder: Path) -> PeftModel:
    """The adapted model in transformers and PEFT."""
    adapter.write_adapter(folder)
    return PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(model), str(folder), is_trainable=True
    )


def take_gradients(adapter: TrainedAdapter, plain: PeftModel) -> None:
    """Compare the gradients, up to rounding."""
    theirs = dict(plain.named_parameters())
    for name, parameter in adapter.engine.policy.master.named_parameters():
        if parameter.requires_grad:
            torch.testing.assert_close(parameter.grad, theirs[name].grad, rtol=1e-5, atol=5e-6)


@pytest.mark.parametrize("shapes", [[(6, 3)], [(6, 2), (4,), (5, 3)], [(6,), (4,)]], ids=str)
def test_targets_are_any_tokens(
    adapter: TrainedAdapter, model: Path, tmp_path: Path, shapes: list[tuple[int, ...]]
) -> None:
    """One or several per position, with weights of both signs, as soft targets and as custom losses send them."""
    plain = plain_model(adapter, model, tmp_path)
    random = np.random.default_rng(1)
    expected, logprobs, data = torch.zeros(()), [], []
    for shape in shapes:
        ids = random.integers(10, 60, shape[0]).astype(np.int32)
        targets, weights = random.integers(10, 60, shape), random.normal(size=shape).astype(np.float32)
        data.append(LossDatum(ids, {"target_tokens": targets, "weights": weights}, ()))
        every = plain(input_ids=torch.from_numpy(ids).long()[None]).logits[0].log_softmax(-1)
        chosen = every.gather(1, torch.from_numpy(targets).reshape(len(ids), -1)).reshape(shape)
        logprobs.append(chosen.detach().numpy())
        expected = expected - (chosen * torch.from_numpy(weights)).sum()
    expected.backward()  # type: ignore[no-untyped-call]
    forward, _ = adapter.compute(request("cross_entropy", {}, *data, forward_only=True))
    outputs, metrics = adapter.compute(request("cross_entropy", {}, *data))
    assert metrics["loss:sum"] == pytest.approx(float(expected), rel=1e-5)
    take_gradients(adapter, plain)
    for found, also, exact in zip(outputs, forward, logprobs, strict=True):
        np.testing.assert_allclose(found, exact, atol=1e-5)
        np.testing.assert_allclose(also, exact, atol=1e-5)


@pytest.mark.parametrize(
    ("loss", "options", "change", "message"),
    [
        ("grpo", {}, {}, "there is no loss 'grpo'"),
        ("custom", {}, {}, "runs it in the client"),
        ("ppo", {"clip": 0.1}, {}, "has 'clip'; its options are clip_low_threshold"),
        ("dro", {"beta": "much"}, {}, "write a number"),
        ("ppo", {}, {"logprobs": None}, "needs loss_fn_inputs['logprobs']"),
        ("ppo", {}, {"advantages": None}, "needs loss_fn_inputs['advantages']"),
        ("cross_entropy", {}, {"target_tokens": None}, "no 'target_tokens'"),
        ("cross_entropy", {}, {"weights": np.ones((6, 2), np.float32)}, "give all the same"),
        ("ppo", {}, {"target_tokens": np.ones((6, 2), np.int64)}, "give all the same"),
    ],
)
def test_a_wrong_request_leaves_the_gradient(
    adapter: TrainedAdapter, loss: str, options: Mapping[str, Any], change: Mapping[str, Any], message: str
) -> None:
    given = datum(np.zeros(3), padded=True)
    inputs = {name: value for name, value in {**given.inputs, **change}.items() if value is not None}
    with pytest.raises(DataError, match=message.replace("[", r"\[").replace("]", r"\]")):
        adapter.compute(request(loss, options, LossDatum(given.token_ids, inputs, ())))
    assert all(p.grad is None for p in adapter.engine.policy.master.parameters())
