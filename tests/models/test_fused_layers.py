"""Fused layers, compared with the modules of transformers and PEFT that they replace."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssConfig, GptOssMLP
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm
from transformers.models.nllb_moe.modeling_nllb_moe import NllbMoeConfig, NllbMoeSparseMLP
from transformers.models.qwen2.modeling_qwen2 import Qwen2Config, Qwen2MLP, Qwen2RMSNorm
from transformers.models.switch_transformers.modeling_switch_transformers import (
    SwitchTransformersConfig,
    SwitchTransformersSparseMLP,
)

from strop.models.fused_layers import fuse_layers
from tests.models.models import distance, make, packed, packed_gradient, some_experiences

WIDTH = 48


def mlp(kind: type[nn.Module] = Qwen2MLP, activation: str = "silu") -> nn.Module:
    config = Qwen2Config(hidden_size=WIDTH, intermediate_size=80, hidden_act=activation)
    config.mlp_bias = False
    return kind(config)


def run(module: nn.Module, dtype: torch.dtype) -> tuple[Tensor, dict[str, Tensor]]:
    """Output and gradients of a module in another type, for random inputs."""
    torch.manual_seed(1)
    module = copy.deepcopy(module).to(dtype)
    x = torch.randn(2, 7, WIDTH, dtype=dtype).mul_(3).requires_grad_()
    out = module(x)
    out.backward(torch.randn_like(out))
    assert x.grad is not None
    found = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
    return out.detach(), {"x": x.grad, **found}


def fused(module: nn.Module) -> nn.Module:
    changed = copy.deepcopy(nn.ModuleList([module]))
    fuse_layers(changed)
    kind = type(changed[0])
    fuse_layers(changed)
    assert type(changed[0]) is kind
    assert type(changed[0]) is not type(module) and type(changed[0]).__name__ == type(module).__name__
    return changed[0]


def error(found: Tensor, exact: Tensor) -> float:
    return float((found.float() - exact.float()).norm() / exact.float().norm())


def require_as_exact(module: nn.Module, factor: float = 1.05) -> None:
    """In float32 the gradients are equal; in bfloat16 they are as near to those of float32 as the module's own."""
    replaced = fused(module)
    _, exact = run(module.bfloat16(), torch.float32)
    _, own = run(module, torch.bfloat16)
    _, found = run(replaced, torch.bfloat16)
    _, in_float32 = run(replaced.bfloat16(), torch.float32)
    assert found.keys() == own.keys()
    for name, gradient in exact.items():
        assert error(in_float32[name], gradient) < 2e-6
        assert error(found[name], gradient) <= factor * error(own[name], gradient) + 1e-3


@pytest.mark.parametrize("kind", [Qwen2RMSNorm, LlamaRMSNorm])
def test_rms_norm(kind: type[nn.Module]) -> None:
    module = kind(WIDTH, eps=1e-6)
    nn.init.normal_(module.weight, mean=1.0, std=0.3)
    for dtype in (torch.float32, torch.bfloat16):
        assert torch.equal(run(module, dtype)[0], run(fused(module), dtype)[0])
    require_as_exact(module)


@pytest.mark.parametrize("kind", [Qwen2MLP, LlamaMLP])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gated_mlp_is_equal_bit_for_bit(kind: type[nn.Module], dtype: torch.dtype) -> None:
    module = mlp(kind)
    (out, gradients), (own, expected) = run(fused(module), dtype), run(module, dtype)
    assert torch.equal(out, own)
    assert all(torch.equal(gradients[name], expected[name]) for name in expected)


def test_another_activation_and_another_norm_stay() -> None:
    module = mlp(activation="gelu")
    assert torch.equal(run(fused(module), torch.float32)[0], run(module, torch.float32)[0])
    other = nn.ModuleList([GemmaRMSNorm(WIDTH)])
    fuse_layers(other)
    assert type(other[0]) is GemmaRMSNorm


class ThreeDimensionalMLP(Qwen2MLP):
    """A block that reads more of its input than the example has, as experts do."""

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        return super().forward(x.view(batch * length, width)).view(batch, length, -1)


