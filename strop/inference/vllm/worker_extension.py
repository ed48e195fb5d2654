"""Methods that vLLM adds to its workers: loading of weights from a file."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from torch import nn

from strop.inference.weight_files import checkpoint_weights, read_weights

_RELOAD_LOGGER = "vllm.model_executor.model_loader.reload.layerwise"
"""Logger that warns at every load of layers without weights of their own, such as a tied output head."""


class StropWorkerExtension:
    """Mixin of vLLM's worker class, in each of the engine's processes."""

    device: Any
    model_runner: Any

    def strop_load_weights(self, path: str) -> None:
        """Load the weights of a safetensors file, or of a folder's files; each worker keeps its shard."""
        logging.getLogger(_RELOAD_LOGGER).setLevel(logging.ERROR)
        model = self.model_runner.model
        on_cpu = self.device.type == "cpu"
        if on_cpu:
            _discard_packed_experts(model)
        weights = checkpoint_weights(read_weights(Path(path)), self.model_runner.model_config.hf_config)
        self.reload_weights(weights_iterator=weights)  # type: ignore[attr-defined]
        if on_cpu:
            _pack_output_head(model)


def _discard_packed_experts(model: nn.Module) -> None:
    """Make the reload pack the experts again: on the CPU they are packed only while they have no kernel."""
    for module in model.modules():
        method = getattr(module, "quant_method", None)
        if getattr(method, "moe_kernel", None) is not None:
            method.moe_kernel = None  # type: ignore[union-attr]


def _pack_output_head(model: nn.Module) -> None:
    """Pack the output head again: on the CPU a reload leaves a head that is tied to the embeddings as it was."""
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

    for holder in (model, getattr(model, "language_model", None)):
        head = getattr(holder, "lm_head", None)
        if head is not None:
            dispatch_cpu_unquantized_gemm(getattr(head, "base_layer", head), remove_weight=False)
