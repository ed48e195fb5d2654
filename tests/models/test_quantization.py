"""Quantized bases, compared with bitsandbytes and torchao: products, gradients, sampling, export and checkpoints."""

from __future__ import annotations

import asyncio
from math import gcd
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from strop.config.schema.model import ModelConfig, QuantizationConfig
from strop.config.schema.rollout import NativeEngineConfig
from strop.config.units import Amount
from strop.data.packing import pack
from strop.errors import ModelError
from strop.inference.native.engine import NativeEngine
from strop.models.loading import load_model, load_tokenizer
from strop.models.quantization import QuantizedWeight
from strop.types import SampleRequest, SamplingParams, TrainingBatch
from tests.models.families import family_folder
from tests.models.models import experience
from tests.training.test_local_engine import accumulate, make_policy, make_run, micro_batches

library = pytest.importorskip("bitsandbytes", reason="comes with strop[bitsandbytes]")
torchao = pytest.importorskip("torchao.quantization", reason="comes with strop[torchao]")
FORMATS: dict[str, dict[str, Any]] = {
    "nf4": {},
    "nf4, double": {"double": True, "block_size": 128},
    "fp4": {"type": "fp4"},
    "int8": {"bits": 8},
    "torchao, nf4": {"library": "torchao", "double": True},
    "torchao, int8": {"library": "torchao", "bits": 8},
}
LORA = {"rank": 4, "alpha": 8}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return family_folder(tmp_path_factory.mktemp("quantized"), "qwen2")


def section(folder: Path, **model: Any) -> ModelConfig:
    return ModelConfig.model_validate({"path": str(folder), "lora": LORA, **model})


def quantized_weights(model: nn.Module) -> dict[str, QuantizedWeight]:
    return {name: p for name, p in model.named_parameters() if isinstance(p, QuantizedWeight)}