class PairMLP(Qwen2MLP):
    def forward(self, x: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return super().forward(x), None


class UnreadableRMSNorm(Qwen2RMSNorm):
    def forward(self, hidden_states: Tensor) -> Tensor:
        if hidden_states.shape[-1] != WIDTH:
            raise RuntimeError("another width")
        return super().forward(hidden_states)


@pytest.mark.parametrize(
    ("make_module", "warning"),
    [
        (
            lambda: mlp(ThreeDimensionalMLP),
            "ThreeDimensionalMLP cannot be compared .*ValueError: not enough values",
        ),
        (
            lambda: UnreadableRMSNorm(WIDTH),
            "UnreadableRMSNorm cannot be compared .*RuntimeError: another width",
        ),
        (lambda: mlp(PairMLP), None),
        (lambda: GptOssMLP(GptOssConfig(hidden_size=WIDTH, intermediate_size=32, num_local_experts=2)), None),
        (lambda: NllbMoeSparseMLP(NllbMoeConfig(d_model=WIDTH, num_experts=2), 32), None),
        (
            lambda: SwitchTransformersSparseMLP(
                SwitchTransformersConfig(d_model=WIDTH, d_ff=32, num_experts=2)
            ),
            None,
        ),
    ],
)
def test_a_module_that_cannot_be_compared_stays(
    make_module: Callable[[], nn.Module], warning: str | None, recwarn: pytest.WarningsRecorder
) -> None:
    """It is named once, if it has the attributes of a fused layer."""
    modules = nn.ModuleList([make_module(), make_module()])
    kind = type(modules[0])
    fuse_layers(modules)
    assert type(modules[0]) is type(modules[1]) is kind
    found = [str(each.message) for each in recwarn if "cannot be compared" in str(each.message)]
    assert len(found) == (warning is not None)
    assert all(re.search(str(warning), text) for text in found)


def adapted(dropout: float = 0.0, bias: bool = True) -> nn.Module:
    """PEFT's linear layer, with a nonzero adapter."""
    torch.manual_seed(0)
    base = nn.Sequential(nn.Linear(WIDTH, 32, bias=bias))
    config = LoraConfig(r=4, lora_alpha=6, target_modules=["0"], lora_dropout=dropout)
    layer: nn.Module = get_peft_model(base, config).base_model.model[0]  # type: ignore[arg-type, index]
    nn.init.normal_(layer.lora_B["default"].weight, std=0.3)  # type: ignore[index, union-attr]
    return layer


@pytest.mark.parametrize("bias", [False, True])
def test_adapted_linear(bias: bool) -> None:
    layer = adapted(bias=bias)
    require_as_exact(layer)
    for dtype, tolerance in ((torch.float32, 2e-6), (torch.bfloat16, 5e-3)):
        assert error(run(fused(layer), dtype)[0], run(layer, dtype)[0]) < tolerance


def test_adapters_that_are_disabled_or_have_dropout_run_as_peft_says() -> None:
    layer, x = adapted(), torch.randn(3, WIDTH)
    changed = fused(layer)
    changed.enable_adapters(False)  # type: ignore[operator]
    assert torch.equal(changed(x), changed.base_layer(x))  # type: ignore[operator]
    with_dropout = fused(adapted(dropout=0.5)).train()
    assert not torch.equal(with_dropout(x), with_dropout(x))


def test_less_is_kept_for_the_backward_pass() -> None:
    """Norm: input and a number per token. MLP: the two factors, and the product that the last projection keeps."""

    def kept(module: nn.Module) -> int:
        sizes: dict[int, int] = {}
        weights = {p.untyped_storage().data_ptr() for p in module.parameters()}

        def keep(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                sizes[storage.data_ptr()] = storage.nbytes()
            return tensor

        x = torch.randn(16, WIDTH, dtype=torch.bfloat16, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            alive = module(x)
        assert alive.requires_grad
        return sum(sizes.values())

    norm, gated = fused(Qwen2RMSNorm(WIDTH)).bfloat16(), fused(mlp()).bfloat16()
    assert kept(norm) == 16 * (2 * WIDTH + 4)
    assert kept(gated) == 16 * 2 * (WIDTH + 3 * 80)


@pytest.mark.parametrize("family", ["qwen2", "llama", "qwen3_moe"])
def test_gradient_of_a_model(family: str) -> None:
    model = make(family)
    replaced = copy.deepcopy(model)
    fuse_layers(replaced)
    assert any(type(a) is not type(b) for a, b in zip(model.modules(), replaced.modules(), strict=True))
    batches = packed(some_experiences(), share_prompts=False)
    (own, expected), (logprobs, found) = packed_gradient(model, batches), packed_gradient(replaced, batches)
    assert all(map(torch.equal, logprobs, own))
    assert distance(found, expected) < 1e-5
