"""Value model, compared with Hugging Face's forward pass, with and without packing and an adapter."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModel

from strop.config.schema.model import LoraConfig, ModelConfig
from strop.data.packing import unpack
from strop.errors import ModelError
from strop.models.value_model import ValueModel, load_value_model, token_values
from tests.models.models import coefficients, distance, gradients, make, packed, some_experiences

CPU = torch.device("cpu")


@pytest.fixture(scope="module", params=["qwen2", "gemma2"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("value") / request.param
    make(request.param).save_pretrained(path)
    return path


def value_model(folder: Path, **section: object) -> ValueModel:
    """A value model with a nonzero head."""
    model = load_value_model(ModelConfig(path=str(folder), **section), device=CPU)  # type: ignore[arg-type]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        nn.init.normal_(model.head.weight)
        nn.init.normal_(model.head.bias)
    return model.eval()


def plain(folder: Path, model: ValueModel) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Values [L] of each experience and a gradient, by Hugging Face's forward pass on one at a time."""
    decoder = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    head = nn.Linear(decoder.config.hidden_size, 1)
    head.load_state_dict(model.head.state_dict())
    whole = nn.ModuleDict({"decoder": decoder, "head": head})
    values = []
    for one, weights in zip(some_experiences(), coefficients(some_experiences()), strict=True):
        tokens = torch.from_numpy(one.token_ids).long()
        hidden = decoder(input_ids=tokens[None], use_cache=False).last_hidden_state[0]
        said = head(hidden[:-1])[:, 0] * torch.from_numpy(one.loss_mask)[1:]
        (said * torch.from_numpy(weights)[1:]).sum().backward()
        values.append(nn.functional.pad(said.detach(), (1, 0)))
    return values, gradients(whole)


@pytest.mark.parametrize("share_prompts", [True, False])
def test_values_and_gradient_are_those_of_single_sequences(folder: Path, share_prompts: bool) -> None:
    model = value_model(folder)
    expected, gradient = plain(folder, model)
    batches = packed(some_experiences(), share_prompts=share_prompts, tokens=40)
    said = [token_values(model, batch) for batch in batches]
    sum((batch.advantages * v).sum() for batch, v in zip(batches, said, strict=True)).backward()
    for one, other in zip(unpack(batches, said, some_experiences()), expected, strict=True):
        torch.testing.assert_close(torch.from_numpy(one), other, atol=2e-5, rtol=1e-4)
    assert distance(gradients(model), gradient) < 1e-4


def test_a_new_head_predicts_zero(folder: Path) -> None:
    model = load_value_model(ModelConfig(path=str(folder)), device=CPU)
    (batch,) = packed(some_experiences(), share_prompts=True)
    assert not token_values(model, batch).any()
    assert not any("lm_head" in name for name, _ in model.named_parameters())


def test_with_an_adapter_only_adapter_and_head_are_trained(folder: Path) -> None:
    model = load_value_model(ModelConfig(path=str(folder), lora=LoraConfig(rank=2)), device=CPU)
    learning = {name for name, p in model.named_parameters() if p.requires_grad}
    assert {"head.weight", "head.bias"} < learning
    assert all("lora_" in name or name.startswith("head.") for name in learning)
    (batch,) = packed(some_experiences(), share_prompts=True)
    nn.init.ones_(model.head.weight)
    token_values(model, batch).sum().backward()
    assert {name for name, p in model.named_parameters() if p.grad is not None} == learning


def test_a_missing_folder_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no folder"):
        load_value_model(ModelConfig(path=str(tmp_path / "nowhere")), device=CPU)


def test_a_normal_head_has_the_models_deviation_and_repeats(folder: Path) -> None:
    """transformers initializes a token classifier's linear layer with `initializer_range`, and its bias with zero."""
    heads = []
    for seed in (5, 5, 6):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = load_value_model(ModelConfig(path=str(folder)), head="normal", device=CPU)
        heads.append(model.head.weight.detach())
    wanted = model.decoder.config.get_text_config().initializer_range  # type: ignore[union-attr]
    assert torch.equal(heads[0], heads[1]) and not torch.equal(heads[0], heads[2])
    assert 0.6 * wanted < heads[0].std() < 1.4 * wanted and model.head.bias.item() == 0
    assert not load_value_model(ModelConfig(path=str(folder)), device=CPU).head.weight.any()
