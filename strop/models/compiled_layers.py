"""Compilation of a decoder's layers by torch.compile (`model.compile`)."""

from __future__ import annotations

import shlex

from torch import nn
from torch.utils import cpp_extension
from transformers import PreTrainedModel

from strop.config.schema.model import ModelConfig
from strop.errors import ModelError
from strop.models.packed_attention.forward import base_model, can_share_prompts, decoder_of


def compile_layers(decoder: nn.Module, section: ModelConfig) -> None:
    """Compile each layer of a trained model at its first call, if the section says so.

    Strop's attention stays outside: its plan differs between micro-batches, and its kernels are fast already. What is
    around it is compiled for any number of tokens.

    Raises ModelError for a model without Strop's attention, whose lengths would be compiled one by one.
    """
    if not section.compile:
        return
    base = base_model(decoder)
    supported, obstacle = can_share_prompts(base)
    if not supported:
        raise ModelError(
            f"model.compile is true, but the layers of {type(base).__name__} would be compiled again for every length: "
            f"{obstacle}. Write compile: false."
        )
    _quote_library_folder()
    for layer in layers_of(base):
        layer.compile(dynamic=True)


def layers_of(base: PreTrainedModel) -> list[nn.Module]:
    """The modules of a decoder that follow each other, as its class names them."""
    names = set(base._no_split_modules or ())
    return [module for module in decoder_of(base).modules() if type(module).__name__ in names]


def _quote_library_folder() -> None:
    """Quote the folder of torch's libraries once: torch 2.13 does not in the command that links a kernel for the CPU,
    and splits it at the spaces of the folder's name."""
    folder = cpp_extension.TORCH_LIB_PATH
    if " " in folder and not folder.startswith("'"):
        cpp_extension.TORCH_LIB_PATH = shlex.quote(folder)
