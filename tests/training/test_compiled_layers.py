"""`model.compile`: the same losses, gradients and updates, compiled once for all lengths."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from strop.config.schema.model import ModelConfig
from strop.errors import ModelError
from strop.models import compiled_layers
from strop.models.compiled_layers import compile_layers
from strop.models.packed_attention.forward import enable_packed_attention
from tests.cases import nightly
from tests.models.models import distance, make, packed, packed_gradient, some_experiences

COMPILED = ModelConfig(path="none", compile=True)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", *nightly("inductor")])
def test_compiled_layers_learn_the_same_and_are_compiled_once(
    monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    """Without code in C++ in CI, which torch's default takes long to compile."""
    compile_module = nn.Module.compile
    monkeypatch.setattr(
        nn.Module, "compile", lambda layer, **options: compile_module(layer, backend=backend, **options)
    )
    plain, compiled = make("qwen2", num_hidden_layers=1), make("qwen2", num_hidden_layers=1)
    for model in (plain, compiled):
        enable_packed_attention(model)
    compile_layers(compiled, COMPILED)
    experiences = some_experiences()
    for number, count in enumerate((10, 3, 5, 7)):
        # The first length may be compiled; any later compilation is an error.
        with torch._dynamo.config.patch(error_on_recompile=number > 0):
            micro_batches = packed(experiences[:count], share_prompts=True)
            expected, gradient = packed_gradient(plain, micro_batches)
            found, compiled_gradient = packed_gradient(compiled, micro_batches)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
        assert distance(compiled_gradient, gradient) < 1e-4


def test_nothing_is_compiled_unless_the_section_says_so() -> None:
    model = make("llama")
    enable_packed_attention(model)
    compile_layers(model, replace_compile(False))
    assert all(layer._compiled_call_impl is None for layer in compiled_layers.layers_of(model))
    compile_layers(model, COMPILED)
    layers = compiled_layers.layers_of(model)
    assert len(layers) == 2
    assert all(layer._compiled_call_impl is not None for layer in layers)


def replace_compile(value: bool) -> ModelConfig:
    return COMPILED.model_copy(update={"compile": value})


def test_a_model_without_packed_attention_is_refused() -> None:
    with pytest.raises(ModelError, match="compiled again for every length"):
        compile_layers(make("llama"), COMPILED)
