"""Packing, forward and backward passes, losses and updates on the fake GPU: one device, and no wait for it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from transformers import masking_utils

from strop.algorithms.losses.preference_losses import DpoLoss
from strop.algorithms.losses.sft import MixedLoss, SftLoss
from strop.algorithms.losses.value_losses import ValueLoss
from strop.algorithms.process_rewards import ProcessRewardLoss
from strop.algorithms.registry import make_loss_fn
from strop.config.schema.distillation import ReverseKlConfig
from strop.config.schema.optimizer import AdamWConfig, OptimizerConfig, SgdConfig
from strop.config.schema.policy_gradient import KlLossConfig
from strop.config.schema.policy_loss import PolicyLossConfig
from strop.config.schema.preference import DpoConfig
from strop.models.chunked_head import Comparison
from strop.models.logprobs import (
    expected_entropy_effects,
    frozen_states,
    sampled_logprobs,
    squared_probabilities,
    token_outputs,
)
from strop.models.lora import without_adapter
from strop.models.value_model import ValueModel, token_values
from strop.protocols import LossFn
from strop.training.optimized_model import PendingMetrics
from strop.training.optimizers import build_optimizer
from strop.training.trained_models import RoutedStates
from strop.types import GlobalCounts, LossOutput, MicroBatch, TokenOutputs
from tests.algorithms.objectives import CORRECTIONS, LOSSES, REJECTIONS, with_parts
from tests.fake_cuda.fake_models import check_gradients, fake_adapted, fake_micro_batch, fake_model
from tests.models.models import FAMILIES, experience

COUNTS = GlobalCounts(tokens=50, sequences=9, expert_tokens=3, pairs=1)


@pytest.fixture
def micro_batch(gpu: torch.device) -> MicroBatch:
    return fake_micro_batch()


@pytest.fixture
def outputs(micro_batch: MicroBatch) -> TokenOutputs:
    """Outputs of a model as leaves: the backward pass of the model has tests of its own."""
    with torch.no_grad():
        found = token_outputs(fake_model("qwen2"), micro_batch, entropy=True)
    assert found.entropy is not None
    return replace(found, logprobs=found.logprobs.requires_grad_(), entropy=found.entropy.requires_grad_())


def test_the_device_refuses_to_be_waited_for(gpu: torch.device) -> None:
    """The other tests rely on it."""
    values = torch.zeros(3)
    for read in (lambda: values.sum().item(), values.tolist, values.nonzero, lambda: values[values > 0]):
        with pytest.raises(Exception, match=r"aten\.|data-dependent|not allocated"):
            read()
    with pytest.raises(RuntimeError, match="device"):
        values + torch.zeros(3, device="cpu")


def test_a_micro_batch_is_copied_from_pinned_memory(gpu: torch.device, pinned: list[torch.Size]) -> None:
    micro_batch = fake_micro_batch()
    assert len(pinned) >= 8
    tensors = [getattr(micro_batch, name) for name in micro_batch.__dataclass_fields__]
    assert {each.device.type for each in tensors if isinstance(each, torch.Tensor)} == {"cuda"}


@pytest.mark.parametrize("family", sorted({*FAMILIES} - {"gemma2"}))
def test_token_outputs(micro_batch: MicroBatch, family: str) -> None:
    """With FlashAttention; Gemma 2 has a softcap."""
    model = fake_model(family)
    found = token_outputs(model, micro_batch, entropy=True)
    assert found.entropy is not None
    assert found.logprobs.device.type == found.entropy.device.type == "cuda"
    assert found.logprobs.shape == micro_batch.token_ids.shape
    (found.logprobs + found.entropy).sum().backward()
    check_gradients(model)


@pytest.mark.parametrize("family", FAMILIES)
def test_token_outputs_with_flex_attention(micro_batch: MicroBatch, family: str) -> None:
    """The backward pass of flex attention itself needs a real device: that of dense attention stands in for it."""
    model = fake_model(family, torch.bfloat16 if family == "gemma2" else torch.float32)
    with torch.no_grad():
        found = token_outputs(model, micro_batch, entropy=True)
    assert found.logprobs.device.type == "cuda"
    token_outputs(model, micro_batch, entropy=False).logprobs.sum().backward()
    check_gradients(model)


@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "down_proj"]], ids=str)
def test_token_outputs_with_an_adapter(micro_batch: MicroBatch, targets: str | list[str]) -> None:
    """With its gradient, the reference by disabled adapters, and an update of the adapter alone."""
    model = fake_adapted(fake_model("qwen2"), targets)
    with without_adapter(model):
        reference = frozen_states(model, micro_batch)
    found = token_outputs(model, micro_batch, entropy=True, reference=reference)
    assert found.divergence is not None
    (found.logprobs + found.divergence).sum().backward()
    check_gradients(model)
    parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}
    assert all("lora" in name for name in parameters)
    build_optimizer(AdamWConfig(lr=1e-3), parameters).step()


def test_token_outputs_through_an_adapted_head(micro_batch: MicroBatch) -> None:
    model = fake_adapted(fake_model("qwen2"), ["lm_head"])
    token_outputs(model, micro_batch, entropy=True).logprobs.sum().backward()
    check_gradients(model)


def test_token_outputs_of_a_mixture_of_experts(gpu: torch.device) -> None:
    model = fake_model("qwen3_moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32)
    found = token_outputs(model, fake_micro_batch(), entropy=True, router_logits=True)
    assert [each.device.type for each in found.router_logits] == ["cuda", "cuda"]
    found.logprobs.sum().backward()
    check_gradients(model)


def test_divergences_from_frozen_models(micro_batch: MicroBatch) -> None:
    model = fake_model("qwen2")
    reference = frozen_states(fake_model("qwen2"), micro_batch)
    teacher = Comparison(frozen_states(fake_model("qwen2"), micro_batch), ReverseKlConfig())
    found = token_outputs(model, micro_batch, entropy=True, reference=reference, teacher=teacher)
    assert found.divergence is not None
    assert found.teacher_divergence is not None
    (found.divergence + found.teacher_divergence).sum().backward()
    check_gradients(model)


@pytest.mark.parametrize("function", [squared_probabilities, expected_entropy_effects])
def test_sums_over_the_vocabulary(micro_batch: MicroBatch, function) -> None:
    assert function(fake_model("qwen2"), micro_batch).device.type == "cuda"


def test_values(micro_batch: MicroBatch) -> None:
    model = fake_model("qwen2")
    critic = ValueModel(model.get_decoder(), model.config, "zero", torch.bfloat16, torch.device("cuda"))
    values = token_values(critic, micro_batch)
    ValueLoss(0.2)(micro_batch, values, COUNTS).loss.backward()
    check_gradients(critic)


def check_loss(micro_batch: MicroBatch, outputs: TokenOutputs, loss: LossFn) -> LossOutput:
    """Compute a loss and its gradient."""
    result = loss(micro_batch, outputs, COUNTS)
    outputs.logprobs.grad = None
    result.loss.backward()
    assert outputs.logprobs.grad is not None and outputs.logprobs.grad.device.type == "cuda"
    return result


def policy_loss(**parts: object) -> LossFn:
    return make_loss_fn(with_parts(**parts), max_response_tokens=64)


@pytest.mark.parametrize("section", LOSSES, ids=lambda each: each.type)
def test_policy_losses(micro_batch: MicroBatch, outputs: TokenOutputs, section: PolicyLossConfig) -> None:
    result = check_loss(micro_batch, outputs, policy_loss(policy_loss=section))
    assert PendingMetrics.of(result, micro_batch).values.device.type == "cuda"


@pytest.mark.parametrize("correction", CORRECTIONS)
@pytest.mark.parametrize("rejection", [(), *REJECTIONS])
@pytest.mark.parametrize(
    "aggregation", ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
)
def test_corrections(micro_batch, outputs, correction, rejection, aggregation) -> None:
    parts = {"importance_correction": correction, "rejection": rejection, "aggregation": aggregation}
    check_loss(micro_batch, outputs, policy_loss(**parts))


def test_other_losses(micro_batch: MicroBatch, outputs: TokenOutputs) -> None:
    for estimator in ("k1", "k2", "k3", "abs"):
        loss = policy_loss(kl_loss=KlLossConfig(estimator=estimator, coef=0.1))
        check_loss(micro_batch, outputs, loss)
    for loss in (SftLoss(), MixedLoss(0.1, policy_loss()), ProcessRewardLoss(0.05)):
        check_loss(micro_batch, outputs, loss)


def test_preference_pairs(gpu: torch.device) -> None:
    pair = [
        experience([3, 4, 5], answer, pair="a", role=role)
        for answer, role in (([6, 7], "chosen"), ([8, 9, 10], "rejected"))
    ]
    micro_batch = fake_micro_batch(pair)
    model = fake_model("qwen2")
    outputs = token_outputs(model, micro_batch, entropy=False)
    DpoLoss(DpoConfig())(micro_batch, outputs, COUNTS).loss.backward()
    check_gradients(model)


def test_a_model_that_needs_padding(gpu: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers reads once whether a mask has padding; there is no other wait."""
    model = fake_model("qwen2")
    model.set_attn_implementation("sdpa")
    reads: list[torch.Size] = []

    def has_no_padding(mask: torch.Tensor) -> bool:
        reads.append(mask.shape)
        return False

    monkeypatch.setattr(masking_utils, "fast_all", has_no_padding)
    micro_batch = fake_micro_batch(share_prompts=False)
    token_outputs(model, micro_batch, entropy=True).logprobs.sum().backward()
    check_gradients(model)
    assert {len(shape) for shape in reads} == {2}


