"""Tiny models of every family, with distributions sharp enough to distinguish tokens."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from strop.models.tiny import make_model
from tests.inference.helpers import Tiny

CORPUS = ("the sum of two and two is four\n", "café is a word of five bytes\n", "stop here, or go on there\n")


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Run the tiny models on one thread, which is fastest."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Tiny]:
    """`tiny(family, **sizes)`: a cached tiny model. Tests must not change its weights."""

    @cache
    def make(family: str = "qwen2", **sizes: Any) -> Tiny:
        folder = make_model(tmp_path_factory.mktemp(family), CORPUS, family=family, vocab_size=320, **sizes)
        model = AutoModelForCausalLM.from_pretrained(folder).eval()
        torch.manual_seed(0)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.mul_(5)
                else:
                    parameter.add_(0.1 * torch.randn_like(parameter))
        return Tiny(model, PreTrainedTokenizerFast.from_pretrained(folder))

    return make