def library_layer(weight: torch.Tensor, quantization: QuantizationConfig) -> nn.Module:
    """The library's layer of a weight; in 8 bits that of bitsandbytes rounds activations on a GPU."""
    size = (weight.shape[1], len(weight))
    if quantization.library == "torchao":
        layer = nn.Linear(*size, bias=False, dtype=weight.dtype)
        layer.weight.data.copy_(weight)
        if quantization.bits == 8:
            torchao.quantize_(layer, torchao.Int8WeightOnlyConfig())
        else:
            layer.weight = nn.Parameter(
                torchao.to_nf4(weight, 64, gcd(256, weight.numel() // 64)), requires_grad=False
            )
        return layer
    if quantization.bits == 8:
        layer = library.nn.Linear8bitLt(*size, bias=False, has_fp16_weights=False)
        layer.weight = library.nn.Int8Params(weight, requires_grad=False, has_fp16_weights=False)
        return layer.to("cpu")
    options = {"quant_type": quantization.code, "compress_statistics": quantization.double}
    layer = library.nn.Linear4bit(*size, bias=False, compute_dtype=weight.dtype)
    layer.weight = library.nn.Params4bit(
        weight, requires_grad=False, blocksize=quantization.block_size, **options
    )
    return layer.to("cpu")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("options", FORMATS.values(), ids=FORMATS)
def test_products_and_gradients_are_those_of_the_library(
    folder: Path, options: dict[str, Any], dtype: str
) -> None:
    model = load_model(section(folder, dtype=dtype, quantization=options), device="cpu")
    plain = dict(load_model(section(folder, dtype=dtype), device="cpu").named_parameters())
    found = quantized_weights(model)
    assert {name.split(".")[-2] for name in found} == {
        *("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    }
    for name, weight in found.items():
        theirs = library_layer(plain[name].detach().clone(), QuantizationConfig(**options))
        x, y = (torch.randn(3, weight.shape[1], dtype=weight.dtype).requires_grad_() for _ in range(2))
        y.data.copy_(x.data)
        ours, expected = F.linear(x, weight), theirs(y)
        if options.get("bits") == 8:
            tolerance = 1e-5 if dtype == "float32" else 0.05  # the order of two roundings
            torch.testing.assert_close(ours, expected, atol=tolerance, rtol=tolerance)
        else:
            assert torch.equal(ours, expected)
            ours.sum().backward()
            expected.sum().backward()
            assert x.grad is not None
            assert torch.equal(x.grad, y.grad)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("options", FORMATS.values(), ids=FORMATS)
def test_an_adapter_trains_samples_and_is_merged(
    folder: Path, tmp_path: Path, options: dict[str, Any], dtype: str
) -> None:
    """The sampler reads the trainer's codes, and the export is the dequantized weights plus the adapter."""
    policy = make_policy(make_run(folder, {"lora": LORA, "quantization": options, "compute_dtype": dtype}))
    before = {name: weight.full_precision() for name, weight in quantized_weights(policy.model).items()}
    losses = []
    for _ in range(4):
        losses.append(accumulate(policy, micro_batches(policy))["loss"])
        policy.step()
    assert losses[-1] < losses[0]
    after = {name: weight.full_precision() for name, weight in quantized_weights(policy.model).items()}
    assert all(torch.equal(before[name], after[name]) for name in before)

    tokenizer = load_tokenizer(section(folder))
    engine = NativeEngine.from_weights(policy.shared_weights(), NativeEngineConfig(), tokenizer)
    assert engine.capabilities.weights_in_place
    assert engine.capabilities.adapter_in_place
    prompt = [5, 9, 30, 7]
    sampling = SamplingParams(temperature=0, max_tokens=12)
    request = SampleRequest("0", np.array(prompt, np.int32), sampling, seed=0)
    (response,) = asyncio.run(engine.sample([request]))
    trained = TrainingBatch([experience(prompt, response.token_ids.tolist())])
    (packed,) = pack(trained, Amount(60, "tokens"), share_prompts=True, device=policy.device)
    (expected,) = policy.token_values([packed], "logprobs")
    expected = expected[packed.targets]
    tolerance = 1e-5 if dtype == "float32" else 0.05
    assert response.policy_logprobs == pytest.approx(expected.numpy(), abs=tolerance)
    tokens = [*prompt, *response.token_ids.tolist()]

    policy.export(tmp_path / "merged")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert merged.dtype == torch.float32  # that of the base's files
    with torch.no_grad():
        logits = merged(torch.tensor([tokens])).logits[0, len(prompt) - 1 : -1]
    of_merged = logits.log_softmax(-1)[torch.arange(len(logits)), torch.tensor(tokens[len(prompt) :])]
    assert of_merged == pytest.approx(expected, abs=1e-4 if dtype == "float32" else 0.1)


@pytest.mark.parametrize("options", FORMATS.values(), ids=FORMATS)
def test_an_adapter_learns_as_on_the_dequantized_weights(
    folder: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    quantized = make_policy(make_run(folder, {"lora": LORA, "quantization": options}))
    quantized.export(tmp_path)
    losses = []
    for policy in (quantized, make_policy(make_run(tmp_path, {"lora": LORA}))):
        losses.append([])
        for _ in range(4):
            losses[-1].append(accumulate(policy, micro_batches(policy))["loss"])
            policy.step()
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parametrize("options", [FORMATS["nf4, double"], FORMATS["int8"]], ids=["nf4", "int8"])
def test_a_quantized_folder_is_read_as_it_is(folder: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    asked = (
        BitsAndBytesConfig(load_in_8bit=True)
        if options.get("bits") == 8
        else BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True)
    )
    theirs = AutoModelForCausalLM.from_pretrained(folder, quantization_config=asked, dtype=torch.float32)
    theirs.save_pretrained(tmp_path)
    if options.get("double"):
        options = {"double": True}
    expected = quantized_weights(load_model(section(folder, quantization=options), device="cpu"))
    read = load_model(section(tmp_path), device="cpu")
    found = quantized_weights(read)
    assert found.keys() == expected.keys()
    for name, weight in found.items():
        assert torch.equal(weight.full_precision(), expected[name].full_precision())
    policy = make_policy(make_run(tmp_path, {"lora": LORA}))
    policy.export(tmp_path / "merged")
    AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    for change, message in (
        (
            {"lora": None},
            r"has quantized weights \(bitsandbytes\), of which no gradient is computed. Add model.lora",
        ),
        ({"quantization": {}}, "which stay as they are. Remove model.quantization"),
    ):
        with pytest.raises(ModelError, match=message):
            load_model(section(tmp_path, **change), device="cpu")


def test_nothing_writes_to_a_quantized_weight(folder: Path) -> None:
    weight = next(
        iter(quantized_weights(load_model(section(folder, quantization={}), device="cpu")).values())
    )
    with pytest.raises(TypeError, match="would write to a quantized weight"):
        weight.zero_()