def test_several_teachers(micro_batch: MicroBatch) -> None:
    """Each position has the teacher of its segment's data source, or none."""
    model = fake_model("qwen2")
    teachers = RoutedStates(
        tuple(frozen_states(fake_model("qwen2"), micro_batch) for _ in range(2)),
        micro_batch.segment_numbers() % 3 - 1,
    )
    found = token_outputs(
        model, micro_batch, entropy=False, teacher=Comparison(teachers, ReverseKlConfig())
    ).teacher_divergence
    assert found is not None
    found.sum().backward()
    check_gradients(model)
    assert sampled_logprobs(teachers, micro_batch).device.type == "cuda"


@pytest.mark.parametrize(
    "section", [AdamWConfig(lr=1e-3), SgdConfig(lr=1e-3, momentum=0.9)], ids=["adamw", "sgd"]
)
def test_an_update(gpu: torch.device, section: OptimizerConfig) -> None:
    model = fake_model("qwen2", torch.float32)
    parameters = dict(model.named_parameters())
    optimizer = build_optimizer(section, parameters)
    for _ in range(2):
        for parameter in parameters.values():
            parameter.grad = torch.zeros_like(parameter)
        norm = nn.utils.get_total_norm([p.grad for p in parameters.values() if p.grad is not None])
        nn.utils.clip_grads_with_norm_(parameters.values(), 1.0, norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    assert norm.device.type == "cuda"
